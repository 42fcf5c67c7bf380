"""The blocks of a loop nest under construction, and the regions in which its terms are evaluated.

A region is evaluated as a whole or not at all: the body of a loop, the header of a loop (its `where`), or an operand
that is read lazily. Regions form a tree. A block has one more region, for lets of what only lazy operands use, in which
loads are made total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loopfuse.diag import Span
from loopfuse.frontend.terms import Env, Node
from loopfuse.ir import Acc, Dim, Mode, Order


@dataclass(slots=True, eq=False)
class Write:
    """A store or an absorption, as terms; with `let` a let of its own, `buffer` its id."""

    buffer: str
    subs: tuple[Node, ...]
    value: Node
    absorb: bool = False
    at: Node | None = None
    modes: tuple[Mode | None, ...] = ()
    let: bool = False
    span: Span | None = None

    @property
    def terms(self) -> tuple[Node, ...]:
        """What is evaluated."""
        return (*self.subs, self.value) if self.at is None else (*self.subs, self.value, self.at)


@dataclass(slots=True, eq=False)
class Block:
    """A loop with its body, or with no parent the statements of a whole unit.

    `dims` are the loop's as they are emitted (of a unit the trips of the scans around), `raw` as the typed program has
    them; `mask` are the bits of the emitted indices. `own`: a loop of the statement itself, not of one of its folds.
    `taken` are the ids of indices in use in the unit. `env` says what names mean here, `placed` which folds stand here.
    `running` are the bits of an accumulator that the body reads while it runs.
    """

    parent: Block | None
    taken: set[str]
    dims: tuple[Dim, ...] = ()
    raw: tuple[Dim, ...] = ()
    order: Order = "par"
    own: bool = False
    accs: tuple[Acc, ...] = ()
    where: Node | None = None
    items: list[Block | Write] = field(default_factory=list)
    span: Span | None = None
    mask: int = 0
    running: int = 0
    env: Env = field(default_factory=Env)
    placed: dict[int, Node] = field(default_factory=dict)

    def chain(self) -> Iterator[Block]:
        """The loops from this one outward."""
        block = self
        while block.parent is not None:
            yield block
            block = block.parent


class Region:
    """`inside` is the loop in whose text it stands, `block` the one that lets for it stand in.

    `header` is the loop whose `where` it belongs to. A lazy operand has the condition `cond` and its `sense`. In the
    `total` region of a block loads cannot fail.
    """

    __slots__ = ("block", "cond", "depth", "header", "inside", "jump", "parent", "sense", "total")

    def __init__(self, parent: Region | None, inside: Block, header: Block | None = None,
                 cond: Node | None = None, sense: bool = True, total: bool = False) -> None:  # fmt: skip
        self.parent, self.inside, self.header, self.cond, self.sense = parent, inside, header, cond, sense
        self.total = total
        self.block: Block = inside if header is None or inside.parent is None else inside.parent
        self.depth: int = 0
        self.jump: Region = self
        if parent is not None:
            # A jump pointer that skips as many levels as its parent's: ancestors are found in logarithmic time.
            self.depth = parent.depth + 1
            near, far = parent.jump, parent.jump.jump
            self.jump = far if parent.depth - near.depth == near.depth - far.depth else parent

    @property
    def is_block(self) -> bool:
        """Whether it is evaluated whenever its block is."""
        return self.header is None and self.cond is None

    def at_depth(self, depth: int) -> Region:
        """The region around at that depth, or the region itself."""
        region = self
        while region.depth > depth:
            up = region.jump if region.jump.depth >= depth else region.parent
            assert up is not None
            region = up
        return region


def meet(regions: Iterable[Region]) -> Region:
    """The innermost region around all of the regions."""
    found: Region | None = None
    for other in regions:
        if found is None:
            found = other
            continue
        depth = min(found.depth, other.depth)
        found, other = found.at_depth(depth), other.at_depth(depth)
        while found is not other:
            if found.jump is not other.jump:
                found, other = found.jump, other.jump
            else:
                assert found.parent is not None and other.parent is not None
                found, other = found.parent, other.parent
    assert found is not None
    return found
