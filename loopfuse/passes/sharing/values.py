"""The values of a kernel: for each expression a key that equal values share, and the place where it could first stand.

Equal keys of `Keys(through=True)` mean equal values wherever both may be computed: an element of a buffer is written
once, so that where a load stands never changes what it gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from loopfuse.analysis.hashing import Keys
from loopfuse.ir import Affine, Expr, Kernel, Let, Load, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.rewrite import children, polys, subexprs
from loopfuse.sizes import Poly

NOTHING: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Block:
    """The statements of a kernel or of a loop; `at` is the loop's position in the block around it.

    `stores`: the buffers that are stored to in it, inner blocks included.
    """

    body: tuple[Stmt, ...]
    loop: Loop | None = None
    parent: Block | None = None
    at: int = 0
    depth: int = 0
    inner: dict[int, Block] = field(default_factory=dict)
    lines: list[dict[int, Info]] = field(default_factory=list)
    stores: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Point:
    """A place for a let: in a block, before the statement at a position."""

    block: Block
    at: int


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a value.

    `home`: the outermost point at which all its names mean what they mean. `loads`: the buffers that it reads.
    `partial`: it depends on an accumulator in progress. `effect`: it has an access whose faults are counted. `ops`: its
    operations, those of the lets that it mentions included.
    """

    key: bytes
    home: Point
    loads: frozenset[str] = NOTHING
    partial: bool = False
    effect: bool = False
    ops: int = 0


@dataclass
class Values:
    """The analysis of one kernel.

    `counts` says how often each key occurs in the text, `nested` whether there is a loop that a value may leave, `lets`
    whether there are lets.
    """

    kernel: Kernel
    keys: Keys = field(default_factory=lambda: Keys(through=True))
    counts: Counter[bytes] = field(default_factory=Counter)
    names: dict[str, Info] = field(default_factory=dict)
    nested: bool = False
    lets: bool = False

    def __post_init__(self) -> None:
        self.root = Block(self.kernel.body)
        self.start = Point(self.root, 0)
        self._block(self.root)

    @property
    def repeats(self) -> bool:
        """Whether a value occurs twice."""
        return any(count > 1 for count in self.counts.values())

    def _block(self, block: Block) -> None:
        for at, stmt in enumerate(block.body):
            infos: dict[int, Info] = {}
            block.lines.append(infos)
            if isinstance(stmt, Loop):
                self._loop(block, at, stmt, infos)
                continue
            roots = _roots(stmt)
            for node in subexprs(*roots):
                infos[id(node)] = self._info(node, infos)
            self._occur(roots, infos)
            if isinstance(stmt, Let):
                self._let(stmt, infos[id(stmt.value)], Point(block, at + 1))
            elif not stmt.absorb:
                block.stores.add(stmt.buffer)

    def _let(self, let: Let, info: Info, after: Point) -> None:
        """A let is its value; with an effect it is something of its own."""
        self.lets = True
        if info.effect:
            token = self.keys.bind(let.id, "let")
            self.names[let.id] = Info(token, after, NOTHING, info.partial)
            return
        self.keys.assign(let.id, info.key)
        self.names[let.id] = info
        if isinstance(let.value, Affine):
            self.keys.affine[let.id] = let.value.poly.subs(self.keys.affine)

    def _loop(self, block: Block, at: int, loop: Loop, infos: dict[int, Info]) -> None:
        inner = block.inner[at] = Block(loop.body, loop, block, at, block.depth + 1)
        self.nested = self.nested or block.parent is not None or loop.order != "par" or bool(loop.accs)
        self.keys.enter(loop)
        inside = Point(inner, 0)
        for dim in loop.dims:
            self.names[dim.id] = Info(self.keys.name(dim.id), inside)
        for acc in loop.accs:
            self.names[acc.id] = Info(self.keys.name(acc.id), inside, NOTHING, True)
        if loop.where is not None:
            for node in subexprs(loop.where):
                infos[id(node)] = self._info(node, infos)
            self._occur((loop.where,), infos)
        self._block(inner)
        block.stores |= inner.stores
        for acc in loop.accs:
            self.keys.bind(acc.id, "acc")
            self.names[acc.id] = Info(self.keys.name(acc.id), Point(block, at + 1))

    def _info(self, node: Expr, infos: dict[int, Info]) -> Info:
        below = [infos[id(child)] for child in children(node)]
        key = self.keys.node(node, [info.key for info in below])
        loads, effect = NOTHING, False
        if isinstance(node, Affine):
            below = self.mentioned(node.poly)
        elif isinstance(node, Ref):
            below = [self.names[node.id]] if node.id in self.names else []
        elif isinstance(node, Load):
            effect = any(mode is not None and mode.kind == "checked" for mode in node.modes)
            loads = frozenset((node.buffer,))
            if node.buffer in self.names:
                below.append(self.names[node.buffer])
        self._occur(children(node), infos)
        home, partial, ops = self.start, False, int(isinstance(node, Op | Select))
        for info in below:
            home = later(home, info.home)
            loads = loads | info.loads if info.loads else loads
            partial, effect, ops = partial or info.partial, effect or info.effect, ops + info.ops
        return Info(key, home, loads, partial, effect, ops)

    def _occur(self, nodes: tuple[Expr, ...], infos: dict[int, Info]) -> None:
        """Count what is computed or read here."""
        self.counts.update(infos[id(node)].key for node in nodes if isinstance(node, Op | Load | Select))

    def mentioned(self, poly: Poly) -> list[Info]:
        """What the names of a polynomial stand for; sizes are left out."""
        return [self.names[name] for name in poly.names if name in self.names]


def _roots(stmt: Let | Store) -> tuple[Expr, ...]:
    return (
        (stmt.value,) if isinstance(stmt, Let) else (*stmt.subs, stmt.value, *(() if stmt.at is None else (stmt.at,)))
    )


def later(a: Point, b: Point) -> Point:
    """The later of two points of which one dominates the other."""
    if a.block is b.block:
        return a if a.at >= b.at else b
    return a if a.block.depth > b.block.depth else b


def before(a: Point, b: Point) -> bool:
    """Whether what stands at `a` is known at `b`."""
    block, at = b.block, b.at
    while block.depth > a.block.depth and block.parent is not None:
        block, at = block.parent, block.at
    return block is a.block and a.at <= at


def header(loop: Loop) -> Iterator[Poly]:
    """The polynomials of a loop's bounds and of the shapes of its accumulators."""
    return polys(loop)
