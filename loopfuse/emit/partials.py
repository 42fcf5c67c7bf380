"""States of a fold's accumulators that are still partial: in a thread, joined over a block, and in scratch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from loopfuse.emit.merging import aliases, inverses, join, merge, value
from loopfuse.emit.writer import Writer, state_bytes, state_type
from loopfuse.ir import Acc, Expr
from loopfuse.walking import expr_names

WARP = 32


class States:
    """The states of the accumulators of a fold in one thread: a variable each, or one a lane.

    `uniform` are the accumulators whose states are the same in all lanes.
    """

    def __init__(self, w: Writer, accs: Sequence[Acc], lanes: int = 1, uniform: Collection[str] = (),
                 suffix: str = "", names: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.w, self.accs, self.lanes = w, tuple(accs), lanes
        self.uniform = frozenset(uniform if lanes > 1 else ())
        self.names = names or {a.id: w.names.fresh(a.id + suffix) for a in accs}

    @property
    def bytes(self) -> int:
        """What the states of all lanes take."""
        return sum(state_bytes(a.monoid, a.dtype) * self.lanes_of(a) for a in self.accs)

    @property
    def repaired(self) -> bool:
        """Whether joining needs more than the monoids."""
        return any(a.repair is not None for a in self.accs)

    def lanes_of(self, acc: Acc) -> int:
        """How many states of an accumulator there are."""
        return 1 if acc.id in self.uniform else self.lanes

    def text(self, acc: Acc, lane: str) -> str:
        """The state in a lane."""
        name = self.names[acc.id]
        return name if self.lanes_of(acc) == 1 else f"{name}[{lane}]"

    def at(self, lane: str) -> dict[str, str]:
        """All states in a lane."""
        return {a.id: self.text(a, lane) for a in self.accs}

    def values(self, lane: str) -> dict[str, str]:
        """What the names of the accumulators stand for in a lane."""
        return {a.id: value(a, self.text(a, lane)) for a in self.accs}

    def declare(self) -> None:
        """The variables, at the identities."""
        arrays = [a for a in self.accs if self.lanes_of(a) > 1]
        for acc in self.accs:
            kind, name = state_type(acc.monoid, acc.dtype), self.names[acc.id]
            if acc in arrays:
                self.w.line(f"{kind} {name}[{self.lanes}];", acc.span)
            else:
                self.w.line(f"{kind} {name} = {self.w.identity(acc.monoid, acc.dtype)};", acc.span)
        if arrays:
            with unrolled(self.w, "v", self.lanes) as v:
                for acc in arrays:
                    self.w.line(f"{self.names[acc.id]}[{v}] = {self.w.identity(acc.monoid, acc.dtype)};")

    def merge(self, right: Callable[[Acc, str], str]) -> None:
        """Join states that hold later elements; `right` gives the text of one, for an accumulator and a lane."""
        accs, found = inverses(self.accs) if self.w.target.numerics != "strict" else (self.accs, {})
        counts = {n.rpartition(".")[0] for bottom in found.values() for n in expr_names(bottom).all}
        if self.lanes > 1 and not counts <= self.uniform:
            accs, found = self.accs, {}
        first = self.uniform if self.lanes > 1 else counts
        alone = [a for a in self.accs if a.id in first]
        theirs = self._copies(alone, right, "0")
        lines, known = join(self.w, alone, self.at("0"), theirs)
        self._lines(lines)
        more = self._inverses(found, theirs, known)
        with unrolled(self.w, "v", self.lanes) as v:
            both = theirs | self._copies([a for a in self.accs if a.id not in first], right, v)
            self._lines(merge(self.w, accs, self.at(v), both, known, more))
        for acc in alone:
            self.w.line(f"{self.names[acc.id]} = {known[acc.id]};")

    def _inverses(self, found: Mapping[str, Expr], theirs: Mapping[str, str], known: Mapping[str, str],
                  ) -> tuple[dict[str, str], dict[str, str]]:  # fmt: skip
        """Inverses of counts, as variables: their names on the left and on the right."""
        texts: tuple[dict[str, str], dict[str, str]] = {}, {}
        for name, bottom in found.items():
            for side, states in zip(texts, (self.at("0"), theirs), strict=True):
                if side is texts[1] and name.endswith(".new.inverse"):
                    side[name] = texts[0][name]
                    continue
                named = {f"{id}.old": states[id] for id in known} | {f"{id}.new": text for id, text in known.items()}
                side[name] = self.w.names.fresh(name)
                with aliases(self.w, named):
                    self.w.line(f"const float {side[name]} = lf_inverse({self.w.expr(bottom)});")
        return texts

    def first(self) -> States:
        """The states of all lanes joined, in order, into those of the first."""
        if self.lanes == 1:
            return self
        found = States(self.w, self.accs, names={a.id: self.text(a, "0") for a in self.accs})
        with scoped(self.w, "r") as r:
            self.w.line("#pragma unroll")
            with self.w.block(f"for (int {r} = 1; {r} < {self.lanes}; ++{r})"):
                found.merge(lambda acc, _: self.text(acc, r))
        return found

    def _copies(self, accs: Sequence[Acc], right: Callable[[Acc, str], str], lane: str) -> dict[str, str]:
        """Texts of the other states, in variables where they are used more than once."""
        found = {a.id: right(a, lane) for a in accs}
        if self.repaired:
            for acc in accs:
                name = self.w.names.fresh(f"{acc.id}.other")
                self.w.line(f"const {state_type(acc.monoid, acc.dtype)} {name} = {found[acc.id]};")
                found[acc.id] = name
        return found

    def _lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.w.line(line)


@contextmanager
def unrolled(w: Writer, index: str, count: int) -> Iterator[str]:
    """A loop of known length without jumps; its index. One iteration is no loop."""
    if count == 1:
        yield "0"
        return
    with scoped(w, index) as name:
        w.line("#pragma unroll")
        with w.block(f"for (int {name} = 0; {name} < {count}; ++{name})"):
            yield name


def tree(states: States, threads: int, columns: int, at: int = 0) -> None:
    """Join over a block the states of threads whose number is the same modulo `columns`, a power of two.

    The first `columns` threads have the result. Takes shared memory from byte `at`, which nothing else may use meanwhile.
    """
    w, half = states.w, threads // 2
    if threads == columns or not states.accs:
        return
    w.comment("the block's states, joined by halves")
    slots: dict[str, str] = {}
    for acc in states.accs:
        kind = state_type(acc.monoid, acc.dtype)
        if threads > max(WARP, columns):
            slots[acc.id] = w.names.fresh(f"{acc.id}.slots")
            w.line(f"{kind}* {slots[acc.id]} = ({kind}*)(lf_shared + {at});")
            at += -(-half * states.lanes_of(acc) * state_bytes(acc.monoid, acc.dtype) // 16) * 16
    w.shared = max(w.shared, at)
    if slots:
        _halves(states, slots, half, max(WARP, columns))
    if columns < WARP:
        with scoped(w, "half") as h, w.block(f"for (int {h} = {min(threads, WARP) // 2}; {h} >= {columns}; {h} >>= 1)"):
            states.merge(lambda acc, v: f"lf_shfl_down({states.text(acc, v)}, {h})")


def _halves(states: States, slots: Mapping[str, str], half: int, least: int) -> None:
    """Through shared memory, until `least` threads are left."""
    w = states.w

    def slot(acc: Acc, v: str, thread: str) -> str:
        plain = states.lanes_of(acc) == 1
        return f"{slots[acc.id]}[{thread}]" if plain else f"{slots[acc.id]}[{v} * {half} + {thread}]"

    with scoped(w, "half") as h, w.block(f"for (int {h} = {half}; {h} >= {least}; {h} >>= 1)"):
        w.line("lf_sync();")
        with w.block(f"if (threadIdx.x >= {h} && threadIdx.x < 2 * {h})"):
            for acc in states.accs:
                with unrolled(w, "v", states.lanes_of(acc)) as v:
                    w.line(f"{slot(acc, v, f'threadIdx.x - {h}')} = {states.text(acc, v)};")
        w.line("lf_sync();")
        with w.block(f"if (threadIdx.x < {h})"):
            states.merge(lambda acc, v: slot(acc, v, "threadIdx.x"))


@contextmanager
def scoped(w: Writer, name: str) -> Iterator[str]:
    """An identifier that is free again afterwards."""
    found = w.names.fresh(name)
    yield found
    w.names.free(found)


__all__ = ["WARP", "States", "scoped", "tree", "unrolled"]
