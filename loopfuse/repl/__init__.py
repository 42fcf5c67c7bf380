"""The interactive session."""
