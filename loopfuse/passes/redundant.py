"""Loads of what is known already: stored, or loaded before, at subscripts that are proved equal; and decided conditions.

Every element of a buffer is written once and read only after, so that no store between two equal accesses matters: what
the first one named is still so in every statement of the block after it, nested ones too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from loopfuse.constants import constant
from loopfuse.dtypes import BOOL, I64
from loopfuse.ir import Affine, Buffer, Const, Expr, Kernel, Let, Load, Loop, Op, Program, Ref, Select, Stmt, Store
from loopfuse.passes.base import Remark, Steps
from loopfuse.passes.patterns import lazy, same
from loopfuse.printer import print_expr
from loopfuse.prove import Facts
from loopfuse.prove.conditions import formula
from loopfuse.rewrite import Fresh, map_expr, subexprs
from loopfuse.sizes import ZERO

MOST_PROOFS = 16  # latest elements of a buffer that a load is compared with, where the places differ


@dataclass
class Known:
    """What is known where a block stands: facts, built when they are asked for."""

    outer: Known | None = None
    loop: Loop | None = None
    start: Facts | None = None
    built: Facts | None = None
    lets: list[Let] = field(default_factory=list)

    def facts(self) -> Facts:
        """The facts that hold in the block."""
        if self.built is None:
            found = self.outer.facts() if self.outer is not None else self.start or Facts.empty()
            if self.loop is not None:
                for dim in self.loop.dims:
                    found = found.index(dim.id, dim.lo, dim.hi, dim.step)
                if self.loop.where is not None:
                    found = found.assume(self.loop.where)
            for let in self.lets:
                found = found.let(let.id, let.value)
            self.built = found
        return self.built

    def learn(self, let: Let) -> None:
        """An integer let, which may occur in subscripts and bounds."""
        if let.value.dtype == I64:
            self.lets.append(let)
            self.built = None if self.built is None else self.built.let(let.id, let.value)


# -- conditions -------------------------------------------------------------------------------------------------------


def truth(cond: Expr, facts: Facts) -> bool | None:
    """Whether facts decide a condition, and how."""
    return next((value for value in (True, False) if _follows(cond, value, facts)), None)


def _follows(cond: Expr, value: bool, facts: Facts) -> bool:
    """Whether a condition is proved to come out as `value`; parts that are not understood prove nothing."""
    said = formula(facts.state, cond, value)
    if said.splits or said.opaque:
        return False
    if not all(facts.nonneg(f.poly) for f in said.facts) or not all(facts.zero(f.poly) for f in said.equal):
        return False
    return all(facts.unequal(f.poly, ZERO) for f in said.unequal)


def of_indices(node: Expr) -> bool:
    """A comparison of index polynomials."""
    return isinstance(node, Op) and node.dtype == BOOL and bool(node.args) and all(
        isinstance(a, Affine) or (isinstance(a, Const) and a.dtype.is_int) for a in node.args
    )  # fmt: skip


# -- elements ---------------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """What a statement becomes: itself, perhaps after lets."""

    stmts: list[Stmt]


@dataclass
class Entry:
    """An element whose value is known: `value` where it has a name, else the cell of the statement that will give one."""

    load: Load
    cell: Cell
    value: Expr | None
    stored: bool


Place = tuple[object, ...]


@dataclass
class Elements:
    """The known elements of one buffer: those at index polynomials by their places, and all in order."""

    places: dict[Place, Entry] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """One more; of two for the same place the first stays."""
        place = place_of(entry.load)
        if place is None or place not in self.places:
            self.entries.append(entry)
        if place is not None:
            self.places.setdefault(place, entry)

    def copy(self) -> Elements:
        """For a block inside, what it adds being its own."""
        return Elements(dict(self.places), list(self.entries))


def place_of(load: Load) -> Place | None:
    """The modes and subscripts of a load, where these are index polynomials."""
    if not all(isinstance(sub, Affine) for sub in load.subs):
        return None
    return (load.modes, *(sub.poly for sub in load.subs if isinstance(sub, Affine)))


Table = dict[str, Elements]


@dataclass
class Redundant:
    """One program's clean-up; `remarks` say what was done."""

    program: Program
    start: Facts
    counter: Steps
    remarks: list[Remark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fresh = Fresh(self.program)
        self.buffers: Mapping[str, Buffer] = {b.id: b for b in self.program.buffers}

    def run(self) -> Program:
        """The program without redundant loads and decided conditions; the same object where there are none."""
        kernels = tuple(self._kernel(k) for k in self.program.kernels)
        if all(a is b for a, b in zip(kernels, self.program.kernels, strict=True)):
            return self.program
        return replace(self.program, kernels=kernels)

    def _kernel(self, kernel: Kernel) -> Kernel:
        body = self._block(kernel.body, Known(start=self.start), {})
        return kernel if body is kernel.body else replace(kernel, body=body)

    def _block(self, body: tuple[Stmt, ...], known: Known, above: Table) -> tuple[Stmt, ...]:
        """A block, with what is known above it."""
        table: Table = {name: held.copy() for name, held in above.items()}
        cells: list[Cell] = []
        for stmt in body:
            if isinstance(stmt, Loop):
                cells.append(Cell([self._loop(stmt, known, table)]))
                continue
            stmt = self._leaf(stmt, known, table)
            cell = Cell([stmt])
            cells.append(cell)
            if isinstance(stmt, Let):
                known.learn(stmt)
            self._note(stmt, cell, table)
        made = tuple(s for cell in cells for s in cell.stmts)
        unchanged = len(made) == len(body) and all(a is b for a, b in zip(made, body, strict=True))
        return body if unchanged else made

    def _loop(self, loop: Loop, known: Known, table: Table) -> Loop:
        where = loop.where
        if where is not None:
            around = Known(known, replace(loop, where=None))
            if truth(where, around.facts()) and self.counter.take(f"where {print_expr(where)} always holds"):
                self._remark(f"the condition `{print_expr(where)}` of a loop always holds", loop)
                where = None
            else:
                where = self._decided(where, around)
        held = loop if where is loop.where else replace(loop, where=where)
        body = self._block(loop.body, Known(known, held), table)
        return held if body is loop.body else replace(held, body=body)

    def _leaf(self, stmt: Let | Store, known: Known, table: Table) -> Let | Store:
        value = self._elements(self._decided(stmt.value, known), stmt, known, table)
        return stmt if value is stmt.value else replace(stmt, value=value)

    def _decided(self, root: Expr, known: Known) -> Expr:
        """An expression with the comparisons of indices that always come out one way as constants."""

        def decide(node: Expr) -> Expr:
            value = truth(node, known.facts()) if of_indices(node) else None
            if value is None or not self.counter.take(f"{print_expr(node)} is always {str(value).lower()}"):
                return node
            self._remark(f"`{print_expr(node)}` is always {str(value).lower()}", node)
            return Const(constant(value, BOOL), BOOL, span=node.span)

        if not any(of_indices(n) for n in subexprs(root)):
            return root
        subs = (sub for n in subexprs(root) if isinstance(n, Load) for sub in n.subs)
        return map_expr(root, decide, {id(sub): (sub, sub) for sub in subs})  # subscripts stay as they are

    def _elements(self, root: Expr, stmt: Let | Store, known: Known, table: Table) -> Expr:
        """An expression with loads of known elements replaced."""

        def on_node(node: Expr) -> Expr:
            if not isinstance(node, Load):
                return node
            entry = self._found(node, known, table)
            if entry is None:
                return node
            what = f"{print_expr(node)} is {'stored' if entry.stored else 'loaded'} above"
            if not self.counter.take(what):
                return node
            self._remark(f"`{print_expr(node)}` is known: it was {'stored' if entry.stored else 'loaded'} above", stmt)
            return replace(self._named(entry), span=node.span)

        return (
            map_expr(root, on_node) if any(isinstance(n, Load) and n.buffer in table for n in subexprs(root)) else root
        )

    def _remark(self, text: str, where: Stmt | Expr) -> None:
        self.remarks.append(Remark(text, where.span))

    def _found(self, load: Load, known: Known, table: Table) -> Entry | None:
        """An entry for the same element: by the same subscripts first, then by proof."""
        held = table.get(load.buffer)
        if held is None:
            return None
        place = place_of(load)
        if place in held.places:
            return held.places[place]
        latest = held.entries[-MOST_PROOFS:]
        for entry in latest:
            if place is None and entry.load.modes == load.modes and all(map(same, entry.load.subs, load.subs)):
                return entry
        for entry in latest if not any(load.modes) else ():
            pairs = zip(entry.load.subs, load.subs, strict=True)
            if not any(entry.load.modes) and all(self._equal(a, b, known) for a, b in pairs):
                return entry
        return None

    def _equal(self, a: Expr, b: Expr, known: Known) -> bool:
        if not isinstance(a, Affine) or not isinstance(b, Affine):
            return same(a, b)
        gap = a.poly - b.poly
        return not gap.terms or (not gap.is_const and known.facts().zero(gap))

    def _named(self, entry: Entry) -> Expr:
        """The name of a known element, given now where it has none."""
        if entry.value is None:
            stmts, load = entry.cell.stmts, entry.load
            last = stmts[-1]
            if entry.stored:
                assert isinstance(last, Store)
                entry.value = Ref(self.fresh(last.buffer), load.dtype)
                stmts[-1:] = [Let(entry.value.id, last.value, span=last.span), replace(last, value=entry.value)]
            else:
                entry.value = ref = Ref(self.fresh(load.buffer), load.dtype)
                at = next(k for k, s in enumerate(stmts) if any(same(n, load) for n in subexprs(_value(s))))
                stmts[at:] = [
                    Let(ref.id, load, span=last.span),
                    *(_with_value(s, map_expr(_value(s), lambda n: ref if same(n, load) else n)) for s in stmts[at:]),
                ]
        return entry.value

    def _note(self, stmt: Let | Store, cell: Cell, table: Table) -> None:
        """What a statement makes known to those after it."""
        if isinstance(stmt, Store) and not stmt.absorb and stmt.buffer in self.buffers and not any(stmt.modes):
            modes = (None,) * len(stmt.subs)
            load = Load(stmt.buffer, stmt.subs, modes, stmt.value.dtype, span=stmt.span)
            value = stmt.value if isinstance(stmt.value, Ref | Const) else None
            table.setdefault(stmt.buffer, Elements()).add(Entry(load, cell, value, True))
        for node in performed(stmt.value):
            if isinstance(node, Load) and node.buffer in self.buffers:
                if any(m is not None and m.kind == "checked" for m in node.modes):
                    continue
                value = Ref(stmt.id, node.dtype) if isinstance(stmt, Let) and node is stmt.value else None
                table.setdefault(node.buffer, Elements()).add(Entry(node, cell, value, False))


def _value(stmt: Stmt) -> Expr:
    assert not isinstance(stmt, Loop)
    return stmt.value


def _with_value(stmt: Stmt, value: Expr) -> Stmt:
    assert not isinstance(stmt, Loop)
    return stmt if value is stmt.value else replace(stmt, value=value)


def performed(root: Expr) -> Iterator[Expr]:
    """The nodes that are evaluated whenever the expression is, subscripts left out."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Select):
            stack.append(node.cond)
        elif isinstance(node, Op):
            stack += node.args[:1] if lazy(node.op) else node.args[::-1]
