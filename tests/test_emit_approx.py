"""Approximations: where they are chosen, where not, and that no 16-bit store notices them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from emulator import HOST, available, has_ptx
from hypothesis import given, settings
from hypothesis import strategies as st
from test_emit_maps import made, verdict

from loopfuse.dtypes import BF16, F16, F32, F64, DType
from loopfuse.emit.approx import BUDGET, CONDITION, FORM, FUNCTIONS, NEAR, approximations
from loopfuse.ir import Acc, Buffer, Const, Dim, Expr, Let, Load, Loop, Op, Ref, Select, Store
from loopfuse.ops import OPS, constant, greatest, spacing
from loopfuse.sizes import ZERO, Poly
from loopfuse.walking import children

FLOATS: tuple[DType, ...] = (BF16, F16)


def value(number: float, dtype: DType = F32) -> Const:
    return Const(constant(number, dtype), dtype)


def op(name: str, *args: Expr, dtype: DType = F32) -> Op:
    return Op(name, args, dtype)


X, Y = Load("x", (), (), F32), Load("y", (), (), F32)
BUFFERS = {"x": Buffer("x", F32, (), "in"), "y": Buffer("y", F32, (), "in"), "b": Buffer("b", BF16, (), "out"),
           "h": Buffer("h", F16, (), "out"), "s": Buffer("s", F32, (), "out")}  # fmt: skip


def stored(expr: Expr, buffer: str = "b") -> Store:
    dtype = BUFFERS[buffer].dtype
    return Store(buffer, (), op("cast", expr, dtype=dtype) if dtype != F32 else expr)


def chosen(*stmts: Let | Store, numerics: Any = "default") -> list[str]:
    """What is spelled otherwise in the text of the statements."""
    spelled, texts = approximations(stmts, BUFFERS, numerics), []
    stack = [s.value for s in stmts]
    while stack:
        node = stack.pop()
        found = spelled(node) if isinstance(node, Op) else None
        texts += [found[0]] if found else []
        stack += found[1] if found else children(node)
    return sorted(texts)


def scaled(name: str, scale: float) -> str:
    """A text whose scale is `scale` times log2 e."""
    text = f"{name}({{0}}, {float(np.float32(scale * np.log2(np.e)))!r}f)"
    return text if name == "lf_near_twice" else f"({{0}} * {text.replace('{0}', '{1}')})"


def online(repair: Expr) -> list[str]:
    """What is approximated in a sum of exponentials that has a repair, and in what is stored from it."""
    accs = (Acc("m", "max", F32), Acc("s", "sum", F32, repair=repair))
    term = op("exp", op("sub", X, Ref("m", F32)))
    absorbed = (Store("m", (), X, absorb=True), Store("s", (), term, absorb=True))
    fold = Loop((Dim("i", (ZERO,), (Poly.of(9),)),), absorbed, "seq", accs)
    last = stored(op("div", op("exp", X), Ref("s", F32)))
    return sorted(text for text, _ in approximations((fold, last), BUFFERS, "default").chosen.values())


# -- where ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "buffer", "texts"),
    [
        (op("mul", op("exp", X), Y), "b", ["lf_near_exp({0})"]),
        (op("mul", op("exp", X), Y), "s", []),
        (op("tanh", X), "b", ["lf_tanh_approx({0})"]),
        (op("tanh", X), "h", ["lf_near_tanh({0})"]),
        (op("mul", op("tanh", X), op("tanh", Y)), "b", ["lf_near_tanh({0})"] * 2),
        (op("add", op("tanh", X), Y), "b", []),  # the sum may cancel
        (op("add", op("exp", X), op("sigmoid", Y)), "b", ["lf_near_exp({0})", "lf_near_sigmoid({0})"]),
        (op("sub", op("exp", X), op("sigmoid", Y)), "b", []),
        (op("exp", op("div", X, Y)), "b", ["lf_near_exp({0})"]),  # its operand is accurate
        (op("mul", Y, op("add", op("tanh", X), value(1.0))), "b", [scaled("lf_near_twice", -2)]),
        (op("mul", Y, op("sub", value(1.0), op("tanh", X))), "h", [scaled("lf_near_twice", 2)]),
        (op("mul", Y, op("add", op("tanh", X), value(1.5))), "b", []),
        (op("mul", Y, op("add", op("tanh", X), value(1.0))), "s", []),
        (op("maximum", op("div", X, Y), value(0.0)), "b", ["lf_div_approx({0}, {1})"]),
        (op("floor", op("div", X, Y)), "b", []),
        (Select(op("lt", op("exp", X), Y, dtype=OPS["lt"].result((F32, F32))), X, Y), "b", []),
        (op("sqrt", op("div", X, Y)), "b", ["lf_div_approx({0}, {1})", "lf_sqrt_approx({0})"]),
    ],
)
def test_what_is_approximated(expr: Expr, buffer: str, texts: list[str]) -> None:
    assert chosen(stored(expr, buffer)) == texts


def test_every_use_of_a_value_must_tolerate_its_error() -> None:
    let, ref = Let("a", op("exp", X)), Ref("a", F32)
    assert chosen(let, stored(op("mul", ref, Y))) == ["lf_near_exp({0})"]
    assert chosen(let, stored(op("mul", ref, Y)), stored(op("add", ref, Y), "h")) == []
    assert chosen(let, stored(op("mul", ref, Y)), stored(ref, "s")) == []


def test_sums_that_repairs_rescale() -> None:
    """The terms of a sum that its repair multiplies may err; not those of one that it moves, or whose sign it may turn."""
    own, step = Ref("self", F32), op("sub", Ref("m.old", F32), Ref("m.new", F32))
    exact = ["lf_div_approx({0}, {1})", "lf_near_exp({0})"]  # of what is stored, once the sum itself may not err
    assert online(op("mul", own, op("exp", step))) == [*exact, "lf_near_exp({0})"]
    assert online(Select(op("ne", step, X, dtype=OPS["ne"].result((F32, F32))), op("mul", op("exp", step), own), own)) == [
        *exact, "lf_near_exp({0})"
    ]  # fmt: skip
    for moved in (
        op("sub", own, op("exp", step)),
        op("mul", own, step),
        op("exp", own),
        op("mul", own, op("neg", own)),
    ):
        assert online(moved) == exact


def test_tanh_by_name_is_seen_in_a_sum_with_one() -> None:
    let, ref = Let("t", op("tanh", op("mul", Ref("v", F32), value(0.5)))), Ref("t", F32)
    body = (Let("v", X), let, stored(op("mul", op("add", value(1.0), ref), Y)))
    assert chosen(*body) == [scaled("lf_near_twice", -1)]


V = op("mul", value(0.75), X)
ABOVE, BELOW = op("add", op("tanh", V), value(1.0)), op("sub", value(1.0), op("tanh", V))
HALF = value(0.5)


@pytest.mark.parametrize("sum_", [ABOVE, BELOW])
@pytest.mark.parametrize(
    "halved",
    [
        lambda s: op("mul", op("mul", HALF, Y), s),
        lambda s: op("mul", op("mul", Y, HALF), s),
        lambda s: op("mul", Y, op("mul", HALF, s)),
        lambda s: op("mul", HALF, op("mul", Y, s)),
        lambda s: op("mul", op("mul", s, Y), HALF),
    ],
)
def test_halving_goes_into_a_sum_with_one(sum_: Expr, halved: Callable[[Expr], Expr]) -> None:
    expr = halved(sum_)
    text = scaled("lf_near_once", -1.5 if sum_ is ABOVE else 1.5)
    for buffer in ("b", "h"):
        assert chosen(stored(expr, buffer)) == [text]
    assert approximations([stored(expr)], BUFFERS, "default").chosen[id(expr)] == (text, (Y, X))
    assert chosen(stored(expr, "s")) == []


def test_halving_by_name() -> None:
    """A product with 0.5 is seen through its name; a sum that has other uses is computed once."""
    named = (
        Let("v", X),
        Let("y", op("mul", Ref("v", F32), HALF)),
        Let("s", op("add", op("tanh", Ref("v", F32)), value(1.0))),
    )
    y, sum_ = Ref("y", F32), Ref("s", F32)
    above = op("add", op("tanh", Ref("v", F32)), value(1.0))
    twice, once = scaled("lf_near_twice", -2), scaled("lf_near_once", -2)
    assert chosen(*named[:2], stored(op("mul", y, above))) == [once]
    assert chosen(*named, stored(op("mul", y, sum_)), stored(op("mul", Y, sum_), "h")) == [twice]
    assert chosen(*named, stored(op("mul", Y, op("mul", HALF, sum_)))) == [twice]
    moving = (Let("y", op("mul", Y, HALF)), Let("v", X))  # y may be another number now
    assert chosen(*moving, stored(op("mul", y, above))) == [twice]


def test_beside_sums_names_are_seen_through_only_if_made_from_them() -> None:
    """Others may have been computed elsewhere, as values of the columns of a contraction are."""
    own, other = Ref("a", F32), Ref("g", F32)
    fold = Loop((Dim("i", (ZERO,), (Poly.of(9),)),), (Store("a", (), X, absorb=True),), "seq", (Acc("a", "sum", F32),))
    texts = []
    for factor in (other, Ref("z", F32)):
        lets = (Let("g", Y), Let("z", op("mul", own, other)), Let("y", op("mul", factor, HALF)))
        expr = op("mul", Ref("y", F32), op("add", op("tanh", op("mul", Ref("z", F32), V)), value(1.0)))
        texts.append([t for t, _ in approximations((fold, *lets, stored(expr)), BUFFERS, "default").chosen.values()])
    assert [len([t for t in found if "once" in t]) for found in texts] == [0, 1]


@pytest.mark.parametrize(
    ("power", "scale"),
    [
        (op("exp", op("neg", X)), -1.0),
        (op("exp", X), 1.0),
        (op("exp", op("mul", X, value(-1.5))), -1.5),
        (op("exp", op("neg", op("mul", value(3.0), X))), -3.0),
        (op("exp2", op("neg", X)), -np.log(2)),
    ],
)
def test_quotients_by_one_and_a_power(power: Expr, scale: float) -> None:
    text = scaled("lf_near_logistic", scale)
    for expr in (op("div", Y, op("add", power, value(1.0))), op("div", value(1.0), op("add", value(1.0), power))):
        assert chosen(stored(expr)) == [text]
        assert chosen(stored(expr, "s")) == []
        assert approximations([stored(expr)], BUFFERS, "default").chosen[id(expr)][1] == (expr.args[0], X)


@pytest.mark.parametrize("factor", [0.0, -0.0, np.inf, np.nan, 1e-30, 1e30])
def test_no_scale_that_is_no_normal_number(factor: float) -> None:
    operand = op("mul", X, value(factor))
    expr = op("div", Y, op("add", op("exp", operand), value(1.0)))
    found = approximations([stored(expr)], BUFFERS, "default").chosen[id(expr)]
    assert found == (scaled("lf_near_logistic", 1.0), (Y, operand))


def test_only_the_default_numerics_ask() -> None:
    for numerics in ("strict", "fast"):
        assert chosen(stored(op("exp", X)), numerics=numerics) == []


def test_too_many_errors_give_all_up() -> None:
    expr: Expr = op("exp", X)
    for _ in range(12):
        expr = op("mul", expr, expr)
    assert chosen(stored(expr)) == []


def test_functions_with_ptx_have_definitions_for_the_emulator() -> None:
    assert {name for name, text in FUNCTIONS.items() if has_ptx(text)} <= HOST.keys()
    used = " ".join([n.text for near in NEAR.values() for n in near] + [text for text in EXACT if text not in NEAR])
    assert all(name in used or name in " ".join(FUNCTIONS.values()) for name in FUNCTIONS)


# -- how much: the bounds of the docstring, in NumPy ------------------------------------------------------------------


def near(text: str, *args: np.ndarray[Any, Any], up: float = 1.0) -> np.ndarray[Any, Any]:
    """The functions of approx.py in f32, instructions erring by what the manual allows in one direction."""
    x = args[0].astype(np.float32)
    one = np.float32(1)

    def flushed(v: Any) -> Any:
        return np.where(np.abs(v) < 2.0**-126, np.copysign(0.0, v), v).astype(np.float32)

    def ex2(v: Any) -> Any:
        return (np.exp2(v.astype(np.float64)) * (1 + up * 2.0**-22)).astype(np.float32)

    def rcp(v: Any) -> Any:
        return flushed(1 / v.astype(np.float64) * (1 - up * 2.0**-23))

    def fma(a: Any, b: float, c: float) -> Any:
        return (a.astype(np.float64) * np.float32(b).astype(np.float64) + c).astype(np.float32)

    quarter, small = np.float32(0.25), np.float32(2.0**-24)

    with np.errstate(all="ignore"):
        if text.startswith("lf_near_exp("):
            return np.asarray(ex2(x * np.float32(1.44269504)))
        if text.startswith("lf_near_sigmoid("):
            return np.asarray(rcp(flushed(ex2(fma(x, -1.44269504, -24.0))) + small) * small)
        if text.startswith("lf_near_tanh("):
            a = np.abs(x)
            r = one - np.float32(2) * rcp(one + ex2(a * np.float32(2.88539008)))
            close = a * (one - a * a * np.float32(0.333333343))
            return np.asarray(np.copysign(np.where(a < np.float32(0.1), close, r), x))
        scale = scale_of(text)
        if "logistic" in text:
            return np.asarray(quarter * rcp(flushed(ex2(fma(x, scale, -2.0))) + quarter))
        e = flushed(ex2(x * np.float32(scale)))
        return np.asarray(rcp(np.float32(0.5) * e + np.float32(0.5)) if "twice" in text else rcp(e + one))


def scale_of(text: str) -> float:
    """The scale in a text of several operations."""
    found = re.search(r", (\S+)f\)", text)
    assert found, text
    return float(found[1])


def logistic(x: Any) -> Any:
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


EXACT: dict[str, Callable[[Any], Any]] = {
    "lf_near_exp({0})": np.exp,
    "lf_near_sigmoid({0})": logistic,
    "lf_near_tanh({0})": np.tanh,
}
for factor in (-2.0, 2.0, 2 * 0.7978845834732056, -0.3):
    EXACT[scaled("lf_near_twice", factor)] = lambda x, factor=factor: 2 * logistic(-factor * x)  # type: ignore[misc]
    EXACT[scaled("lf_near_once", factor)] = lambda x, factor=factor: logistic(-factor * x)  # type: ignore[misc]
    EXACT[scaled("lf_near_logistic", factor)] = lambda x, factor=factor: logistic(-factor * x)  # type: ignore[misc]
BOUNDS = {n.text: n.error for nears in NEAR.values() for n in nears}


def operands() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    spread = rng.uniform(-1, 1, 200_000) * 2.0 ** rng.uniform(-30, 7, 200_000)
    return np.concatenate([spread, rng.uniform(-104, 89, 200_000), rng.uniform(-3, 3, 200_000)]).astype(np.float32)


@pytest.mark.parametrize("text", EXACT)
@pytest.mark.parametrize("up", [-1.0, 0.0, 1.0])
def test_errors_are_within_their_bounds(text: str, up: float) -> None:
    x = operands()
    exact = EXACT[text](x.astype(np.float64))
    least = 2.0**-125 if "twice" in text or "once" in text else 2.0**-127.99 if "logistic" in text else 2.0**-126
    normal = (np.abs(exact) >= least) & (np.abs(exact) < 2.0**127.9)
    error = np.abs(near(text, x, up=up).astype(np.float64) - exact)[normal] / np.abs(exact[normal])
    assert error.max() <= BOUNDS.get(text, FORM)


@pytest.mark.parametrize("up", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_silu_is_right_down_to_where_exp_overflows(dtype: DType, up: float) -> None:
    """Within a quarter of the last place of the quotient in f32, but for the three numbers where exp becomes infinite."""
    x = np.linspace(-95, -80, 400_001).astype(np.float32)
    x = x[np.abs(x + np.float32(88.72283)) > 3e-5]
    with np.errstate(over="ignore"):
        exact = x / (np.float32(1) + np.exp(-x))
    found = x * near(scaled("lf_near_logistic", -1), x, up=up)
    assert (np.abs(found - exact) <= 0.25 * spacing(np.abs(exact).astype(np.float64), dtype)).all()
    assert (found[x < -89] == 0).all() and np.signbit(found).all()


@pytest.mark.parametrize("text", EXACT)
def test_numbers_at_the_ends(text: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 1e-45], np.float32)
    with np.errstate(all="ignore"):
        exact = EXACT[text](x.astype(np.float64)).astype(np.float32)
        exact[2] = np.nan
        found = near(text, x)
        gap = np.abs(found - exact)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact)) | (gap <= 1e-6)
    assert same.all(), (text, x[~same], found[~same], exact[~same])


@pytest.mark.parametrize("name", CONDITION)
def test_errors_of_operands_grow_by_no_more_than_the_condition(name: str) -> None:
    row, rng = OPS[name], np.random.default_rng(3)
    for scale in (1e-3, 1.0, 100.0):
        args = [np.asarray(rng.normal(size=20000) * scale) for _ in range(row.arity)]
        if name in ("sqrt", "rsqrt"):
            args = [np.abs(a) for a in args]
        if name == "clip":
            args[1:] = [np.minimum(args[1], args[2]), np.maximum(args[1], args[2])]
        exact = row.evaluate(args, F64)
        off = 1e-6
        for flips in ([1] * row.arity, [-1] * row.arity, [1, -1, 1][: row.arity]):
            moved = row.evaluate([a * (1 + s * off) for a, s in zip(args, flips, strict=True)], F64)
            change = np.abs(moved - exact) / np.abs(exact) / off
            assert change.max() <= sum(CONDITION[name]) * 1.001


# -- random bodies ----------------------------------------------------------------------------------------------------

NAMES = ("mul", "div", "add", "sub", "neg", "abs", "maximum", "exp", "sigmoid", "tanh", "sqrt")


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Expr, DType]:
    """An expression over x and y, and the 16-bit type that it is stored as."""
    pool: list[Expr] = [X, Y, value(1.0), value(0.5), op("add", value(1.0), op("exp", op("neg", X))),
                        op("add", op("tanh", op("mul", Y, value(0.8))), value(1.0))]  # fmt: skip
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(NAMES))
        args = [draw(st.sampled_from(pool)) for _ in range(OPS[name].arity)]
        pool.append(op(name, *args))
    return pool[-1], draw(st.sampled_from(FLOATS))


def above(sum_: Op, u: Any) -> Any:
    """A sum or difference of 1 and tanh(u)."""
    if sum_.op == "sub":
        return 2 * logistic(-2 * u) if sum_.args[0] == value(1.0) else -2 * logistic(-2 * u)
    return 2 * logistic(2 * u)


def evaluated(root: Expr, x: Any, y: Any, spelled: Any, up: float) -> Iterator[np.ndarray[Any, Any]]:
    """The value in f64 with every chosen spelling off by its whole bound: one way, and without."""
    for slip in (0.0, up):
        known: dict[int, Any] = {}

        def of(node: Expr, slip: float = slip, known: dict[int, Any] = known) -> Any:
            if id(node) in known:
                return known[id(node)]
            if isinstance(node, Load):
                result: Any = x if node.buffer == "x" else y
            elif isinstance(node, Const):
                result = np.full_like(x, float(np.uint32(node.bits).view(np.float32)))
            else:
                assert isinstance(node, Op)
                found = spelled(node) if slip else None
                if found is not None and found[0] not in BOUNDS:
                    *factors, last = (of(a) for a in found[1])
                    result = (2 if "twice" in found[0] else 1) / (1 + np.exp2(scale_of(found[0]) * last))
                    result = result * (factors[0] if factors else 1) * (1 + slip * FORM)
                else:
                    tanh = next((a for a in node.args if isinstance(a, Op) and a.op == "tanh"), None)
                    if tanh is not None and value(1.0) in node.args and found is None and node.op in ("add", "sub"):
                        result = above(node, of(tanh.args[0]))  # f64 would cancel, too
                    else:
                        result = OPS[node.op].evaluate([of(a) for a in children(node)], F64)
                    result = result * (1 + slip * BOUNDS[found[0]]) if found is not None else result
            known[id(node)] = result
            return result

        yield np.asarray(of(root))


@settings(max_examples=300, deadline=None)
@given(bodies(), st.sampled_from([-1.0, 1.0]), st.integers(0, 1000))
def test_no_store_notices(body: tuple[Expr, DType], up: float, seed: int) -> None:
    expr, dtype = body
    spelled = approximations([stored(expr, "b" if dtype == BF16 else "h")], BUFFERS, "default")
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=400) * 2.0 ** rng.integers(-8, 4, 400) for _ in range(2))
    with np.errstate(all="ignore"):
        exact, off = evaluated(expr, x, y, spelled, up)
        fine = (np.abs(exact) <= greatest(dtype)) & np.isfinite(off)
        quarter = 0.25 * spacing(np.abs(exact[fine]), dtype)
        assert (np.abs(off - exact)[fine] <= quarter).all()


def test_budgets_are_a_quarter_of_the_last_place() -> None:
    for dtype, budget in BUDGET.items():
        numbers = np.linspace(1.0, 2.0, 1000, endpoint=False)
        assert (budget * numbers <= 0.25 * spacing(numbers, dtype)).all()


# -- in kernels -------------------------------------------------------------------------------------------------------

SCRIPTS: Sequence[str] = (
    "import nn\ninput x: bf16[N]\noutput o = nn.gelu_tanh(x)\n",
    "import nn\ninput x: f16[N]\noutput o = nn.silu(x)\n",
    "input x: bf16[N]\ninput y: bf16[N]\noutput o = sigmoid(x) * y\noutput p = tanh(x) / y\n",
    "input x: f16[N]\ninput y: f16[N]\noutput o = tanh(x) * exp(y) / sqrt(abs(y) + 1)\n",
)


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("script", SCRIPTS)
def test_kernels_stay_within_the_derived_bound(script: str) -> None:
    text = "".join(k.text for k in made(script, {"N": 4096}).kernels)
    assert "lf_near" in text or "approx" in text
    assert not verdict(script, {"N": 4096})
