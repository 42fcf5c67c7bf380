"""Whether loads may be performed at a point: in range and in their windows, proved from what holds there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from loopfuse.analysis.env import Env
from loopfuse.dtypes import BOOL
from loopfuse.ir import Affine, Buffer, Expr, Let, Load, Ref
from loopfuse.passes.sharing.values import Block, Info, Point
from loopfuse.prove import Facts, guarded_children, judge
from loopfuse.sizes import Poly


class Known(Protocol):
    """What is computed where."""

    def meant(self, ref: Ref, point: Point) -> tuple[Expr, dict[int, Info]] | None:
        """The value of a let that is not known at a point."""

    def known(self, info: Info, point: Point) -> bool:
        """Whether a value is computed before a point: its loads are then performed there anyway."""


@dataclass
class Safety:
    """Proofs for one kernel.

    `lets` gives the integer and boolean lets of a block from one position up to before the statement at another;
    `shapes` are those of the array accumulators.
    """

    env: Env
    lets: Callable[[Block, int, int], Iterable[Let]]
    shapes: dict[str, tuple[Poly, ...]]
    known: dict[int, tuple[int, Facts]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        facts = self.env.facts
        for b in self.env.program.buffers:
            if b.range is not None:
                facts = facts.value_range(b.id, *b.range)
        self.start = facts

    def at(self, point: Point) -> Facts:
        """What holds at a point; questions come in the order of the statements, and the facts grow with them."""
        block, at = point.block, point.at
        since, facts = self.known.get(id(block), (0, None))
        if facts is None or since > at:
            since, facts = 0, self._inside(block)
        for let in self.lets(block, since, at):
            facts = facts.let(let.id, let.value)
        self.known[id(block)] = (at, facts)
        return facts

    def _inside(self, block: Block) -> Facts:
        """What holds at the start of a block."""
        if block.parent is None or block.loop is None:
            return self.start
        facts = self.at(Point(block.parent, block.at))
        for d in block.loop.dims:
            facts = facts.index(d.id, d.lo, d.hi, d.step)
        return facts if block.loop.where is None else facts.assume(block.loop.where)

    def safe(self, root: Expr, infos: dict[int, Info], point: Point, values: Known) -> bool:
        """Whether every load of an expression may be performed at the point, guarded by its own selects only."""
        stack = [(root, infos, self.at(point))]
        while stack:
            node, infos, facts = stack.pop()
            if not infos[id(node)].loads or values.known(infos[id(node)], point):
                continue
            if isinstance(node, Load) and not self._load(node, facts):
                return False
            meant = values.meant(node, point) if isinstance(node, Ref) else None
            if meant is not None:
                stack.append((*meant, facts))
            else:
                stack += [(child, infos, holds) for child, holds in guarded_children(node, facts)]
        return True

    def _load(self, load: Load, facts: Facts) -> bool:
        buffer = self.env.buffers.get(load.buffer)
        shape = buffer.shape if buffer is not None else self.shapes.get(load.buffer)
        if shape is None:
            return False
        for axis, (sub, mode) in enumerate(zip(load.subs, load.modes, strict=True)):
            if mode is None:
                if judge(facts, sub, shape[axis]).verdict != "proved":
                    return False
            elif mode.kind == "checked":
                return False
            if buffer is not None and not _in_window(buffer, axis, sub, mode is not None, facts):
                return False
        return True


def _in_window(buffer: Buffer, axis: int, sub: Expr, moded: bool, facts: Facts) -> bool:
    if buffer.window is None:
        return True
    lows, highs = buffer.window[axis]
    if all(p.is_const and p.constant == 0 for p in lows) and set(highs) <= {buffer.shape[axis]}:
        return True
    poly = facts.poly(sub)
    if poly is None or moded:
        return False
    return all(facts.nonneg(poly - p) for p in lows) and all(facts.nonneg(p - 1 - poly) for p in highs)


def settled(let: Let) -> bool:
    """Whether a let may help a proof."""
    return let.value.dtype.is_int or let.value.dtype == BOOL or isinstance(let.value, Affine)
