"""Malformed bytes for everything that reads: small valid files, ways to damage them, and what must come of it."""
