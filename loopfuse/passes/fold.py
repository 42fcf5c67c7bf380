"""Folding of constants: expressions whose operands are known, arms that are never taken, loops that never run.

Everything is computed by the op table at the declared width, so the bits are those that the program would make. A NaN
that an operation makes is left to the operation: its sign and payload are the machine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from loopfuse.constants import constant, from_bits, to_bits, to_number
from loopfuse.dtypes import I64
from loopfuse.ir import Acc, Affine, Const, Expr, Let, Load, Loop, Op, Program, Ref, Select, Stmt, Store
from loopfuse.ops import MONOIDS, NOWHERE, OPS
from loopfuse.passes.base import Steps
from loopfuse.passes.patterns import faults
from loopfuse.printer import print_expr
from loopfuse.rewrite import Mapper, is_const, own, walk, walk_program
from loopfuse.sizes import ZERO, Poly


def folded(program: Program, values: Mapping[str, int], steps: Steps) -> Program:
    """The program with the sizes in `values` substituted and everything folded that follows; itself where nothing."""
    while True:
        folder = _Folder(program, values, steps)
        after = _met(_held(folder.on_program(program), folder.slid), steps)
        if after is program:
            return program
        program = after


def _met(program: Program, steps: Steps) -> Program:
    """The program without the requirements that always hold."""
    kept = tuple(r for r in program.requires if not (_truth(r.cond) and steps.take("a requirement that always holds")))
    return program if len(kept) == len(program.requires) else replace(program, requires=kept)


def _held(program: Program, slid: set[str]) -> Program:
    """The program with these buffers held whole: the loop that their windows slid along is gone."""
    if not slid:
        return program
    return replace(program, buffers=tuple(replace(b, window=None) if b.id in slid else b for b in program.buffers))


def _truth(cond: Expr | None) -> bool | None:
    """The value of a condition, where it is known."""
    return bool(cond.bits) if isinstance(cond, Const) else None


def evaluate(node: Op) -> Const | None:
    """The value of an operation on constants, or of a comparison of polynomials a known distance apart.

    None where an operand is not known, or a NaN is made.
    """
    if OPS[node.op].swapped is not None and all(isinstance(a, Affine) for a in node.args):
        left, right = (a.poly for a in node.args if isinstance(a, Affine))
        node = replace(node, args=(Affine(left - right), Affine(ZERO)))
    if not all(map(is_const, node.args)):
        return None
    found = OPS[node.op].evaluate([_value(a) for a in node.args], node.dtype)
    if node.dtype.is_float and np.isnan(found):
        return None
    return Const(to_bits(found, node.dtype), node.dtype, span=node.span)


def neutral(node: Op) -> Expr | None:
    """What is left of an operation one of whose operands is its identity, or decides it, by the op table."""
    if len(node.args) != 2 or node.args[0].dtype != node.dtype:
        return None
    row = OPS[node.op]
    sides = (0, 1) if row.law("commutative", node.dtype) else (1,)
    for side in sides:
        constant, other = node.args[side], node.args[1 - side]
        if not isinstance(constant, Const):
            continue
        for law in ("identity", "absorbing"):
            value = row.value(law, node.dtype)
            if value is not None and to_bits(value, node.dtype) == constant.bits:
                if law == "identity":
                    return other
                return None if faults(other) else constant
    return None


def _value(expr: Expr) -> np.ndarray[tuple[()], np.dtype[np.generic]]:
    if isinstance(expr, Affine):
        return np.asarray(np.int64(expr.poly.constant))
    assert isinstance(expr, Const)
    return np.asarray(from_bits(expr.bits, expr.dtype))


class _Folder(Mapper):
    """One walk over a program in textual order: what is known of a name is known before the name is used."""

    def __init__(self, program: Program, values: Mapping[str, int], steps: Steps) -> None:
        super().__init__(self._fold, self._substitute, self._statement)
        self.steps = steps
        self.numbers = dict(values)
        self.values: dict[str, Const] = {}  # of lets and of accumulators of loops that never run
        self.gone: set[str] = set()  # accumulators whose loop was taken out
        self.arrays: dict[str, Const] = {}  # the one value that all elements have
        self.seen: dict[str, list[Const | None]] = {}
        self.stores = Counter(s.buffer for s in walk_program(program) if isinstance(s, Store) and not s.absorb)
        self.loads = _loads(program)
        self.needed = {b.id for b in program.buffers if b.role == "out"}
        self.shapes = {b.id: b.shape for b in program.buffers}
        self.slides = {b.id: {n for low, high in b.window for p in (*low, *high) for n in p.names}
                       for b in program.buffers if b.window is not None}  # fmt: skip
        self.slid: set[str] = set()  # buffers whose windows slide along a loop that was taken out

    # -- expressions --------------------------------------------------------------------------------------------------

    def _substitute(self, poly: Poly) -> Poly:
        return poly.subs(self.numbers)

    def _fold(self, node: Expr) -> Expr:
        found: Expr | None = None
        if isinstance(node, Op):
            found = evaluate(node) or neutral(node)
        elif isinstance(node, Select):
            truth = _truth(node.cond)
            if truth is None or not self.steps.take(f"a branch whose condition is {print_expr(node.cond)}"):
                return node
            return node.then if truth else node.other
        elif isinstance(node, Ref):
            found = self.values.get(node.id)
        elif isinstance(node, Load) and node.buffer in self.arrays:
            value = self.arrays[node.buffer]
            found = value if _always(node, value) else None
        gone = isinstance(node, Ref) and node.id in self.gone
        if found is None or not (gone or self.steps.take(_short(node, found))):
            return node
        return replace(found, span=node.span) if isinstance(found, Const) else found

    # -- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(stmt, Let):
            self._learn(stmt.id, stmt.value)
        elif isinstance(stmt, Store):
            if not stmt.absorb:
                self._stored(stmt)
        else:
            return self._entered(stmt)
        return stmt

    def _learn(self, name: str, value: Expr) -> None:
        """A let with a known value: the value, and for an integer the number in polynomials."""
        if isinstance(value, Affine) and value.poly.is_const and I64.least <= value.poly.constant <= I64.greatest:
            value = Const(constant(value.poly.constant, I64), I64)
        if isinstance(value, Const):
            self.values[name] = value
            self._forget()
            if value.dtype.is_int:
                self.numbers[name] = int(to_number(value.bits, value.dtype))

    def _forget(self) -> None:
        """Drop the results for nodes met before something was learned, which may occur again."""
        self.memo.clear()
        self.known.clear()

    def _stored(self, store: Store) -> None:
        """A buffer of which all stores store one and the same constant."""
        seen = self.seen.setdefault(store.buffer, [])
        seen.append(store.value if isinstance(store.value, Const) and not any(store.modes) else None)
        first = seen[0]
        if len(seen) == self.stores[store.buffer] and first is not None and all(v == first for v in seen):
            self.arrays[store.buffer] = first
            self._forget()

    def _entered(self, loop: Loop) -> Stmt | tuple[Stmt, ...]:
        truth = _truth(loop.where)
        never = truth is False or any(_empty(lo - hi) for d in loop.dims for lo in d.lo for hi in d.hi)
        if never and self._removable(loop) and self.steps.take(f"a loop over {loop.dims[0].id} that never runs"):
            for buffer, count in _stores_of(loop.body).items():
                self.stores[buffer] -= count
                del self.seen[buffer][-count:]
            indices = {d.id for inner in (loop, *walk(loop.body)) if isinstance(inner, Loop) for d in inner.dims}
            touched = self.slides.keys() & (_stores_of(loop.body).keys() | _loads_of(loop.body).keys())
            self.slid |= {id for id in touched if self.slides[id] & indices}
            for acc in loop.accs:
                self._learn(acc.id, _start(acc))
                self.gone.add(acc.id)
            return ()
        if truth and self.steps.take(f"the condition of a loop over {loop.dims[0].id} always holds"):
            return replace(loop, where=None)
        return loop

    def _removable(self, loop: Loop) -> bool:
        """Whether nothing misses a loop that never runs: what it stores is stored elsewhere too, or never read."""
        if any(acc.shape for acc in loop.accs):
            return False
        mine = _stores_of(loop.body)
        inside = _loads_of(loop.body)
        for buffer, count in mine.items():
            others = self.stores[buffer] > count
            if not others and (buffer in self.needed or self.loads[buffer] > inside[buffer]):
                return False
        return True


def _short(node: Expr, found: Expr) -> str:
    """A step in words; only what is small is printed."""
    if not isinstance(node, Op) or all(map(is_const, node.args)):
        return f"{print_expr(node)} is {print_expr(found)}"
    constant = next((a for a in node.args if isinstance(a, Const)), None)
    if constant is None:
        return f"a comparison ({node.op}) that is {print_expr(found)}"
    return f"{node.op} with {print_expr(constant)}, which {'decides it' if found is constant else 'changes nothing'}"


def _empty(gap: Poly) -> bool:
    return gap.is_const and gap.constant >= 0


def _start(acc: Acc) -> Const:
    """What a scalar accumulator holds that absorbed nothing."""
    monoid = MONOIDS[acc.monoid]
    if monoid.positional:
        return Const(constant(NOWHERE, I64), I64)
    return Const(to_bits(monoid.identity(acc.dtype), acc.dtype), acc.dtype)


def _always(load: Load, value: Const) -> bool:
    """Whether a load of an array that holds one value everywhere gives this value, and reports nothing."""
    return all(m is None or (m.fill == value if m.kind == "constant" else m.kind != "checked") for m in load.modes)


def _loads(program: Program) -> Counter[str]:
    found: Counter[str] = Counter()
    for kernel in program.kernels:
        found += _loads_of(kernel.body)
    return found


def _stores_of(body: tuple[Stmt, ...]) -> Counter[str]:
    """How many statements store to each array."""
    return Counter(s.buffer for s in walk(body) if isinstance(s, Store) and not s.absorb)


def _loads_of(body: tuple[Stmt, ...]) -> Counter[str]:
    """How many statements load from each array."""
    found: Counter[str] = Counter()
    for stmt in walk(body):
        found.update(own(stmt).names.loads)
    return found
