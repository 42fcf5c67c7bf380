"""The reference back end: what a program means, in NumPy."""

from loopfuse.backends.reference.frame import Fault
from loopfuse.backends.reference.scalar import run_scalar
from loopfuse.backends.reference.vector import Result, run

__all__ = ["Fault", "Result", "run", "run_scalar"]
