"""What surrounds a statement while it is compiled, and the passes over a fold's body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from loopfuse.backends.reference.absorb import Absorption
from loopfuse.backends.reference.buffers import Homes
from loopfuse.backends.reference.domain import Domain, Reducer, Value
from loopfuse.backends.reference.frame import Frame
from loopfuse.backends.reference.places import Link
from loopfuse.backends.reference.tree import Node
from loopfuse.diag import CompilerError
from loopfuse.ir import Acc

Code = Callable[[Frame], None]
Shape = tuple[int, ...]


@dataclass
class Fold:
    """An accumulator: its loop's place among the loops around, the number of axes around that, and its value's slot.

    `absorbs` are its absorptions in textual order. `simple`: of a prefix loop that needs no single steps; in any other
    prefix loop all absorptions share the state in slot `state`.
    """

    acc: Acc
    home: int
    outer: int
    slot: int
    shape: Shape
    prefix: bool
    simple: bool
    domain: Domain
    state: int
    absorbs: list[Absorption] = field(default_factory=list)
    reducer: Reducer | None = None

    @property
    def monoid(self) -> Reducer:
        """The monoid; of an accumulator that nothing absorbs into, at its declared type."""
        return self.reducer or self.domain.reducer(self.acc.monoid, self.acc.dtype, False)

    def begin(self, f: Frame) -> None:
        """Start with no terms."""
        for made in self.absorbs:
            made.begin(f)

    def gathered(self, f: Frame, outer: Shape) -> Node:
        """All terms absorbed since `begin`, or None; `outer` is the shape around the loop."""
        node: Node = None
        for made in self.absorbs:
            part = made.result(f, outer)
            if part is not None:
                node = part if node is None else self.monoid.combine(node, part)
        return node

    def show(self, f: Frame, node: Node, outer: Shape) -> Value:
        """Give the accumulator's name the value of a node, which is returned."""
        value = self.monoid.finish(node)
        if self.shape:
            f.stores[self.slot] = self.domain.array(value, self.monoid.dtype, self.shape, outer)
        else:
            f.values[self.slot] = value
        return value


@dataclass(frozen=True)
class Nest:
    """What surrounds a statement: the kernel's number, the loops, the accumulators, and where buffers live."""

    kernel: int
    homes: Homes
    stores: dict[str, int]
    links: tuple[Link, ...] = ()
    folds: dict[str, Fold] = field(default_factory=dict)

    def fold(self, name: str) -> Fold:
        """The accumulator of a name, whose loop must be around."""
        found = self.folds.get(name)
        if found is None:
            raise CompilerError("reference", f"`{name}` is no accumulator of a loop around the absorption")
        return found


@dataclass(frozen=True)
class Turn:
    """A pass over a fold's body, which computes some of the accumulators; for other loops the only one."""

    folds: tuple[Fold, ...]
    body: Code

    def begin(self, f: Frame) -> None:
        """Start the accumulators of this pass."""
        for fold in self.folds:
            fold.begin(f)

    def end(self, f: Frame, outer: Shape) -> None:
        """Set their values, and forget the terms."""
        for fold in self.folds:
            fold.show(f, fold.gathered(f, outer), outer)
            fold.begin(f)
