"""The reference back end: what a program means, in NumPy, and how far a compiled one may be from it."""

from loopfuse.backends.reference.bounds import Bounded, Mismatch, agrees, run_bounded, vague
from loopfuse.backends.reference.frame import Fault, Stray
from loopfuse.backends.reference.online import Online
from loopfuse.backends.reference.scalar import run_scalar
from loopfuse.backends.reference.vector import Result, run

__all__ = ["Bounded", "Fault", "Mismatch", "Online", "Result", "Stray", "agrees", "run", "run_bounded", "run_scalar",
           "vague"]  # fmt: skip
