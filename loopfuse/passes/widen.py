"""Widening: f16 and bf16 values inside a kernel stay in f32 between the roundings that were declared.

An operation at a 16-bit type is an operation in f32 and a rounding; so is a conversion that the user did not write.
Where such a value does not leave its kernel the rounding is dropped: casts there and back go, and lets, local buffers
and accumulators hold f32. What is stored in device memory keeps its type and is rounded once, at the store. A cast that
the user wrote always rounds. In subscripts, and where bits are read, every rounding stays.

Needs: any valid program, after contraction (what is local is then known). Promises: nothing changes under `numerics
strict`; elsewhere results differ by no more than the roundings that were dropped, and a remark says how many and where.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from loopfuse.diag import Span
from loopfuse.dtypes import F32, DType
from loopfuse.ir import Acc, Buffer, Const, Expr, Kernel, Let, Load, Loop, Mode, Op, Program, Ref, Select, Stmt, Store
from loopfuse.ops import OPS, constant, to_number
from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps, steps
from loopfuse.passes.simplify import propagate
from loopfuse.rewrite import Memo, children, exprs, map_expr, own, rebuild, subexprs, walk


def widen(program: Program, options: Options) -> Outcome:
    """Drop the implied roundings inside every kernel, and the names of values that are not rounded any more."""
    if program.numerics == "strict":
        return Outcome(program)
    counter = steps(options, "widen")
    buffers = {b.id: b for b in program.buffers}
    kernels: list[Kernel] = []
    remarks: list[Remark] = []
    for kernel in program.kernels:
        work = _Kernel(kernel, buffers)
        made = work.rewritten()
        dropped = roundings(kernel.body) - roundings(made.body)
        if made is kernel or dropped <= 0:
            kernels.append(kernel)
            continue
        what = f"{dropped} implied {'rounding' if dropped == 1 else 'roundings'} dropped in {_listed(work.named)}"
        if not counter.take(what):
            kernels.append(kernel)
            continue
        remarks.append(Remark(what, work.span, rounds=True))
        kernels.append(made)
        buffers.update({id: replace(buffers[id], dtype=F32) for id in work.wide if id in buffers})
    if not remarks:
        return Outcome(program)
    table = tuple(buffers[b.id] for b in program.buffers)
    made_program, _ = propagate(replace(program, kernels=tuple(kernels), buffers=table), Steps())
    return Outcome(made_program, tuple(remarks))


PASS = Pass("widen", "f16 and bf16 values inside a kernel stay in f32 where the rounding was implied.", widen, True)


def is_half(dtype: DType) -> bool:
    """f16 or bf16."""
    return dtype.is_float and dtype.bits == 16


def _rounds(node: Expr) -> bool:
    """Whether a value of a 16-bit type is made by an operation that rounds, or by an implied cast."""
    if not isinstance(node, Op) or not is_half(node.dtype):
        return False
    if OPS[node.op].gives == "explicit":
        return node.implied and node.args[0].dtype.kind != "bool"
    return _inexact(node.op, node.dtype)


@cache
def _inexact(op: str, dtype: DType) -> bool:
    """Whether an operation rounds at a type."""
    return OPS[op].ulp(dtype) > 0


def roundings(body: Iterable[Stmt]) -> int:
    """How many roundings to 16 bits that nobody declared are written in some statements."""
    return sum(_rounds(node) for stmt in walk(body) for node in own(stmt).nodes)


def _listed(names: list[str]) -> str:
    """Some names, the first few of many."""
    shown = [f"`{n}`" for n in dict.fromkeys(names)]
    more = len(shown) - 6
    return ", ".join(shown[:6]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class _Value:
    """What an expression becomes: at its own type, and for a 16-bit one in f32; `gain`: f32 drops a rounding."""

    kept: Expr
    wide: Expr | None = None
    gain: bool = False


@dataclass
class _Kernel:
    """The rewriting of one kernel. `wide` are the lets, accumulators and local buffers that hold f32."""

    kernel: Kernel
    buffers: dict[str, Buffer]
    wide: set[str] = field(default_factory=set)
    named: list[str] = field(default_factory=list)
    span: Span | None = None

    def rewritten(self) -> Kernel:
        """The kernel with what is widened found first: every definition that gains, and what these make gain."""
        self.used = self._used()
        self.local = {id for id, b in self.buffers.items() if b.scope == "local" and b.role == "temp"}
        self.accs = {a.id: a for s in walk(self.kernel.body) if isinstance(s, Loop) for a in s.accs}
        if not any(roundings([s]) for s in self.kernel.body):
            return self.kernel
        known = -1
        while known < len(self.wide):
            known = len(self.wide)
            self.memo: dict[int, tuple[Expr, _Value]] = {}
            for stmt in walk(self.kernel.body):
                self._learn(stmt)
        self.memo = {}
        body = self._body(self.kernel.body)
        return self.kernel if body is self.kernel.body else replace(self.kernel, body=body)

    def _used(self) -> set[str]:
        """The ids of values that are used other than to be stored as they are."""
        found: set[str] = set()
        for stmt in walk(self.kernel.body):
            roots = list(exprs(stmt))
            if isinstance(stmt, Store) and not stmt.absorb and isinstance(stmt.value, Ref):
                roots = [r for r in roots if r is not stmt.value]
            for node in subexprs(*roots):
                if isinstance(node, Ref):
                    found.add(node.id)
        return found

    # -- what is widened ----------------------------------------------------------------------------------------------

    def _learn(self, stmt: Stmt) -> None:
        if isinstance(stmt, Let):
            if is_half(stmt.value.dtype) and stmt.id in self.used and self.value(stmt.value).gain:
                self.wide.add(stmt.id)
        elif isinstance(stmt, Store):
            held = self.accs.get(stmt.buffer) if stmt.absorb else self.buffers.get(stmt.buffer)
            inside = stmt.absorb or stmt.buffer in self.local
            if held is not None and inside and is_half(held.dtype) and self.value(stmt.value).gain:
                self.wide.add(stmt.buffer)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        made = tuple(self._stmt(s) for s in body)
        return body if all(a is b for a, b in zip(made, body, strict=True)) else made

    def _stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Loop):
            inner = self._body(stmt.body)
            accs = tuple(self._acc(a) for a in stmt.accs)
            where = None if stmt.where is None else self.exact(stmt.where)
            same = all(a is b for a, b in zip(accs, stmt.accs, strict=True))
            if inner is stmt.body and same and where is stmt.where:
                return stmt
            return replace(stmt, body=inner, accs=accs, where=where)
        name = stmt.id if isinstance(stmt, Let) else stmt.buffer
        value = self._stored(name, stmt.value)
        if isinstance(stmt, Let):
            made: Stmt = stmt if value is stmt.value else replace(stmt, value=value)
        else:
            subs = tuple(self.exact(s) for s in stmt.subs)
            at = None if stmt.at is None else self.exact(stmt.at)
            same = value is stmt.value and at is stmt.at and all(a is b for a, b in zip(subs, stmt.subs, strict=True))
            made = stmt if same else replace(stmt, subs=subs, value=value, at=at)
        if made is not stmt and roundings([stmt]) > roundings([made]):
            self.named.append(name)
            self.span = self.span or stmt.span
        return made

    def _stored(self, name: str, value: Expr) -> Expr:
        """A value as what holds it wants it."""
        found = self.value(value)
        return found.wide if name in self.wide and found.wide is not None else found.kept

    def _acc(self, acc: Acc) -> Acc:
        if acc.repair is None:
            return replace(acc, dtype=F32) if acc.id in self.wide else acc
        if acc.id in self.wide:
            self.wide.add("self")
        self.memo = {}
        value = self.value(acc.repair)
        self.wide.discard("self")
        self.memo = {}
        if acc.id in self.wide and value.wide is not None:
            return replace(acc, dtype=F32, repair=value.wide)
        return acc if value.kept is acc.repair else replace(acc, repair=value.kept)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _is_wide(self, id: str) -> bool:
        stem = id.removesuffix(".old").removesuffix(".new")
        return id in self.wide or (stem != id and stem in self.wide)

    def exact(self, root: Expr) -> Expr:
        """The expression with every rounding kept: names that are widened are rounded where they are read."""
        memo: Memo = {}
        return map_expr(root, self._leaf, memo)

    def _leaf(self, node: Expr) -> Expr:
        wide = self._wide_leaf(node, children(node))
        return node if wide is None else _narrow(wide, node)

    def _wide_leaf(self, node: Expr, operands: tuple[Expr, ...]) -> Expr | None:
        """A load or name that holds f32 now, or None."""
        if not is_half(node.dtype):
            return None
        if isinstance(node, Ref) and self._is_wide(node.id):
            return replace(node, dtype=F32)
        if isinstance(node, Load) and node.buffer in self.wide:
            return Load(node.buffer, operands, tuple(map(_wide_mode, node.modes)), F32, span=node.span)
        return None

    def value(self, root: Expr) -> _Value:
        """What an expression becomes."""
        for node in subexprs(root):
            if id(node) not in self.memo:
                self.memo[id(node)] = (node, self._node(node))
        return self.memo[id(root)][1]

    def _node(self, node: Expr) -> _Value:
        if isinstance(node, Load):
            subs = tuple(self.exact(s) for s in node.subs)
            wide = self._wide_leaf(node, subs)
            return _Value(_narrow(wide, node), wide, True) if wide is not None else _plain(rebuild(node, subs))
        if isinstance(node, Ref):
            wide = self._wide_leaf(node, ())
            return _Value(_narrow(wide, node), wide, True) if wide is not None else _plain(node)
        operands = tuple(self.memo[id(c)][1] for c in children(node))
        if not operands:
            return _plain(node)
        if isinstance(node, Op):
            return self._op(node, operands)
        assert isinstance(node, Select)
        return _joined(node, operands)

    def _op(self, node: Op, operands: tuple[_Value, ...]) -> _Value:
        if OPS[node.op].gives != "explicit":
            return _joined(node, operands)
        same = rebuild(node, tuple(v.kept for v in operands))
        if OPS[node.op].slope is None:  # the bits are read: they must be those of the type
            return _plain(same)
        (value,) = operands
        source = value.wide if value.gain and value.wide is not None else value.kept
        if is_half(node.dtype):
            made = rebuild(node, (source,))
            if not node.implied:
                return _plain(made)
            wide = source if source.dtype == F32 else Op("cast", (source,), F32, True, span=node.span)
            return _Value(made, wide, True)
        if source.dtype == node.dtype:
            return _Value(source)
        return _Value(rebuild(node, (source,)))


def _joined(node: Op | Select, operands: tuple[_Value, ...]) -> _Value:
    """An operation or a choice: in f32 where an operand gains by it, or its own rounding may go."""
    same = rebuild(node, tuple(v.kept for v in operands))
    inside = any(v.gain for v in operands)
    if not is_half(node.dtype):
        if not inside:
            return _Value(same)
        return _Value(rebuild(node, tuple(v.kept if v.wide is None else v.wide for v in operands)))
    args = tuple(v.kept if v.wide is None else v.wide for v in operands)
    if isinstance(node, Op):
        wide: Expr = Op(node.op, args, F32, span=node.span)
    else:
        wide = Select(args[0], args[1], args[2], span=node.span)
    return _Value(_narrow(wide, node) if inside else same, wide, inside or _rounds(node))


def _plain(node: Expr) -> _Value:
    """A value that nothing is gained by widening."""
    if not is_half(node.dtype):
        return _Value(node)
    if isinstance(node, Const):
        return _Value(node, _wide_const(node))
    return _Value(node, Op("cast", (node,), F32, True, span=node.span))


def _wide_const(const: Const) -> Const:
    """A 16-bit constant in f32, exactly."""
    return Const(constant(to_number(const.bits, const.dtype), F32), F32, span=const.span)


def _wide_mode(mode: Mode | None) -> Mode | None:
    return mode if mode is None or mode.fill is None else replace(mode, fill=_wide_const(mode.fill))


def _narrow(wide: Expr, like: Expr) -> Expr:
    """A value in f32 rounded to the type of `like`, where nobody asked for it in words."""
    return Op("cast", (wide,), like.dtype, True, span=like.span)
