"""Decisions as records: every question that fusion asked, its answer and the reason, numbered in order.

From these come `explain`, `explain --why a b`, failed expectations, `--decide-max` and the bisection of a wrong result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopfuse.diag import Span

Kind = Literal["vertical", "horizontal", "reduction", "epilogue", "prologue", "dual contraction", "cascade", "stencil",
               "duplicate", "block"]  # fmt: skip
Verdict = Literal["fused", "refused", "costly", "forced", "forbidden", "skipped"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is not possible, or not done: in the user's words, with the places it is about.

    `code` is short and stable (`extent`, `gather`, `recurrence`, `registers`, `nofuse`, `cascade`, ...). `detail` says
    which dependence: the buffer and the subscripts of both sides. `lift` says what would make it possible. `needed`
    and `limit` are the quantities where a limit is hit, in `unit`.
    """

    code: str
    message: str
    detail: str = ""
    lift: str = ""
    spans: tuple[Span, ...] = ()
    needed: float | None = None
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one question: shall `a` and `b` (groups of definitions, named by what they compute) be one kernel?

    `fused`: yes; `refused`: it cannot be (`cause`); `costly`: it could, and is slower; `forced` and `forbidden`: a
    pragma or a file of decisions says so; `skipped`: yes, but the limit on the number of decisions was reached.
    Times are microseconds by the cost model: of both apart, and of the fused one (None where there is none).
    `saved` and `recomputed` are bytes of memory traffic and operations. `number` counts from 1 within a compilation.
    """

    number: int
    a: tuple[str, ...]
    b: tuple[str, ...]
    verdict: Verdict
    kind: Kind
    reason: str
    before: float = 0.0
    after: float | None = None
    saved: int = 0
    launches: int = 0
    recomputed: int = 0
    registers: int | None = None
    cause: Cause | None = None
    spans: tuple[Span, ...] = ()

    @property
    def key(self) -> tuple[frozenset[str], frozenset[str]]:
        """What the decision is about, by which it is found again in a file of decisions."""
        return frozenset(self.a), frozenset(self.b)
