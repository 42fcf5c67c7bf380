"""Joining partial states of a fold: each accumulator by its monoid, a repaired one after both sides were brought to the
common values of those that it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from loopfuse.emit.writer import Writer, state_type
from loopfuse.ir import Acc
from loopfuse.ops import MONOIDS

States = Mapping[str, str]  # the C text of the state of each accumulator, by its id


def merge(w: Writer, accs: Sequence[Acc], left: States, right: States, known: States | None = None) -> list[str]:
    """C statements after which the states `left` (variables or elements) are those of both sides, `right` being later.

    `accs` are all scalar accumulators of a fold in the order of their declaration. `known` holds joined values that
    are there already: of accumulators whose states several merges share. Those are left alone.
    """
    if not any(a.repair is not None for a in accs):
        return [
            f"{left[a.id]} = {w.combine(a.monoid, a.dtype, left[a.id], right[a.id])};"
            for a in accs
            if a.id not in (known or {})
        ]
    lines, joined = join(w, accs, left, right, known)
    return lines + [f"{left[id]} = {text};" for id, text in joined.items() if id not in (known or {})]


def join(w: Writer, accs: Sequence[Acc], left: States, right: States, known: States | None = None,
         ) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """C statements that define the states of both sides, and their names; `left` keeps its states."""
    found = dict(known or {})
    lines = []
    for acc in accs:
        if acc.id in found:
            continue
        joined = _joined(w, accs, acc, left, right, found)
        found[acc.id] = w.names.fresh(f"{acc.id}.new")
        lines.append(f"const {state_type(acc.monoid, acc.dtype)} {found[acc.id]} = {joined};")
    return lines, found


def _joined(w: Writer, accs: Sequence[Acc], acc: Acc, left: States, right: States, new: States) -> str:
    """The state of one accumulator for both sides; `new` has those of the earlier ones."""
    sides = []
    for state in (left, right):
        text = state[acc.id]
        if acc.repair is not None:
            named = {"self": text}
            for other in accs:
                if other.id in new:
                    named[f"{other.id}.old"] = value(other, state[other.id])
                    named[f"{other.id}.new"] = value(other, new[other.id])
            with aliases(w, named):
                text = w.expr(acc.repair)
        sides.append(text)
    return w.combine(acc.monoid, acc.dtype, *sides)


def value(acc: Acc, state: str) -> str:
    """What the accumulator's name stands for, given its state: of argmax and argmin the position."""
    return f"{state}.at" if MONOIDS[acc.monoid].positional else state


@contextmanager
def aliases(w: Writer, texts: Mapping[str, str]) -> Iterator[None]:
    """Other texts for names of values, for a while."""
    before = {name: w.alias.get(name) for name in texts}
    w.alias.update(texts)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                w.alias.pop(name, None)
            else:
                w.alias[name] = text


__all__ = ["States", "aliases", "join", "merge", "value"]
