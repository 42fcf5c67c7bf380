"""loopfuse: array programs, fused."""
