"""The law of subscripts: the verdict on one subscript of one axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loopfuse.ir import Expr
from loopfuse.prove.bounds import direction, extremes, limits, settled
from loopfuse.prove.entail import proves
from loopfuse.prove.exprs import integer, readable
from loopfuse.prove.facts import Facts
from loopfuse.prove.state import NO_TAGS, State, Tags
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
    state = facts.state
    found = integer(state, sub) if readable(sub) else None
    if found is None:
        return Judgement("checked", low_failed=True, high_failed=True)
    poly, tags = state.normal(found[0]), found[1]
    sides = (poly, state.normal(extent) - 1 - poly)
    low, high = proofs = [proves(state, side) for side in sides]
    if low is not None and high is not None:
        return Judgement("proved", domains=_domains(state, tags, low, high))
    low_failed, high_failed = low is None, high is None
    lo, hi = (_shown(state, poly, upper) for upper in (False, True))
    wrong = any(proof is None and _outside(state, side) for side, proof in zip(sides, proofs, strict=True))
    if wrong:
        return Judgement("wrong", (), low_failed, high_failed, lo, hi)
    needs: set[Poly] = set()
    used = [tags]
    for side, proof in zip(sides, proofs, strict=True):
        why = proof if proof is not None else _sufficient(state, side)
        if why is None:
            return Judgement("checked", (), low_failed, high_failed, lo, hi)
        needs |= {t for t in why if isinstance(t, Poly)}
        used.append(why)
    requires = tuple(sorted(needs, key=str))
    return Judgement("requires", requires, low_failed, high_failed, lo, hi, _domains(state, *used))


def _domains(state: State, *tags: Tags) -> frozenset[str]:
    """The buffers in the tags, which count as used from now on.

    A range that was told may itself come from an answer, so the ranges under earlier answers are named too.
    """
    domains = frozenset(t for t in NO_TAGS.union(*tags) if isinstance(t, str))
    if domains:
        domains |= state.ctx.rested
    state.ctx.used |= domains
    return domains


def _shown(state: State, poly: Poly, upper: bool) -> Poly | None:
    bounds = [bound for bound, _ in extremes(state, poly, state.is_size, upper)]
    if not bounds:
        return None
    best = bounds[0]
    for other in bounds[1:]:
        if proves(state, best - other if upper else other - best) is not None:
            best = other
    return state.restore(best)


def _sufficient(state: State, side: Poly) -> Tags | None:
    """Conditions on sizes under which `side >= 0`, as tags, or None where none can be found."""
    why = proves(state, side, conditional=True)
    if why is not None and not any(isinstance(t, Poly) and proves(state, -t - 1) is not None for t in why):
        return why
    if state.depends_on_data(side) or state.unsure & state.dependents(state.ctx.free_names(side)):
        return None
    for bound, tags in extremes(state, side, state.is_size, upper=False):
        if proves(state, -bound - 1) is None:
            return tags | {state.restore(bound)}
    return None


# -- wrong for every size ---------------------------------------------------------------------------------------------


def _outside(state: State, side: Poly) -> bool:
    """Whether `side < 0` in some iteration of every non-empty loop."""
    if proves(state, -side - 1) is not None:
        return True
    if any(n not in state.loops and not state.is_size(n) for n in side.names):
        return False
    return any(_holds_at(state, moves) for moves, value in _corners(state, side, ()) if _below(state, value))


def _below(state: State, value: Poly) -> bool:
    return proves(state, -value - 1) is not None


Moves = tuple[tuple[str, Poly], ...]


def _corners(state: State, side: Poly, moves: Moves) -> Iterator[tuple[Moves, Poly]]:
    """The side at its least: each index at the end of its loop that lowers it, inner indices first."""
    order = {n: k for k, n in enumerate(state.loops)}
    indices = [n for n in side.names if n in order]
    if not indices or len(moves) > 6:
        yield moves, side
        return
    name = max(indices, key=order.__getitem__)
    way = direction(state, side, name)
    if way is None or any(n == name for n, _ in moves):
        return
    loop = state.loops[name]
    if loop.sharp:
        ends = [bound for bound, _ in limits(state, name, upper=not way[0])]
    else:
        ends = list(loop.lo) if way[0] else []
    for end in ends[:4]:
        value = state.normal(end)
        yield from _corners(state, settled(state, side.subs({name: value})), (*moves, (name, value)))


def _holds_at(state: State, moves: Moves) -> bool:
    """Whether the iteration that the moves lead to exists whenever the present one does."""
    moved = state.dependents({name for name, _ in moves})
    if moved & state.unsure:
        return False
    for name, loop in state.loops.items():
        fixed = loop.sharp or name in moved or name in state.subst
        if not fixed and any(moved & state.ctx.free_names(p) for p in (*loop.lo, *loop.hi)):
            return False  # its stride may no longer meet the value that it has
    for name, value in state.subst.items():
        read = name in state.ctx.opaque and name not in state.lets
        if read and moved & state.ctx.free_names(value + Poly.of(name)):
            return False  # a value that is read does not follow the index that it was found equal to
    others = (*state.unequal, *(f for s in state.splits for a in s for f in a))
    if any(moved & state.ctx.free_names(fact.poly) for fact in others):
        return False
    return all(_still(state, fact.poly, moves, moved) for fact in state.facts)


def _still(state: State, poly: Poly, moves: Moves, moved: frozenset[str]) -> bool:
    names = state.ctx.free_names(poly)
    if not moved & names:
        return True
    if moved & (names - poly.names):
        return False
    for name, value in moves:
        poly = poly.subs({name: value})
    return proves(state, poly) is not None
