"""The reference back end: what a program means, in NumPy."""

from loopfuse.backends.reference.frame import Fault
from loopfuse.backends.reference.online import Online
from loopfuse.backends.reference.scalar import run_scalar
from loopfuse.backends.reference.vector import Result, run

__all__ = ["Fault", "Online", "Result", "run", "run_scalar"]
