"""The algebra of frozen weights: a factor for each channel behind a contraction moves into the weights.

`conv[n, o] = sum(x * w[o]); y = conv[n, o] * s[o] + t[o]` becomes `conv[n, o] = sum(x * w.1[o]); y = conv + t[o]` with
`w.1[o] = w[o] * s[o]`, computed once. It changes rounding, and is done only where no product of a weight with its
factor overflows or loses digits below the normal numbers. A bias between the two, `(conv[n, o] + b[o]) * s[o]`, is
scaled too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from loopfuse.ir import Affine, Buffer, Expr, Kernel, Load, Loop, Op, Program, Ref, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.passes.base import Array, Remark, Steps
from loopfuse.passes.freeze import Frozen
from loopfuse.rewrite import Fresh, Mapper, children, exprs, subexprs, walk, walk_program

SUM = "sum"
PRODUCT = next(name for name, row in OPS.items() if row.arithmetic == "product")


@dataclass(frozen=True, slots=True)
class Contraction:
    """A buffer that is a sum of products with frozen weights: the store, and the load of the weights.

    With `rest` it is a sum of two, a frozen bias (`weights`) and the rest, a load of a contraction.
    """

    store: Store
    weights: Load
    rest: Load | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """What every reader of a contraction multiplies it with: an array, and the axis of the contraction of each axis."""

    buffer: str
    axes: tuple[int, ...]


def scaled(state: Frozen, steps: Steps) -> Frozen:
    """Move factors into weights, as long as there is one to move."""
    done: set[str] = set()
    while True:
        found = next(_candidates(state, done), None)
        if found is None:
            return state
        made = _tried(state, *found, steps)
        if made is None:
            done.add(found[0].store.buffer)
        else:
            state = made


def _tried(state: Frozen, contraction: Contraction, factor: Factor, steps: Steps) -> Frozen | None:
    """The factor moved; through a bias only where it then moves on into the weights."""
    weights = _product(state, contraction, factor)
    if weights is None:
        return None
    if contraction.rest is None:
        if not steps.take(f"`{factor.buffer}` moves into `{contraction.weights.buffer}`"):
            return None
        return _moved(state, contraction, factor, weights)
    through = _moved(Frozen(state.program, dict(state.arrays), list(state.remarks)), contraction, factor, weights)
    for kernel in through.program.kernels:
        inner = _contraction(kernel, through.arrays)
        if inner is not None and inner.store.buffer == contraction.rest.buffer:
            beyond = _factor(through, inner)
            return _tried(through, inner, beyond, steps) if beyond is not None else None
    return None


def _candidates(state: Frozen, done: set[str]) -> Iterator[tuple[Contraction, Factor]]:
    temps = {b.id for b in state.program.buffers if b.role == "temp" and b.window is None}
    for kernel in state.program.kernels:
        contraction = _contraction(kernel, state.arrays) or _biased(kernel, state.arrays)
        if contraction is not None and contraction.store.buffer in temps - done:
            factor = _factor(state, contraction)
            if factor is not None:
                yield contraction, factor


# -- matching ---------------------------------------------------------------------------------------------------------


def _contraction(kernel: Kernel, arrays: dict[str, Array]) -> Contraction | None:
    """`par p: fold q: acc <- x * w[...]; buffer[p] = acc`."""
    match kernel.body:
        case (Loop(order="par", accs=(), where=None, body=(Loop(accs=(acc,)) as fold, Store(absorb=False) as store)),):
            if acc.monoid != SUM or acc.shape or not acc.dtype.is_float or acc.repair is not None:
                return None
            if store.value != Ref(acc.id, acc.dtype) or any(store.modes):
                return None
        case _:
            return None
    match fold.body:
        case (Store(absorb=True, value=Op(op=op, args=args)),) if op == PRODUCT:
            held = [a for a in args if isinstance(a, Load) and a.buffer in arrays]
            if len(held) == 1 and held[0].dtype == acc.dtype:
                return Contraction(store, held[0])
    return None


def _biased(kernel: Kernel, arrays: dict[str, Array]) -> Contraction | None:
    """`par p: buffer[p] = rest[...] + bias[...]`."""
    match kernel.body:
        case (
            Loop(order="par", accs=(), where=None, body=(Store(absorb=False, value=Op(op=op, args=args)) as store,)),
        ):
            if op != MONOIDS[SUM].op or any(store.modes) or not store.value.dtype.is_float:
                return None
        case _:
            return None
    bias = [a for a in args if isinstance(a, Load) and a.buffer in arrays]
    rest = [a for a in args if isinstance(a, Load) and a.buffer not in arrays]
    return Contraction(store, bias[0], rest[0]) if len(bias) == len(rest) == 1 else None


def _factor(state: Frozen, found: Contraction) -> Factor | None:
    """The factor that every reader of the contraction applies, if it is one."""
    id, result = found.store.buffer, None
    for stmt in walk_program(state.program):
        for root in exprs(stmt):
            for node in subexprs(root):
                loads = [c for c in children(node) if isinstance(c, Load) and c.buffer == id]
                if not loads:
                    continue
                factor = _applied(node, loads, state) if len(loads) == 1 else None
                if factor is None or result not in (None, factor):
                    return None
                result = factor
            if isinstance(root, Load) and root.buffer == id:
                return None
    return result if result is not None and _axes(found, result) else None


def _applied(node: Expr, loads: list[Load], state: Frozen) -> Factor | None:
    """The factor in `contraction * factor`, whose subscripts must be some of the contraction's."""
    if not isinstance(node, Op) or node.op != PRODUCT:
        return None
    load = loads[0]
    other = node.args[1] if node.args[0] is load else node.args[0]
    if not isinstance(other, Load) or other.buffer not in state.arrays or any(other.modes) or any(load.modes):
        return None
    axes = []
    for sub in other.subs:
        matching = [k for k, mine in enumerate(load.subs) if isinstance(mine, Affine) and mine == sub]
        if len(matching) != 1:
            return None
        axes.append(matching[0])
    return Factor(other.buffer, tuple(axes))


def _axes(found: Contraction, factor: Factor) -> tuple[int, ...] | None:
    """The axis of the weights that each axis of the factor runs along."""
    axes = []
    weights = [s.poly if isinstance(s, Affine) else None for s in found.weights.subs]
    for axis in factor.axes:
        sub = found.store.subs[axis]
        name = sub.poly.name if isinstance(sub, Affine) else None
        places = [k for k, p in enumerate(weights) if p is not None and name is not None and name in p.names]
        if len(places) != 1 or weights[places[0]].name != name or found.weights.modes[places[0]]:  # type: ignore[union-attr]
            return None
        axes.append(places[0])
    return tuple(axes) if len(set(axes)) == len(axes) else None


# -- moving -----------------------------------------------------------------------------------------------------------


def _product(state: Frozen, found: Contraction, factor: Factor) -> Array | None:
    """The weights times the factor; None where the shapes differ or digits would be lost."""
    weights, values = state.arrays[found.weights.buffer], state.arrays[factor.buffer]
    axes = _axes(found, factor)
    dtype = found.weights.dtype
    if (
        axes is None
        or values.dtype != weights.dtype
        or any(weights.shape[a] != n for a, n in zip(axes, values.shape, strict=True))
    ):
        return None
    order = np.argsort(axes)
    spread = np.transpose(values, order).reshape([n if a in axes else 1 for a, n in enumerate(weights.shape)])
    product = OPS[PRODUCT].evaluate((weights, spread), dtype)
    wide = np.abs(product.astype(np.float64))
    least = 2.0 ** (2 - (1 << (dtype.bits - dtype.mantissa - 1)))
    exact = (wide >= least) | (weights.astype(np.float64) == 0) | (spread.astype(np.float64) == 0)
    return product if bool(np.all(np.isfinite(wide) & exact)) else None


def _moved(state: Frozen, found: Contraction, factor: Factor, weights: Array) -> Frozen:
    """The program with the factor in the weights."""
    program, old = state.program, found.weights.buffer
    id = Fresh(program)(old)
    contraction = found.store.buffer

    def without(node: Expr) -> Expr:
        if isinstance(node, Op) and node.op == PRODUCT:
            for a, b in (node.args, node.args[::-1]):
                if (
                    isinstance(a, Load)
                    and a.buffer == contraction
                    and isinstance(b, Load)
                    and b.buffer == factor.buffer
                ):
                    return a
        return node

    def renamed(node: Expr) -> Expr:
        if found.rest is not None and node == found.rest:
            subs = tuple(found.store.subs[a] for a in factor.axes)
            return Op(PRODUCT, (node, Load(factor.buffer, subs, (None,) * len(subs), node.dtype)), node.dtype)
        return replace(node, buffer=id) if isinstance(node, Load) and node.buffer == old else node

    kernels = []
    for kernel in program.kernels:
        if any(isinstance(s, Store) and s.buffer == contraction for s in walk(kernel.body)):
            kernels.append(Mapper(renamed).on_kernel(kernel))
        else:
            kernels.append(Mapper(without).on_kernel(kernel))
    made = next(replace(b, id=id, role="frozen", range=None) for b in program.buffers if b.id == old)
    state.program = _declared(replace(program, kernels=tuple(kernels)), made, old)
    state.arrays[id] = weights
    state.remarks.append(Remark(f"the factor `{factor.buffer}` of `{contraction}` is multiplied into the frozen weights "
                                f"`{old}`: each product rounds once more, each result once less",
                                found.store.span, rounds=True))  # fmt: skip
    return state


def _declared(program: Program, made: Buffer, after: str) -> Program:
    """The program with one more buffer, declared after the one it comes from."""
    at = next(k for k, b in enumerate(program.buffers) if b.id == after) + 1
    return replace(program, buffers=(*program.buffers[:at], made, *program.buffers[at:]))
