"""The law of subscripts: the verdict on one subscript of one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopfuse.ir import Expr
from loopfuse.prove.facts import Facts
from loopfuse.sizes import Poly

Verdict = Literal["proved", "wrong", "requires", "checked"]


@dataclass(frozen=True)
class Judgement:
    """What is known of `0 <= sub < extent`.

    `proved`; `wrong`: whenever the loops around are non-empty some iteration is outside; `requires`: in range if every
    polynomial in `requires` (over sizes and params) is >= 0; `checked`: depends on data, or cannot be decided.
    `low_failed` and `high_failed` say which side is not proved; `lo` and `hi` are bounds of the subscript over sizes,
    for messages; `domains` are the buffers whose value range the proof used.
    """

    verdict: Verdict
    requires: tuple[Poly, ...] = ()
    low_failed: bool = False
    high_failed: bool = False
    lo: Poly | None = None
    hi: Poly | None = None
    domains: frozenset[str] = frozenset()


def judge(facts: Facts, sub: Expr, extent: Poly) -> Judgement:
    """The verdict on `0 <= sub < extent`."""
    poly = facts.poly(sub)
    if poly is not None and facts.nonneg(poly) and facts.nonneg(extent - 1 - poly):
        return Judgement("proved")
    return Judgement("checked", low_failed=True, high_failed=True)
