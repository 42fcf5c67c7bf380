"""loopfuse: array programs, fused.

    import loopfuse as lf
    y = lf.run("input x: f32[N]  output y = tanh(x) * 2", x=x)

The names below load on first use, so that the command line starts without NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopfuse.api import Compiled, Lowered, PassRecord, Program, check, compile, parse, run
    from loopfuse.checking import CheckResult
    from loopfuse.diag import CompilerError, Diagnostic, MachineError
    from loopfuse.diag import UserError as Error
    from loopfuse.results import Record

__version__ = "0.1.0"
__all__ = [
    "CheckResult", "Compiled", "CompilerError", "Diagnostic", "Error", "Lowered", "MachineError", "PassRecord", "Program",
    "Record", "check", "compile", "parse", "passes", "run",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'loopfuse' has no attribute {name!r}")
    if name == "passes":
        return import_module("loopfuse.passes")
    home = "diag" if name in ("Error", "CompilerError", "Diagnostic", "MachineError") else "api"
    home = {"Record": "results", "CheckResult": "checking"}.get(name, home)
    return getattr(import_module(f"loopfuse.{home}"), "UserError" if name == "Error" else name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
