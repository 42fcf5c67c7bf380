"""Fusion: which kernels become one, and why. The door: the pass, and what a script may expect of it."""

from __future__ import annotations

from loopfuse.passes.base import Pass
from loopfuse.passes.fuse.directives import expectations
from loopfuse.passes.fuse.run import fuse

__all__ = ["PASS", "expectations", "fuse"]

PASS = Pass("fuse", "Join loop nests into the fewest and best kernels, by cost.", fuse)
