"""Where each value of a kernel is computed: at the point of its first use, or further out, and shared by later uses."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from loopfuse.analysis.env import Env
from loopfuse.diag import Span
from loopfuse.dtypes import I64
from loopfuse.ir import Affine, Const, Expr, Let, Load, Loop, Op, Ref, Store
from loopfuse.passes.base import Steps
from loopfuse.passes.sharing.safety import Safety, settled
from loopfuse.passes.sharing.values import Block, Info, Point, Values, before, header
from loopfuse.printer import print_expr
from loopfuse.rewrite import children, guarded, rebuild, walk
from loopfuse.sizes import Poly

MOST_NODES, MOST_DEPTH = 24, 8


@dataclass(eq=False, slots=True)
class Place:
    """A value and the point where it is computed; `let` is the let that gives it a name, if the program has one.

    A `fixed` place is a let whose value is nothing to share: a name, an affine expression, or one with an effect.
    """

    node: Expr
    info: Info
    infos: dict[int, Info]
    point: Point
    origin: str
    span: Span | None
    operands: list[Operand] = field(default_factory=list)
    let: Let | None = None
    fixed: bool = False
    moved: Loop | None = None
    pinned: bool = False
    times: int = 1
    uses: int = 0
    apart: bool = False
    id: str = ""
    text: str = ""


@dataclass(eq=False, slots=True)
class Leaf:
    """A constant, a name, or an affine expression and the lets that it mentions."""

    node: Expr
    lets: tuple[tuple[str, Place], ...] = ()


@dataclass(eq=False, slots=True)
class Tree:
    """An expression that stays where it stands."""

    node: Expr
    operands: list[Operand]


Operand = Place | Leaf | Tree
Visit = Generator[Any, Any, Any]


def run(visit: Visit) -> Any:
    """Run a generator that yields the generators whose results it needs: recursion without the interpreter's stack."""
    stack, result = [visit], None
    while stack:
        try:
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as end:
            stack.pop()
            result = end.value
    return result


@dataclass(frozen=True, slots=True)
class Context:
    """Where an expression stands: the point before its statement, what is known of its nodes, and under which guard.

    `guarded`: it is evaluated only where some condition holds. `written`: floats stay written out, because a proof
    about the integer that they become reads them.
    """

    point: Point
    infos: dict[int, Info]
    origin: str
    span: Span | None = None
    guarded: bool = False
    written: bool = False


@dataclass
class Sharing:
    """The places of a kernel's values; with `hoist` at the outermost legal depth, else at the first use."""

    values: Values
    env: Env
    steps: Steps
    hoist: bool = False
    lets: dict[str, Place] = field(default_factory=dict)
    table: dict[bytes, list[Place]] = field(default_factory=dict)
    listed: dict[tuple[int, int], list[Place]] = field(default_factory=dict)
    roots: dict[tuple[int, int], list[Operand]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = {a.id: a.shape for s in walk(self.values.kernel.body) if isinstance(s, Loop) for a in s.accs}
        self.safety = Safety(self.env, self._settled, shapes)
        self._block(self.values.root)

    def at(self, point: Point) -> list[Place]:
        """The places at a point, in order."""
        return self.listed.setdefault((id(point.block), point.at), [])

    # -- statements ---------------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        for at, stmt in enumerate(block.body):
            point = Point(block, at)
            ctx = Context(point, block.lines[at], "cond", stmt.span)
            if isinstance(stmt, Let):
                self._let(stmt, replace(ctx, origin=stmt.id))
            elif isinstance(stmt, Store):
                parts = [*stmt.subs, stmt.value, *(() if stmt.at is None else (stmt.at,))]
                ctx = replace(ctx, origin=stmt.buffer)
                self.roots[id(block), at] = [run(self.visit(part, ctx)) for part in parts]
            else:
                bounds = [run(self._affine(Affine(poly), point)) for poly in header(stmt) if poly.names]
                where = [] if stmt.where is None else [run(self.visit(stmt.where, replace(ctx, guarded=True)))]
                self.roots[id(block), at] = where + bounds
                self._block(block.inner[at])

    def _let(self, let: Let, ctx: Context) -> None:
        found: Operand = run(self.visit(let.value, ctx))
        if not isinstance(found, Place) or isinstance(let.value, Ref):
            info = ctx.infos[id(let.value)]
            place = Place(let.value, info, ctx.infos, ctx.point, let.id, let.span, [found], let, fixed=True)
            self.at(ctx.point).append(place)
            found = place
        elif found.let is None:
            found.let = let
        self.lets[let.id] = found

    def _settled(self, block: Block, since: int, until: int) -> Iterator[Let]:
        """The lets in a part of a block that may help a proof: those of the program, and those that moved there."""
        for at in range(since, until + 1):
            for place in self.listed.get((id(block), at), ()):
                if place.let is not None and place.moved is not None and settled(place.let):
                    yield place.let
            stmt = block.body[at] if at < until else None
            if isinstance(stmt, Let) and settled(stmt):
                yield stmt

    # -- expressions --------------------------------------------------------------------------------------------------

    def visit(self, node: Expr, ctx: Context) -> Visit:
        """The operand that stands for an expression."""
        if isinstance(node, Affine):
            return (yield self._affine(node, ctx.point))
        if isinstance(node, Ref):
            return (yield self._ref(node, ctx))
        if isinstance(node, Const) or (isinstance(node, Load) and not node.subs and not self.hoist):
            return Leaf(node)
        info = ctx.infos[id(node)]
        written = ctx.written and node.dtype.is_float
        found = None if written else self._find(node, info, ctx.point)
        if found is not None:
            return found
        point = None if written else self._point(node, info, ctx)
        inner = ctx if point is None else replace(ctx, point=point, guarded=False)
        if isinstance(node, Op) and node.dtype == I64 and node.args[0].dtype.is_float:
            inner = replace(inner, written=True)
        operands: list[Operand] = []
        for child, arm in guarded(node):
            operands.append((yield self.visit(child, replace(inner, guarded=inner.guarded or arm))))
        if point is None:
            return Tree(node, operands)
        origin = node.buffer if isinstance(node, Load) else ctx.origin
        place = Place(node, info, ctx.infos, point, origin, node.span or ctx.span, operands)
        if point != ctx.point:
            place.moved = _crossed(ctx.point, point)
        self.table.setdefault(info.key, []).append(place)
        self.at(point).append(place)
        return place

    def _find(self, node: Expr, info: Info, point: Point) -> Place | None:
        """The same value, computed before on every way to the point."""
        for place in self.table.get(info.key, ()):
            if before(place.point, point):
                place.text = place.text or shown(place.node)
                if self.steps.take(f"compute `{place.text}` once"):
                    place.times += 1
                    return place
        return None

    def _ref(self, node: Ref, ctx: Context) -> Visit:
        place = self.lets.get(node.id)
        if place is None:
            return Leaf(node)
        if not before(place.point, ctx.point):
            if place.fixed:
                return (yield self.visit(place.node, replace(ctx, infos=place.infos)))
            yield self._bring(place, ctx.point)
        return place

    def _affine(self, node: Affine, point: Point) -> Visit:
        far = {n: self.lets[n] for n in node.poly.names if n in self.lets and not before(self.lets[n].point, point)}
        plain = {n: self.values.keys.affine[n] for n, place in far.items() if n in self.values.keys.affine}
        if plain:
            return (yield self._affine(Affine(node.poly.subs(plain), span=node.span), point))
        for place in far.values():
            yield self._bring(place, point)
        named = tuple((n, self.lets[n]) for n in sorted(node.poly.names) if n in self.lets)
        for _, place in named:
            place.pinned = True
        return Leaf(node, named)

    def _bring(self, place: Place, point: Point) -> Visit:
        """Compute a value at a point further out than where it is, for another that is computed there."""
        if before(place.point, point):
            return
        stack = list(place.operands)
        for operand in stack:
            if isinstance(operand, Place):
                yield self._bring(operand, point)
            elif isinstance(operand, Tree):
                stack.extend(operand.operands)
            else:
                for _, mentioned in operand.lets:
                    yield self._bring(mentioned, point)
        self.at(place.point).remove(place)
        place.moved, place.point = _crossed(place.point, point), point
        self.at(point).append(place)

    # -- points -------------------------------------------------------------------------------------------------------

    def _point(self, node: Expr, info: Info, ctx: Context) -> Point | None:
        """Where a value is to be computed; None where it has to stay as it stands."""
        if info.effect or not before(info.home, ctx.point):
            return None
        for point in self._outward(node, info, ctx.point):
            if self._safe(node, ctx.infos, point):
                if self.steps.take(f"compute `{shown(node)}` outside its loop"):
                    return point
                break
        if (
            ctx.guarded
            and info.loads
            and (self.values.counts[info.key] < 2 or not self._safe(node, ctx.infos, ctx.point))
        ):
            return None
        return ctx.point

    def _outward(self, node: Expr, info: Info, point: Point) -> list[Point]:
        """The points further out where a value could stand, but for the proof of its loads, the outermost first.

        Worth moving is what has an operation or is a load without subscripts. The outermost loop of a kernel is left
        only where it is a fold or in order: what a `par` kernel has for all its iterations is the plan's to keep.
        """
        found: list[Point] = []
        if not self.hoist or info.partial or not (info.ops or (isinstance(node, Load) and not node.subs)):
            return found
        block = point.block
        while block.parent is not None and block.loop is not None and info.home.block.depth < block.depth:
            loop, outer = block.loop, block.parent
            if outer.parent is None and loop.order == "par" and not loop.accs:
                break
            if not info.loads.isdisjoint(block.stores) or self._windowed(info.loads, loop):
                break
            found.append(Point(outer, block.at))
            block = outer
        return found[::-1]

    def _windowed(self, loads: frozenset[str], loop: Loop) -> bool:
        """Whether a buffer has a window that moves with the loop."""
        indices = {d.id for d in loop.dims}
        for buffer in (self.env.buffers[b] for b in loads if b in self.env.buffers):
            for low, high in buffer.window or ():
                if any(not indices.isdisjoint(p.names) for p in (*low, *high)):
                    return True
        return False

    def _safe(self, node: Expr, infos: dict[int, Info], point: Point) -> bool:
        return not infos[id(node)].loads or self.safety.safe(node, infos, point, self)

    def meant(self, ref: Ref, point: Point) -> tuple[Expr, dict[int, Info]] | None:
        """The value of a let that is not known at a point."""
        place = self.lets.get(ref.id)
        return None if place is None or before(place.point, point) else (place.node, place.infos)

    def known(self, info: Info, point: Point) -> bool:
        """Whether a value is computed before a point."""
        return any(before(place.point, point) for place in self.table.get(info.key, ()))


def _crossed(inner: Point, outer: Point) -> Loop | None:
    """The outermost loop between two points."""
    block, loop = inner.block, None
    while block is not outer.block and block.parent is not None:
        block, loop = block.parent, block.loop
    return loop


def shown(node: Expr) -> str:
    """An expression as text, the inner parts of a large one left out."""
    size, level = 0, [node]
    for _ in range(MOST_DEPTH):
        size += len(level)
        level = [child for at in level for child in children(at)]
        if size + len(level) > MOST_NODES:
            break
    return print_expr(node if not level else _cut(node, 2))


def _cut(node: Expr, depth: int) -> Expr:
    """The expression with `...` for what is deeper."""
    below = children(node)
    if not below:
        return node
    if not depth:
        return Ref("...", node.dtype)
    return rebuild(node, tuple(_cut(child, depth - 1) for child in below))


def poly_names(poly: Poly, names: dict[str, Poly]) -> Poly:
    """A polynomial with other names."""
    return poly.subs(names) if names and not poly.names.isdisjoint(names) else poly
