"""Joining partial states of a fold: each accumulator by its monoid, a repaired one after both sides were brought to the
common values of those that it depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from loopfuse.dtypes import F32
from loopfuse.emit.writer import Writer, c_type, state_type
from loopfuse.ir import Acc, Expr, Op, Ref
from loopfuse.ops import MONOIDS
from loopfuse.rewrite import rebuild
from loopfuse.walking import children

States = Mapping[str, str]  # the C text of the state of each accumulator, by its id


def merge(w: Writer, accs: Sequence[Acc], left: States, right: States, known: States | None = None,
          more: tuple[States, States] = ({}, {})) -> list[str]:  # fmt: skip
    """C statements after which the states `left` (variables or elements) are those of both sides, `right` being later.

    `accs` are all scalar accumulators of a fold in the order of their declaration. `known` holds joined values that
    are there already: of accumulators whose states several merges share. Those are left alone. `more`: what other names
    in repairs stand for, on the left and on the right.
    """
    if not any(a.repair is not None for a in accs):
        return [
            f"{left[a.id]} = {w.combine(a.monoid, a.dtype, left[a.id], right[a.id])};"
            for a in accs
            if a.id not in (known or {})
        ]
    lines, joined = join(w, accs, left, right, known, more)
    return lines + [f"{left[id]} = {text};" for id, text in joined.items() if id not in (known or {})]


def join(w: Writer, accs: Sequence[Acc], left: States, right: States, known: States | None = None,
         more: tuple[States, States] = ({}, {})) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """C statements that define the states of both sides, and their names; `left` keeps its states."""
    found = dict(known or {})
    lines: list[str] = []
    for acc in accs:
        if acc.id in found:
            continue
        joined = _joined(w, accs, acc, (left, right), found, more, lines)
        found[acc.id] = w.names.fresh(f"{acc.id}.new")
        lines.append(f"const {state_type(acc.monoid, acc.dtype)} {found[acc.id]} = {joined};")
    return lines, found


def _joined(w: Writer, accs: Sequence[Acc], acc: Acc, both: tuple[States, States], new: States,
            more: tuple[States, States], lines: list[str]) -> str:  # fmt: skip
    """The state of one accumulator for both sides; `new` has those of the earlier ones. What it needs goes to `lines`."""
    sides = []
    for state, others in zip(both, more, strict=True):
        text = state[acc.id]
        if acc.repair is not None:
            named = {**others, "self": text}
            for other in accs:
                if other.id in new:
                    named[f"{other.id}.old"] = value(other, state[other.id])
                    named[f"{other.id}.new"] = value(other, new[other.id])
            with aliases(w, named):
                text = w.expr(_once(w, acc, lines))
        sides.append(text)
    return w.combine(acc.monoid, acc.dtype, *sides)


def _once(w: Writer, acc: Acc, lines: list[str]) -> Expr:
    """The repair, what occurs in it several times being computed before it: in the arms of a choice, C compilers find
    that a division is done twice, and do it twice."""
    assert acc.repair is not None
    counts = Counter(_occurrences(acc.repair))

    def replaced(node: Expr) -> Expr:
        if isinstance(node, Op) and counts[node] > 1:
            name = w.names.fresh(f"{acc.id}.shift")
            lines.append(f"const {c_type(node.dtype)} {name} = {w.expr(node)};")
            w.alias[name] = name
            counts[node] = 0
            made[node] = Ref(name, node.dtype)
        if node in made:
            return made[node]
        below = children(node)
        return rebuild(node, tuple(replaced(n) for n in below)) if below else node

    made: dict[Expr, Expr] = {}
    return replaced(acc.repair)


def _occurrences(root: Expr) -> Iterator[Expr]:
    """The nodes of an expression, each as often as it stands in it."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += children(node)


def inverses(accs: Sequence[Acc]) -> tuple[list[Acc], dict[str, Expr]]:
    """Accumulators whose repairs multiply by an inverse where they divided by a count (an integer accumulator, old or
    new); the names of the inverses, and the counts as floats.

    The quotient then errs by one unit in the last place more, in a value that only says how partial values differ.
    """
    found: dict[Expr, str] = {}
    counts = {f"{a.id}.{when}" for a in accs if a.dtype.is_int and a.repair is None for when in ("old", "new")}

    def replaced(node: Expr) -> Expr:
        below = children(node)
        node = rebuild(node, tuple(replaced(n) for n in below)) if below else node
        if isinstance(node, Op) and node.op == "div" and node.dtype == F32:
            top, bottom = node.args
            count = bottom.args[0] if isinstance(bottom, Op) and bottom.op == "cast" else None
            if isinstance(count, Ref) and count.id in counts:
                name = found.setdefault(bottom, f"{count.id}.inverse")
                return Op("mul", (top, Ref(name, F32)), F32, span=node.span)
        return node

    made = [a if a.repair is None else replace(a, repair=replaced(a.repair)) for a in accs]
    return made, {name: bottom for bottom, name in found.items()}


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


__all__ = ["States", "aliases", "inverses", "join", "merge", "value"]
