"""Two evaluators that go element by element: one of typed programs, one of the loop IR.

They are slow and strict: a read outside an array, of an element not written, or outside a window is an error, and so is
a second write. Lazy operands that are not needed are not evaluated. Reductions are left folds, in both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loopfuse import ir
from loopfuse.dtypes import I64, DType
from loopfuse.frontend import typed
from loopfuse.ops import MONOIDS, NOWHERE, OPS, from_bits
from loopfuse.sizes import Poly

Env = dict[str, Any]
Cells = dict[tuple[int, ...], Any]


class Fault(Exception):
    """Something was done that a valid program does not do."""


class Machine:
    """Buffers, and the values of names."""

    def __init__(
        self, buffers: Sequence[ir.Buffer], inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> None:
        self.declared: dict[str, ir.Buffer | ir.Acc] = {b.id: b for b in buffers}
        self.cells: dict[str, Cells] = {b.id: {} for b in buffers}
        self.env: Env = dict(sizes)
        self.folds: dict[str, typed.Fold] = {}
        for id, array in inputs.items():
            if id in self.cells:
                self.cells[id] = {index: array[index] for index in np.ndindex(array.shape)}

    # -- expressions ----------------------------------------------------------------------------------------------

    def value(self, e: ir.Expr) -> Any:
        if isinstance(e, ir.Const):
            return from_bits(e.bits, e.dtype)
        if isinstance(e, ir.Affine):
            return np.int64(e.poly.value(self.env))
        if isinstance(e, ir.Ref):
            return self.fold(self.folds[e.id]) if e.id in self.folds else self.env[e.id]
        if isinstance(e, ir.Select):
            return self.value(e.then if self.value(e.cond) else e.other)
        if isinstance(e, ir.Load):
            return self.load(e)
        if e.op in ("and", "or"):
            left = self.value(e.args[0])
            return left if bool(left) == (e.op == "or") else self.value(e.args[1])
        return OPS[e.op].evaluate([self.value(a) for a in e.args], e.dtype)[()]

    def load(self, e: ir.Load) -> Any:
        at = []
        for sub, mode, extent in zip(e.subs, e.modes, self.declared[e.buffer].shape, strict=True):
            k, n = int(self.value(sub)), int(extent.value(self.env))
            if not 0 <= k < n and mode is not None:
                if mode.kind == "edge":
                    k = min(max(k, 0), n - 1)
                elif mode.kind == "wrap":
                    k %= n
                elif mode.kind in ("reflect", "symmetric"):
                    twice = mode.kind == "symmetric"
                    k %= max(2 * n - 2 * (not twice), 1)
                    k = min(k, 2 * n - 2 + twice - k)
                elif mode.kind == "checked":
                    return e.dtype.numpy.type(0)
                elif mode.fill is not None:
                    return self.value(mode.fill)
            at.append(k)
        index = tuple(at)
        self.inside(e.buffer, index)
        if index not in self.cells[e.buffer]:
            raise Fault(f"{e.buffer}{list(index)} is read and was not written")
        return self.cells[e.buffer][index]

    def inside(self, id: str, index: tuple[int, ...]) -> None:
        """Whether an element exists, now."""
        held = self.declared[id]
        for k, extent in zip(index, held.shape, strict=True):
            if not 0 <= k < extent.value(self.env):
                raise Fault(f"{id}{list(index)} does not exist")
        for k, (lows, highs) in zip(index, getattr(held, "window", None) or (), strict=False):
            bounds = (*lows, *highs)
            if all(n in self.env for p in bounds for n in p.names) and not (
                max(p.value(self.env) for p in lows) <= k < min(p.value(self.env) for p in highs)
            ):
                raise Fault(f"{id}{list(index)} is outside its window")

    # -- statements -----------------------------------------------------------------------------------------------

    def store(self, id: str, subs: Sequence[ir.Expr], value: Any, modes: Sequence[ir.Mode | None] = ()) -> None:
        index = tuple(int(self.value(s)) for s in subs)
        self.inside(id, index)
        if index in self.cells[id]:
            raise Fault(f"{id}{list(index)} is written twice")
        self.cells[id][index] = value

    def points(self, dims: Sequence[ir.Dim]) -> Iterator[None]:
        """Every iteration of a loop, its indices in the environment."""
        if not dims:
            yield
            return
        d, saved = dims[0], {k: v for k, v in self.env.items() if k == dims[0].id}
        lo, hi = max(p.value(self.env) for p in d.lo), min(p.value(self.env) for p in d.hi)
        for k in range(lo, hi, d.step.value(self.env)):
            self.env[d.id] = k
            yield from self.points(dims[1:])
        self.env.pop(d.id, None)
        self.env.update(saved)

    def fold(self, fold: typed.Fold) -> Any:
        """A reduction of a typed program, where it is needed."""
        if fold.guard is not None and not self.value(fold.guard):
            raise Fault(f"`{fold.id}` is needed where its guard is false")
        acc = Total(fold.monoid, fold.dtype)
        for name, e in fold.lets:
            self.env[name] = int(self.value(e))
        for _ in self.points(fold.dims):
            if fold.where is None or self.value(fold.where):
                acc.absorb(self.value(fold.value), None if fold.at is None else self.value(fold.at))
        return acc.result

    def result(self, id: str) -> np.ndarray:
        held = self.declared[id]
        shape = tuple(int(p.value(self.env)) for p in held.shape)
        found = np.zeros(shape, held.dtype.numpy)
        for index in np.ndindex(shape):
            if index not in self.cells[id]:
                raise Fault(f"{id}{list(index)} was never written")
            found[index] = self.cells[id][index]
        return found


class Total:
    """An accumulator."""

    def __init__(self, monoid: str, dtype: DType) -> None:
        self.row, self.dtype = MONOIDS[monoid], dtype
        identity = self.row.identity(dtype)
        self.state: tuple[Any, ...] = (identity, np.int64(NOWHERE)) if self.row.positional else (identity,)

    def absorb(self, value: Any, at: Any) -> None:
        state = (value, np.int64(at)) if self.row.positional else (value,)
        self.state = self.row.combine(self.state, state, self.dtype)

    @property
    def result(self) -> Any:
        return np.asarray(self.state[-1], (I64 if self.row.positional else self.dtype).numpy)[()]


def run_typed(p: typed.TypedProgram, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int],
              wanted: Sequence[str] | None = None) -> dict[str, np.ndarray]:  # fmt: skip
    """The outputs of a typed program by what its definitions say."""
    m = Machine(p.buffers, inputs, sizes)
    for stmt in p.body:
        _typed(m, stmt)
    return {id: m.result(id) for id in (wanted or [o.buffer for o in p.outputs])}


def _typed(m: Machine, stmt: typed.Stmt) -> None:
    if isinstance(stmt, typed.Scan):
        for _ in m.points((stmt.dim,)):
            for inner in stmt.body:
                _typed(m, inner)
        return
    folds = (*stmt.folds, *stmt.result_folds) if isinstance(stmt, typed.Scatter) else stmt.folds
    m.folds = {f.id: f for f in folds}
    if isinstance(stmt, typed.Define):
        for _ in m.points(stmt.dims):
            m.store(stmt.buffer, stmt.subs, m.value(stmt.value))
    elif isinstance(stmt, typed.Prefix):
        for _ in m.points(stmt.dims):
            acc = Total(stmt.monoid, stmt.dtype)
            for _ in m.points((stmt.axis,)):
                acc.absorb(m.value(stmt.value), None)
                m.env[stmt.acc] = acc.result
                m.store(stmt.buffer, stmt.subs, m.value(stmt.result))
    else:
        shape = tuple(d.hi[0] for d in stmt.out)
        totals = _totals(m, ir.Acc(stmt.acc, stmt.monoid, stmt.dtype, shape))
        for _ in m.points(stmt.dims):
            if stmt.where is None or m.value(stmt.where):
                for u in stmt.updates:
                    _absorb(m, totals, u.subs, m.value(u.value), None, u.modes)
        _finish(m, stmt.acc, totals)
        for _ in m.points(stmt.out):
            m.store(stmt.buffer, stmt.out_subs, m.value(stmt.result))
    m.folds = {}


def _totals(m: Machine, acc: ir.Acc) -> dict[tuple[int, ...], Total]:
    m.declared[acc.id] = acc
    shape = tuple(int(p.value(m.env)) for p in acc.shape)
    return {index: Total(acc.monoid, acc.dtype) for index in np.ndindex(shape)}


def _absorb(m: Machine, totals: dict[tuple[int, ...], Total], subs: Sequence[ir.Expr], value: Any, at: Any,
            modes: Sequence[ir.Mode | None]) -> None:  # fmt: skip
    index = tuple(int(m.value(s)) for s in subs)
    if index in totals:
        totals[index].absorb(value, at)
    elif not any(modes):
        raise Fault(f"an accumulator has no element {list(index)}")


def _finish(m: Machine, id: str, totals: dict[tuple[int, ...], Total]) -> None:
    m.cells[id] = {index: t.result for index, t in totals.items()}
    if () in totals:
        m.env[id] = totals[()].result


def run_ir(p: ir.Program, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The outputs of a program of the loop IR."""
    m = Machine(p.buffers, inputs, sizes)
    open_accs: dict[str, dict[tuple[int, ...], Total]] = {}

    def block(body: Sequence[ir.Stmt]) -> None:
        for stmt in body:
            run(stmt)

    def run(stmt: ir.Stmt) -> None:
        if isinstance(stmt, ir.Let):
            m.env[stmt.id] = m.value(stmt.value)
        elif isinstance(stmt, ir.Store):
            at = None if stmt.at is None else m.value(stmt.at)
            if stmt.absorb:
                _absorb(m, open_accs[stmt.buffer], stmt.subs, m.value(stmt.value), at, stmt.modes)
                if stmt.buffer in running:
                    m.env[stmt.buffer] = open_accs[stmt.buffer][()].result
            else:
                m.store(stmt.buffer, stmt.subs, m.value(stmt.value))
        else:
            loop(stmt)

    def loop(stmt: ir.Loop) -> None:
        for acc in stmt.accs:
            open_accs[acc.id] = _totals(m, acc)
            m.env.pop(acc.id, None)
            if stmt.order == "prefix":
                running.add(acc.id)
        for _ in m.points(stmt.dims):
            if stmt.where is None or m.value(stmt.where):
                block(stmt.body)
        for acc in stmt.accs:
            _finish(m, acc.id, open_accs.pop(acc.id))

    running: set[str] = set()
    for kernel in p.kernels:
        block(kernel.body)
    return {b.id: m.result(b.id) for b in p.buffers if b.role == "out"}


def arrays(buffers: Sequence[ir.Buffer], sizes: Mapping[str, int], make: Callable[[tuple[int, ...], DType], np.ndarray],
           ) -> dict[str, np.ndarray]:  # fmt: skip
    """An array for every input."""
    found = {}
    for b in buffers:
        if b.role in ("in", "param"):
            found[b.id] = make(tuple(int(p.value(sizes)) for p in b.shape), b.dtype)
    return found


__all__ = ["Fault", "Poly", "arrays", "run_ir", "run_typed"]
