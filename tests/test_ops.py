"""Every claim of every row of the op table, at every element type, on values made to break wrong claims.

The laws are tested both ways: a claimed law has no counterexample among the samples, and a law that is not claimed has
one, so that the table says all that is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_samples import ALL_DTYPES, FLOAT_DTYPES, INT_DTYPES, anything, every16, few, is_nan, nasty, run, same, ulps

from loopfuse import ops
from loopfuse.diag import CompilerError
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I64, U16, U64, DType
from loopfuse.numerics import Array
from loopfuse.oprow import OpRow

ROWS = tuple(ops.OPS.values())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The tests' own arithmetic overflows at will; what the table evaluates is watched by a test below."""
    with np.errstate(all="ignore"):
        yield


BINARY = tuple(r for r in ROWS if r.arity == 2 and r.operands == "common")
UNARY = tuple(r for r in ROWS if r.arity == 1 and r.gives == "same")
REAL = tuple(r for r in ROWS if r.gives == "same" and "float" in r.kinds)


def claims(rows: tuple[OpRow, ...]) -> Any:
    """Each row at each type that it accepts."""
    return pytest.mark.parametrize(
        ("row", "dtype"),
        [pytest.param(r, d, id=f"{r.name}-{d}") for r in rows for d in ALL_DTYPES if d.kind in r.kinds],
    )


def named(rows: Any) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda r: r.name)


def operand_types(row: OpRow, dtype: DType) -> tuple[DType, ...]:
    return tuple(BOOL if row.operands == "cond" and n == 0 else dtype for n in range(row.arity))


def grid(row: OpRow, dtype: DType) -> tuple[Array, ...]:
    """Every combination of sample values, as arrays that broadcast."""
    pick = few if row.arity == 3 else nasty
    values = [pick(d) for d in operand_types(row, dtype)]
    return tuple(v.reshape([-1 if n == k else 1 for k in range(row.arity)]) for n, v in enumerate(values))


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_language_has_these_functions_and_symbols() -> None:
    functions = """abs sign floor ceil round trunc sqrt rsqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin
        acos atan atan2 sinh cosh tanh erf erfc sigmoid minimum maximum clip where isnan isinf isfinite fma copysign
        logaddexp popcount bits"""
    assert set(ops.FUNCTIONS) == set(functions.split())
    symbols = "+ - * / // % ** < <= > >= == != & | ^ << >> and or"
    assert set(ops.INFIX) == set(symbols.split())
    assert set(ops.PREFIX) == {"-", "~", "not"}
    assert all(name == row.name for name, row in ops.OPS.items())


def test_precedence_is_that_of_the_language() -> None:
    levels = ["or", "and", "not", "< <= > >= == !=", "|", "^", "&", "<< >>", "+ -", "* / // %", "~", "**"]
    for level, symbols in enumerate(levels, start=2):
        for symbol in symbols.split():
            row = ops.INFIX.get(symbol) or ops.PREFIX[symbol]
            assert row.precedence == level, symbol
    assert ops.PREFIX["-"].precedence == ops.PREFIX["~"].precedence


@named(ROWS)
def test_names_in_a_row_exist(row: OpRow) -> None:
    names = [row.inverse, row.swapped, row.complement and row.complement[0], *(n for n, _ in row.laws.distributes)]
    for h in row.homomorphisms:
        names += [h.source, h.image, h.undo_source, h.undo_image]
    assert {n for n in names if n} <= set(ops.OPS)
    assert row.doc.endswith(".") and "\n" not in row.doc
    assert len(row.domain) >= row.arity and row.flops >= 0 and row.special >= 0
    assert (row.infix is None and row.prefix is None) == (row.precedence is None)


# -- types ------------------------------------------------------------------------------------------------------------


@named(ROWS)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_result_type(row: OpRow, dtype: DType) -> None:
    types = operand_types(row, dtype)
    if row.gives == "explicit":
        with pytest.raises(CompilerError):
            row.result(types)
        return
    if dtype.kind not in row.kinds:
        with pytest.raises(CompilerError):
            row.result(types)
        return
    result = row.result(types)
    assert result == (BOOL if row.gives == "bool" else dtype)
    assert row.problem(types, result) is None
    assert row.problem(types, U16 if result != U16 else BOOL)
    assert row.problem((*types, dtype), result)
    found = row.evaluate(grid(row, dtype), result)
    assert found.dtype == result.numpy
    single = row.evaluate([np.asarray(a.ravel()[0]) for a in grid(row, dtype)], result)
    assert single.shape == () and single.dtype == result.numpy
    assert same(single, found.ravel()[0:1]).all()


def test_operands_of_different_types_are_refused() -> None:
    assert ops.OPS["add"].problem((F32, F64), F64)
    assert ops.OPS["shl"].problem((I64, U16), I64)
    assert ops.OPS["where"].problem((F32, F32, F32), F32)
    assert ops.OPS["where"].problem((BOOL, F32, F32), F32) is None
    assert ops.OPS["bits"].problem((F32,), F64) and ops.OPS["bits"].problem((BOOL,), BOOL)
    assert ops.OPS["bits"].problem((F16,), U16) is None
    assert ops.OPS["cast"].problem((BOOL,), F16) is None


@named([r for r in ROWS if r.gives != "explicit"])
def test_the_shape_is_the_broadcast(row: OpRow) -> None:
    dtype = next(d for d in (F32, BOOL, I64) if d.kind in row.kinds)
    shapes = [(3, 1), (1, 2), ()][: row.arity]
    values = [np.ones(s, dtype=d.numpy) for s, d in zip(shapes, operand_types(row, dtype), strict=True)]
    assert run(row.name, *values).shape == np.broadcast_shapes(*shapes)


@claims(ROWS)
def test_nothing_warns(row: OpRow, dtype: DType) -> None:
    result = dtype if row.gives == "explicit" else row.result(operand_types(row, dtype))
    args = [np.concatenate([nasty(d), anything(d, 200, 9)]) for d in operand_types(row, dtype)]
    args = [a.reshape([-1 if n == k else 1 for k in range(row.arity)]) for n, a in enumerate(args)]
    if row.arity == 3:
        args = [
            a.ravel()[:: len(args[0]) // 20].reshape([-1 if n == k else 1 for k in range(3)])
            for n, a in enumerate(args)
        ]
    with np.errstate(all="raise"):
        found = row.evaluate(args, result)
        if dtype == F64 and row.slope:
            row.slopes(args, found)
            row.rounding(args, found, F32, "fast")


# -- laws -------------------------------------------------------------------------------------------------------------


@claims(BINARY)
def test_commutative(row: OpRow, dtype: DType) -> None:
    x = nasty(dtype)
    holds = same(run(row.name, x[:, None], x[None]), run(row.name, x[None], x[:, None])).all()
    assert holds == row.law("commutative", dtype)


@claims(tuple(r for r in BINARY if r.gives == "same" or r.name in ("eq", "ne")))
def test_associative(row: OpRow, dtype: DType) -> None:
    if row.gives == "bool" and dtype != BOOL:
        assert not row.law("associative", dtype)
        return
    v = few(dtype)
    x, y, z = v[:, None, None], v[None, :, None], v[None, None]
    left, right = run(row.name, run(row.name, x, y), z), run(row.name, x, run(row.name, y, z))
    assert same(left, right).all() == row.law("associative", dtype)


@claims(tuple(r for r in BINARY if r.gives == "same"))
def test_idempotent_identity_and_absorbing(row: OpRow, dtype: DType) -> None:
    x = nasty(dtype)
    assert same(run(row.name, x, x), x).all() == row.law("idempotent", dtype)
    table = run(row.name, x[:, None], x[None])
    neutral = x[same(table, x[:, None]).all(axis=0)]
    absorbs = x[same(table, x[None]).all(axis=0) & ~is_nan(x)]
    for name, found in (("identity", neutral), ("absorbing", absorbs)):
        claimed = row.value(name, dtype)
        assert (claimed is None) == (found.size == 0)
        if claimed is not None:
            assert found.size == 1 and same(found[0:1], np.asarray(claimed)).all()
            if row.law("commutative", dtype):
                flipped = run(row.name, np.asarray(claimed), x)
                assert same(flipped, x if name == "identity" else np.asarray(claimed)).all()


@claims(BINARY)
def test_cancels(row: OpRow, dtype: DType) -> None:
    found = run(row.name, nasty(dtype), nasty(dtype))
    claimed = row.value("cancels", dtype)
    assert same(found, found[:1]).all() == (claimed is not None)
    if claimed is not None:
        assert same(found, np.asarray(claimed)).all()


@claims(UNARY)
def test_unary_idempotent_and_involution(row: OpRow, dtype: DType) -> None:
    x = nasty(dtype)
    once = run(row.name, x)
    twice = run(row.name, once)
    assert same(twice, once).all() == row.law("idempotent", dtype)
    assert same(twice, x).all() == row.law("involution", dtype)


@claims(tuple(r for r in BINARY if r.laws.distributes))
def test_distributes(row: OpRow, dtype: DType) -> None:
    v = few(dtype)
    x, y, z = v[:, None, None], v[None, :, None], v[None, None]
    for other, _ in row.laws.distributes:
        if dtype.kind not in ops.OPS[other].kinds:
            continue
        left = run(row.name, x, run(other, y, z))
        right = run(other, run(row.name, x, y), run(row.name, x, z))
        assert same(left, right).all() == row.distributes_over(other, dtype)


@claims(tuple(r for r in ROWS if r.complement))
def test_complement_and_swapped(row: OpRow, dtype: DType) -> None:
    assert row.complement and row.swapped
    x, y = nasty(dtype)[:, None], nasty(dtype)[None]
    found = run(row.name, x, y)
    other, kinds = row.complement
    assert (found == ~run(other, x, y)).all() == (dtype.kind in kinds)
    assert (found == run(row.swapped, y, x)).all()


def test_a_law_of_floats_is_no_law_of_f32_sums() -> None:
    """Without 2^24 among the samples f32 addition passes as associative."""
    x = np.float32(2**24)
    one = np.float32(1)
    assert (x + one) + one != x + (one + one)
    assert not ops.OPS["add"].law("associative", F32)


# -- algebra ----------------------------------------------------------------------------------------------------------


def in_domain(row: OpRow, operand: int, count: int, seed: int = 0) -> Array:
    low, high = row.domain[operand]
    return np.random.default_rng(seed).uniform(low, high, count)


def close(a: Array, b: Array, tolerance: float = 1e-11) -> Any:
    return np.abs(a - b) <= tolerance * (1.0 + np.abs(a) + np.abs(b))


@claims(tuple(r for r in ROWS if r.homomorphisms))
def test_homomorphisms(row: OpRow, dtype: DType) -> None:
    for h in row.homomorphisms:
        if dtype.kind not in h.kinds or (dtype.is_float and dtype != F64):
            continue
        if dtype == F64:
            x, y = in_domain(row, 0, 500, 1), in_domain(row, 0, 500, 2)
        else:
            x, y = (v.ravel() for v in np.broadcast_arrays(nasty(dtype)[:, None], nasty(dtype)[None]))
        pairs = [(h.source, h.image)] + ([(h.undo_source, h.undo_image)] if h.undo_source and h.undo_image else [])
        for source, image in pairs:
            left = run(row.name, run(source, x, y))
            right = run(image, run(row.name, x), run(row.name, y))
            assert (close(left, right) if dtype == F64 else same(left, right)).all()


@named([r for r in ROWS if any(h.pole is not None for h in r.homomorphisms)])
def test_at_the_pole_the_image_has_no_inverse(row: OpRow) -> None:
    for h in row.homomorphisms:
        assert h.undo_image is not None
        image = run(row.name, np.asarray(h.pole))
        assert is_nan(run(h.undo_image, image, image))


@named([r for r in ROWS if r.inverse])
def test_inverse(row: OpRow) -> None:
    assert row.inverse
    if "float" in row.kinds:
        x = in_domain(row, 0, 500)
        assert close(run(row.inverse, run(row.name, x)), x).all()
    for dtype in ALL_DTYPES:
        if dtype.kind in row.kinds and not dtype.is_float:
            assert same(run(row.inverse, run(row.name, nasty(dtype))), nasty(dtype)).all()


# -- errors -----------------------------------------------------------------------------------------------------------


@named(REAL)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_rounding_covers_the_reference(row: OpRow, dtype: DType) -> None:
    """The reference at a type against the same operation in f64, in the units that the row promises."""
    args = [
        np.broadcast_to(a, np.broadcast_shapes(*(g.shape for g in grid(row, dtype)))).ravel() for a in grid(row, dtype)
    ]
    wild = [anything(d, 3000, n) for n, d in enumerate(operand_types(row, dtype))]
    with np.errstate(over="ignore"):
        calm = [in_domain(row, n, 3000, n).astype(d.numpy) for n, d in enumerate(operand_types(row, dtype))]
    args = [np.concatenate(parts) for parts in zip(args, wild, calm, strict=True)]
    found = row.evaluate(args, dtype)
    wide = [a if a.dtype == bool else a.astype(np.float64) for a in args]
    exact = row.evaluate(wide, F64)
    if row.name == "sign" or row.ulp(dtype) == 0:
        assert same(found.astype(np.float64), exact).all()
        return
    error = ulps(found, exact, dtype)
    size = row.scale(*wide, exact) if row.scale else exact
    with np.errstate(invalid="ignore"):
        unit = np.fmax(ops.spacing(np.abs(size), dtype) / ops.spacing(np.abs(exact), dtype), 1.0)
    assert (error <= row.ulp(dtype) * unit).all()
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(exact) & np.isfinite(found.astype(np.float64))
        distance = np.abs(found.astype(np.float64) - exact)[finite]
    for mode in ("strict", "default", "fast"):
        bound = np.broadcast_to(row.rounding(wide, exact, dtype, mode), exact.shape)
        assert (distance <= bound[finite]).all()


@named(REAL)
def test_an_operation_that_does_not_round_is_exact(row: OpRow) -> None:
    bounds = {d: row.ulp(d) for d in FLOAT_DTYPES}
    assert (bounds[F32] == 0) == (bounds[F64] == 0) == (bounds[F16] == 0)
    assert row.ulp(I64) == 0
    for dtype in (F16, BF16):
        assert bounds[dtype] == 0 or 0.5 < bounds[dtype] < 0.51
    assert all(row.ulp(d, "strict") <= row.ulp(d, "fast") for d in FLOAT_DTYPES)


def test_spacing() -> None:
    for dtype in (F16, F32, F64):
        x = np.abs(nasty(dtype))
        x = x[np.isfinite(x) & (x < x.dtype.type(ops.greatest(dtype)))]
        assert (ops.spacing(x.astype(np.float64), dtype) == np.spacing(x)).all()
    assert ops.spacing(np.asarray(1.0), BF16) == 2.0**-7
    assert ops.spacing(np.asarray(0.0), BF16) == 2.0**-133


@named([r for r in REAL if r.slope])
def test_slopes_are_the_derivatives(row: OpRow) -> None:
    """Central differences in f64, away from jumps; minimum, maximum and clip promise a bound only."""
    args = [in_domain(row, n, 400, n + 7) * 0.9 for n in range(row.arity)]
    if row.operands == "cond":
        args[0] = args[0] > 0
    result = row.evaluate(args, F64)
    slopes = row.slopes(args, result)
    assert len(slopes) == row.arity and all(s.shape == result.shape and (s >= 0).all() for s in slopes)
    for n in range(row.arity):
        if args[n].dtype == bool:
            assert (slopes[n] == 0).all()
            continue
        step = 1e-6 * np.maximum(np.abs(args[n]), 1e-3)
        up, down = ([*args[:n], args[n] + s, *args[n + 1 :]] for s in (step, -step))
        measured = np.abs(row.evaluate(up, F64) - row.evaluate(down, F64)) / (2 * step)
        smooth = measured * step < 0.4 if row.switches else np.full(result.shape, True)
        tolerance = 1e-4 * (slopes[n] + np.abs(result) / np.maximum(np.abs(args[n]), 1e-3)) + 1e-9
        assert (measured <= slopes[n] + tolerance)[smooth].all()
        if row.name not in ("minimum", "maximum", "clip"):
            assert (measured >= slopes[n] - tolerance)[smooth].mean() > 0.98


@named(ROWS)
def test_switches_jump_and_others_do_not(row: OpRow) -> None:
    if "float" not in row.kinds or row.gives == "explicit":
        return
    types = operand_types(row, F64)
    points = [np.concatenate([np.linspace(-4, 4, 801), in_domain(row, n, 400, n)]) for n in range(row.arity)]
    for n in range(row.arity):
        if row.operands == "cond" and n == 0:
            continue
        others = [np.asarray(v) for v in (1.5, -2.0, 0.75)]
        worst = 0.0
        for k in range(3):
            args: list[Array] = [points[m] if m == n else others[(k + m) % 3] for m in range(row.arity)]
            if row.operands == "cond":
                args[0] = np.asarray(k > 0)
            near = [a + 1e-12 if m == n else a for m, a in enumerate(args)]
            result = row.result(types)
            a, b = (row.evaluate(v, result).astype(np.float64) for v in (args, near))
            with np.errstate(invalid="ignore"):
                change = np.abs(a - b) / (1.0 + np.abs(a))
            worst = max(worst, float(np.max(change[np.isfinite(change)], initial=0.0)))
        if not row.switches and row.name not in ("div", "tan", "pow", "rsqrt", "log", "sqrt", "cbrt"):
            assert worst < 1e-4, (row.name, n)
    assert row.jumps(F32, row.result(tuple(operand_types(row, F32)))) == row.switches


def test_only_floats_jump() -> None:
    cast = ops.OPS["cast"]
    assert cast.jumps(F32, I64) and cast.jumps(F64, BOOL)
    assert not cast.jumps(F64, F16) and not cast.jumps(I64, F16)
    assert not ops.OPS["floordiv"].jumps(I64, I64) and ops.OPS["floordiv"].jumps(F32, F32)
    jumping = "floor ceil round trunc sign floordiv mod eq ne lt le gt ge isnan copysign"
    for name in jumping.split():
        assert ops.OPS[name].switches


# -- agreement with itself --------------------------------------------------------------------------------------------


@named(REAL)
def test_layout_does_not_change_the_bits(row: OpRow) -> None:
    """Contiguous, strided, in pieces and one by one: fusion changes layouts, and may not change results."""
    for dtype in (F32, F64):
        types = operand_types(row, dtype)
        args = [in_domain(row, n, 67, n + 3).astype(d.numpy) for n, d in enumerate(types)]
        whole = row.evaluate(args, dtype)
        strided = row.evaluate([np.repeat(a, 3)[::3] for a in args], dtype)
        single = np.array([row.evaluate([np.asarray(a[n]) for a in args], dtype) for n in range(67)])
        pieces = np.concatenate([row.evaluate([a[s] for a in args], dtype) for s in (slice(0, 5), slice(5, 67))])
        assert all(same(whole, other).all() for other in (strided, single, pieces))


@named([r for r in ROWS if r.arity == 1 and r.gives != "explicit" and "float" in r.kinds])
def test_every_16_bit_number(row: OpRow) -> None:
    """All 65536 patterns: a result, the right NaNs, and nothing to warn of."""
    for dtype in (F16, BF16):
        x = every16(dtype)
        found = row.evaluate((x,), row.result((dtype,)))
        wide = row.evaluate((x.astype(np.float64),), row.result((F64,)))
        if row.gives == "bool":
            assert (found == wide).all()
        else:
            assert (is_nan(found) == is_nan(wide)).all()
            assert (np.signbit(found.astype(np.float64)) == np.signbit(wide))[~is_nan(wide)].all()


# -- monoids ----------------------------------------------------------------------------------------------------------

MONOIDS = tuple(ops.MONOIDS.values())
MONOID_CLAIMS = [(m, d) for m in MONOIDS for d in ALL_DTYPES if d.kind in m.kinds and m.accumulator(d) == d]


def state(m: ops.Monoid, values: Array, at: Any) -> ops.State:
    return (values, np.broadcast_to(np.asarray(at, dtype=np.int64), values.shape)) if m.positional else (values,)


def agree(a: ops.State, b: ops.State) -> bool:
    return all(bool(same(*np.broadcast_arrays(x, y)).all()) for x, y in zip(a, b, strict=True))


def test_the_monoids() -> None:
    names = "sum prod max min any all argmax argmin bitor bitand bitxor"
    assert list(ops.MONOIDS) == names.split()
    updates = {m.update: m.name for m in MONOIDS if m.update}
    assert updates == {
        "+=": "sum", "*=": "prod", "max=": "max", "min=": "min", "|=": "bitor", "&=": "bitand", "^=": "bitxor",
    }  # fmt: skip


@pytest.mark.parametrize(("m", "dtype"), MONOID_CLAIMS, ids=lambda v: getattr(v, "name", None))
def test_monoid_laws(m: ops.Monoid, dtype: DType) -> None:
    x = nasty(dtype)
    start = state(m, np.asarray(m.identity(dtype)), ops.NOWHERE)
    assert start[0].dtype == dtype.numpy
    values = state(m, x, np.arange(x.size))
    # A float sum that starts at +0.0 loses the sign of a zero, and nothing else.
    kept = x if not (m.name == "sum" and dtype.is_float) else np.where(x == 0, dtype.numpy.type(0), x)
    assert agree(m.combine(values, start, dtype), state(m, kept, np.arange(x.size)))
    assert agree(m.combine(start, values, dtype), state(m, kept, np.arange(x.size)))
    v = few(dtype)
    p, q, r = (
        state(m, v.reshape(s), np.arange(v.size).reshape(s) + k)
        for s, k in (((-1, 1, 1), 0), ((1, -1, 1), 100), ((1, 1, -1), 200))
    )
    left = m.combine(m.combine(p, q, dtype), r, dtype)
    right = m.combine(p, m.combine(q, r, dtype), dtype)
    assert agree(left, right) == (not m.rounds(dtype))


def test_accumulators() -> None:
    for name in ("sum", "prod"):
        assert ops.MONOIDS[name].accumulator(F16) == F32 and ops.MONOIDS[name].accumulator(U16) == U64
        assert ops.MONOIDS[name].rounds(F32) and not ops.MONOIDS[name].rounds(I64)
    assert ops.MONOIDS["sum"].accumulator(BOOL) == I64
    assert ops.MONOIDS["max"].accumulator(F16) == F16 and not ops.MONOIDS["max"].rounds(F16)
    assert ops.MONOIDS["argmax"].accumulator(F16) == F16 and ops.MONOIDS["argmax"].result(F16) == I64
    assert not np.signbit(ops.MONOIDS["sum"].identity(F64))
    with pytest.raises(CompilerError):
        ops.MONOIDS["any"].identity(F32)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", (*INT_DTYPES, *FLOAT_DTYPES), ids=str)
def test_positions_are_those_of_numpy(name: str, dtype: DType) -> None:
    """The first of the best, a NaN being best, whatever the order of combination."""
    rng = np.random.default_rng(5)
    m = ops.MONOIDS[name]
    for trial in range(40):
        x = rng.choice(nasty(dtype), 9) if trial % 2 else rng.choice(nasty(dtype)[:3], 9)
        states = [state(m, x[n], n) for n in range(9)] + [state(m, np.asarray(m.identity(dtype)), ops.NOWHERE)]
        order = rng.permutation(10)
        total = states[order[0]]
        for n in order[1:]:
            total = m.combine(total, states[n], dtype)
        wide = x.astype(np.float64) if dtype.is_float else x
        assert total[1] == getattr(np, name)(wide)
        assert same(np.asarray(total[0]), x[int(total[1])]).all()
