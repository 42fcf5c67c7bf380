"""The verifier: what every valid program satisfies, an invariant a function.

A broken invariant is a bug of whoever made the program: `verify` raises `CompilerError` and names the invariant and the
statement. `violations` lists them, for text that a user wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loopfuse.diag import CompilerError, Span
from loopfuse.ir import Program
from loopfuse.printer import print_program, print_stmt
from loopfuse.verify import accumulators, ownership, ranges, repairs, structure
from loopfuse.verify.layout import Layout, Site, layout
from loopfuse.verify.memory import Memory

__all__ = ["Violation", "verify", "violations"]

Problem = tuple[str, Site | None]
STRUCTURE: tuple[Callable[[Layout], Iterator[Problem]], ...] = (
    structure.identifiers,
    structure.sizes,
    structure.buffers,
    structure.names,
    structure.types,
    structure.ranks,
    structure.loops,
    structure.requires,
    accumulators.accumulators,
    accumulators.absorbs,
    accumulators.repairs,
    accumulators.partial_values,
    structure.roles,
    repairs.separable,
)
MEMORY: tuple[Callable[[Memory], Iterator[Problem]], ...] = (
    ownership.written_once,
    ownership.covered,
    ownership.incarnations,
    ownership.read_after_write,
)
RANGES: tuple[Callable[[Memory], Iterator[Problem]], ...] = (ranges.in_range, ranges.in_window)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: its name, what is wrong, and the statement (its line, and its span in the source)."""

    invariant: str
    message: str
    statement: str = ""
    span: Span | None = None

    def __str__(self) -> str:
        place = f" in `{self.statement}`" if self.statement else ""
        return f"{self.invariant}: {self.message}{place}"


def violations(program: Program, ranges: bool = False) -> Iterator[Violation]:
    """The broken invariants. Those of memory are looked at only where names, types and shapes are in order."""
    v = layout(program)
    broken = False
    for check in STRUCTURE:
        for problem in check(v):
            broken = True
            yield _violation(check.__name__, problem)
        if broken:
            return
    memory = Memory(v, structure.size_facts(v))
    for inspect in MEMORY + RANGES * ranges:
        for problem in inspect(memory):
            yield _violation(inspect.__name__, problem)


def _violation(invariant: str, problem: Problem) -> Violation:
    message, site = problem
    if site is None:
        return Violation(invariant, message)
    return Violation(invariant, message, print_stmt(site.stmt), site.stmt.span)


def verify(program: Program, ranges: bool = False) -> None:
    """Check a program; with `ranges` also that every access is proved in range, moded or guarded.

    Raises:
        CompilerError: an invariant is broken; its `artifact` is the text of the program.
    """
    for violation in violations(program, ranges):
        raise CompilerError("verify", str(violation), print_program(program))
