"""From data to sizes and buffers: solving extents, element types, params, requirements, domains, memory, generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopfuse.bind import Bound, Given, bind, buffer_bytes
from loopfuse.diag import Diagnostic, Source, UserError
from loopfuse.driver import bind_program, compile_source
from loopfuse.dtypes import BF16, BOOL, DTYPES, F16, F32, I32, I64, U8, DType
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Bounds, Request, Spec, fit, parse_number, parse_spec
from loopfuse.ir import Buffer
from loopfuse.memory import parse_bytes, show_bytes
from loopfuse.sizes import Poly
from loopfuse.solve import Equation, solve

N, M, K, U = (Poly.of(n) for n in "NMKU")


def program(text: str) -> TypedProgram:
    return compile_source(Source("t.lf", text)).typed


def bound(text: str, inputs: Mapping[str, object] | None = None, **rest: Any) -> Bound:
    return bind(program(text), Given(inputs or {}, **rest))


def refused(action: Callable[[], object]) -> Diagnostic:
    with pytest.raises(UserError) as caught:
        action()
    return caught.value.diagnostics[0]


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


# -- solving ----------------------------------------------------------------------------------------------------------


def equation(poly: Poly | int, value: int, where: str = "axis 0 of `x`") -> Equation:
    return Equation(Poly.of(poly), value, where)


def test_bare_sizes_come_first_whatever_the_order() -> None:
    found = solve([equation(4 * U, 12), equation(U, 3), equation(N * K, 10), equation(K, 5)], {})
    assert found.sizes == {"U": 3, "N": 2, "K": 5}


def test_affine_extents_are_solved_exactly() -> None:
    assert solve([equation(N + 1, 8), equation(2 * K - 3, 5)], {}).sizes == {"N": 7, "K": 4}
    assert solve([equation(N * K + K, 12)], {"K": 3}).sizes == {"K": 3, "N": 3}
    assert refused(lambda: solve([equation(4 * U, 10)], {})).code == "LF0506"
    assert refused(lambda: solve([equation(N + 9, 8)], {})).code == "LF0506"


def test_linear_systems_over_several_inputs() -> None:
    found = solve([equation(N + M, 10), equation(N - M, 4)], {})
    assert found.sizes == {"N": 7, "M": 3}
    found = solve([equation(N + M, 10), equation(M + K, 9), equation(N + K, 7)], {})
    assert found.sizes == {"N": 4, "M": 6, "K": 3}
    assert refused(lambda: solve([equation(N + M, 10), equation(N - M, 5)], {})).code == "LF0506"
    assert solve([equation(N + M, 10)], {}).sizes == {}


def test_what_does_not_settle_a_size_is_left_and_checked_later() -> None:
    half = N // 2
    assert solve([equation(half, 4)], {}).sizes == {}
    assert solve([equation(half, 4), equation(N, 9)], {}).sizes == {"N": 9}
    assert refused(lambda: solve([equation(half, 4), equation(N, 7)], {})).code == "LF0517"


def test_contradictions_name_both_axes() -> None:
    told = refused(lambda: solve([equation(N, 3, "axis 0 of `a`"), equation(N, 4, "axis 1 of `b`")], {}))
    assert told.code == "LF0517"
    assert told.message == "`N` is 3 in axis 0 of `a` and 4 in axis 1 of `b`"
    told = refused(lambda: solve([equation(U, 3, "axis 0 of `a`"), equation(4 * U, 13, "axis 1 of `b`")], {}))
    assert "axis 1 of `b` must have `4*U` = 12 elements, and has 13" in told.message
    assert "axis 0 of `a`" in told.message
    assert "must have 3 elements, and has 4" in refused(lambda: solve([equation(3, 4)], {})).message
    assert "as given" in refused(lambda: solve([equation(N, 4)], {"N": 5})).message


def test_linear_contradiction() -> None:
    told = refused(lambda: solve([equation(N + M, 10), equation(N + M, 11, "axis 0 of `y`")], {}))
    assert told.code == "LF0517"


def test_every_contradiction_is_told() -> None:
    with pytest.raises(UserError) as caught:
        solve([equation(N, 3), equation(N, 4), equation(M, 1), equation(M, 2)], {})
    assert len(caught.value.diagnostics) == 2


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("NMKU"), st.integers(0, 50), min_size=4),
    st.permutations([N, M, K, U, 4 * U + 1, N * K, N + M, K - 1 + U, N // 3 + M]),
)
def test_any_order_gives_the_sizes(values: dict[str, int], order: list[Poly]) -> None:
    found = solve([equation(p, int(p.value(values))) for p in order], {})
    assert found.sizes == values


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_systems_that_determine_their_sizes_are_solved(data: st.DataObject) -> None:
    """Any number of affine equations: whatever is settled is right, and a full rank settles everything."""
    values = {n: data.draw(st.integers(0, 20)) for n in "NMK"}
    rows = data.draw(st.lists(st.tuples(*[st.integers(-2, 3)] * 3), min_size=1, max_size=5))
    polys = [Poly.of(a) * N + Poly.of(b) * M + Poly.of(c) * K + 60 for a, b, c in rows]
    found = solve([equation(p, int(p.value(values))) for p in polys], {}).sizes
    assert found.items() <= values.items()
    if np.linalg.matrix_rank(np.array(rows)) == 3:
        assert found == values


# -- numbers, specifications, memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-3", -3), ("+4", 4), ("0x1f", 31), ("-0b101", -5), ("1e-5", 1e-5), (".5", 0.5), ("2.", 2.0),
     ("true", True), ("-inf", -np.inf), ("18446744073709551615", 2**64 - 1), ("007", 7)],
)  # fmt: skip
def test_numbers(text: str, value: object) -> None:
    found = parse_number(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["", "x", "1 2", "1e", "0x", "--1", "1_000", "nan1", "."])
def test_not_numbers(text: str) -> None:
    assert parse_number(text) is None


def test_fit() -> None:
    assert fit(255, U8) == 255
    assert fit(256, U8) is None
    assert fit(-1, U8) is None
    assert fit(1.0, U8) is None
    assert fit(True, U8) is None
    assert fit(1, BOOL) is None
    assert fit(3, F32) == 3
    assert fit(1e39, F32) is None
    assert fit(1e-60, F32) is None
    assert fit(70000, F16) is None
    assert fit(-0.0, F32) is not None and np.signbit(fit(-0.0, F32))
    assert np.isinf(fit(np.inf, F16) if fit(np.inf, F16) is not None else 0)
    assert fit(2**63 - 1, I64) == 2**63 - 1
    assert fit(10**400, F32) is None


@pytest.mark.parametrize("text", ["a.npy", "randn.npy", "./3", "foo(1)", "Randn", "w.npz:x"])
def test_file_names_are_not_specifications(text: str) -> None:
    assert parse_spec(text) is None


@pytest.mark.parametrize("text", ["randn(1, 2, 3)", "randint(1)", "const", "const(x)", "zeros(1)", "uniform(1,2,3)"])
def test_wrong_arguments(text: str) -> None:
    assert refused(lambda: parse_spec(text)).code == "LF0516"


def made(text: str, dtype: DType, shape: tuple[int, ...] = (50,), name: str = "x", seed: int = 0) -> Any:
    spec = parse_spec(text)
    assert spec is not None
    array = spec.make(Request(name, shape, dtype, seed=seed))
    assert array.dtype == dtype.numpy
    assert array.shape == shape
    return array


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_float], ids=str)
def test_float_generators(dtype: DType) -> None:
    normal = made("randn(5, 2)", dtype, (400,)).astype(np.float64)
    assert abs(normal.mean() - 5) < 0.5
    assert abs(normal.std() - 2) < 0.4
    uniform = made("uniform(-3, -1)", dtype, (400,)).astype(np.float64)
    assert uniform.min() >= -3
    assert uniform.max() <= -1
    assert uniform.std() > 0.3


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_generators_of_every_type(dtype: DType) -> None:
    assert not made("zeros", dtype).any()
    assert (made("ones", dtype).astype(float) == 1).all()
    few = made("randint(0, 2)", dtype, (100,)).astype(int)
    assert set(few) == {0, 1}
    assert made("auto", dtype).size == 50
    count = 2 if dtype is BOOL else 20
    assert (made("iota", dtype, (count,)).astype(int) == np.arange(count)).all()


def test_generators_refuse_what_does_not_fit() -> None:
    for text, dtype in (("randn", I32), ("uniform", U8), ("randint(0, 300)", U8), ("const(1.5)", I32),
                        ("const(300)", U8), ("randint(5, 5)", I32), ("uniform(2, 1)", F32), ("uniform(1)", F32),
                        ("randint(0.5, 2)", F32), ("randn(0, -1)", F32), ("const(-1)", BOOL), ("iota", U8)):  # fmt: skip
        spec = parse_spec(text)
        assert spec is not None
        assert refused(lambda s=spec, d=dtype: s.make(Request("x", (400,), d))).code == "LF0516", text


def test_streams_depend_on_name_and_seed_alone() -> None:
    first = made("randn", F32, name="x")
    assert (first == made("randn", F32, name="x")).all()
    assert (first != made("randn", F32, name="y")).any()
    assert (first != made("randn", F32, name="x", seed=1)).any()


def test_numbers_are_for_inputs_without_axes() -> None:
    assert made("1.5", F32, ()) == 1.5
    assert made("true", BOOL, ())
    assert refused(lambda: made("1.5", F32, (3,))).fix is not None


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from([d for d in DTYPES.values() if d is not BOOL]),
    st.one_of(st.none(), st.integers(-50, 50)),
    st.one_of(st.none(), st.integers(60, 120)),
    st.booleans(),
    st.booleans(),
)
def test_made_up_data_keeps_to_its_bounds(dtype: DType, lo: int | None, hi: int | None, a: bool, b: bool) -> None:
    array = Spec("auto", (), "auto").make(Request("x", (200,), dtype, Bounds(lo, hi, a, b)))
    values = array.astype(np.float64)
    if lo is not None:
        assert (values > lo).all() if a else (values >= lo).all()
    if hi is not None:
        assert (values < hi).all() if b else (values <= hi).all()


def test_amounts_of_memory() -> None:
    assert parse_bytes("8G") == 8 << 30
    assert parse_bytes("512 MiB") == 512 << 20
    assert parse_bytes("100") == 100
    assert parse_bytes("1.5k") == 1536
    assert parse_bytes("many") is None
    assert show_bytes(0) == "0 B"
    assert show_bytes(1536) == "1.5 KiB"
    assert show_bytes(4 << 40) == "4 TiB"
    assert show_bytes(10**30).endswith("EiB")


# -- binding ----------------------------------------------------------------------------------------------------------

LSTM = "input wx: f32[I, 4 * U]  input wh: f32[U, 4 * U]  input b: f32[4 * U]  output y = sum(b) + sum(wx) + sum(wh)"


def test_all_inputs_together() -> None:
    found = bound(LSTM, {"wx": zeros(7, 12), "wh": zeros(3, 12), "b": zeros(12)})
    assert found.sizes == {"I": 7, "U": 3}
    told = refused(lambda: bound(LSTM, {"wx": zeros(7, 12), "wh": zeros(3, 12), "b": zeros(16)}))
    assert told.code == "LF0517"
    assert "`b`" in told.message and "`wh`" in told.message


def test_extents_only_inside_expressions() -> None:
    text = "input b: f32[4 * U]  output y = sum(b)"
    assert bound(text, {"b": zeros(12)}).sizes == {"U": 3}
    told = refused(lambda: bound(text, {"b": zeros(10)}))
    assert told.code == "LF0506"
    assert "10 elements" in told.message and "`4*U`" in told.message
    text = "size G = 4  input x: f32[N, G * K]  output y = sum(x)"
    assert bound(text, {"x": zeros(2, 12)}).sizes == {"N": 2, "K": 3, "G": 4}


def test_types_are_never_converted() -> None:
    text = "input x: f32[N]  output y = sum(x)"
    told = refused(lambda: bound(text, {"x": zeros(3, dtype=np.float64)}))
    assert told.code == "LF0503"
    assert told.fix is not None and told.fix.text == "x.astype(np.float32)"
    assert "f32(x)" in told.helps[0]
    for wrong in (
        zeros(3, dtype=np.complex64),
        np.array(["a"]),
        np.array([None]),
        [1, 2],
        np.ma.array([1.0], mask=[1]),
    ):
        assert refused(lambda w=wrong: bound(text, {"x": w})).code == "LF0503"
    assert bound(text, {"x": zeros(3).astype(">f4")}).inputs["x"].dtype.isnative


def test_numbers_for_inputs_without_axes() -> None:
    text = "input s: f32  input k: i32  output y = s * f32(k)"
    found = bound(text, {"s": 2.5, "k": 3})
    assert found.inputs["s"].dtype == np.float32
    assert found.inputs["k"].dtype == np.int32
    assert refused(lambda: bound(text, {"s": 2.5, "k": 3.5})).code == "LF0503"
    assert refused(lambda: bound(text, {"s": 1e60, "k": 3})).code == "LF0503"


def test_axes_are_counted() -> None:
    told = refused(lambda: bound("input x: f32[N, M]  output y = sum(x)", {"x": zeros(3)}))
    assert told.code == "LF0504"
    grey = refused(lambda: bound("input i: u8[H, W, 3]  output y = sum(i)", {"i": zeros(3, 4, dtype=np.uint8)}))
    assert "grey" in grey.notes[0]


def test_names() -> None:
    text = "input data: f32[N]  param a: f32 = 1  size R = 2  output y = sum(data) * a * R"
    told = refused(lambda: bound(text, {"date": zeros(3), "data": zeros(3)}))
    assert told.code == "LF0502" and told.fix is not None and "`data`" in told.fix.text
    assert "-p a" in refused(lambda: bound(text, {"a": 2, "data": zeros(3)})).helps[0]
    assert refused(lambda: bound(text, {"data": zeros(3)}, params={"b": 1})).code == "LF0502"
    assert refused(lambda: bound(text, {"data": zeros(3)}, dims={"Q": 1})).code == "LF0502"
    assert "-D R=3" in str(refused(lambda: bound(text, {"data": zeros(3)}, dims={"R": 3})).fix)
    assert refused(lambda: bound(text, {"data": zeros(3)}, dims={"N": 4})).code == "LF0517"
    assert refused(lambda: bound(text)).code == "LF0501"


def test_all_missing_inputs_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        bound(LSTM)
    assert [d.code for d in caught.value.diagnostics] == ["LF0501"] * 3


def test_params() -> None:
    text = "param k: u8  param b: bool = true  param f: f16 = 2  input x: f32[N]  output y = sum(x) * f32(k) * f32(f)"
    text += " * (1.0 if b else 2.0)"
    x = {"x": zeros(2)}
    found = bound(text, x, params={"k": 200, "b": False})
    assert found.sizes["k"] == 200
    assert found.inputs["f"].dtype == np.float16
    assert refused(lambda: bound(text, x)).code == "LF0508"
    for wrong in ({"k": 256}, {"k": -1}, {"k": 1.0}, {"k": True}, {"k": 1, "b": 1}, {"k": 1, "f": 1e6}, {"k": "1"}):
        assert refused(lambda w=wrong: bound(text, x, params=w)).code == "LF0508", wrong
    assert bound(text, x, params={"k": np.uint8(7), "f": np.float64(1.5)}).sizes["k"] == 7


def test_written_requirements_show_their_values() -> None:
    text = 'input x: f32[N]  require N % 2 == 1, "odd lengths only"  output y = sum(x)'
    assert bound(text, {"x": zeros(3)}).sizes == {"N": 3}
    told = refused(lambda: bound(text, {"x": zeros(4)}))
    assert told.code == "LF0610"
    assert "odd lengths only" in told.message and "N = 4" in told.message
    told = refused(lambda: bound("input x: f32[N]  require N >= 3 and N < 9  output y = sum(x)", {"x": zeros(9)}))
    assert "`N >= 3 and N < 9` does not hold (N = 9)" in told.message


def test_requirements_on_params() -> None:
    text = "input x: f32[N]  param p: i32 = 0 where 0 <= p < N  output y = x[p]"
    assert bound(text, {"x": zeros(3)}, params={"p": 2}).sizes == {"N": 3, "p": 2}
    told = refused(lambda: bound(text, {"x": zeros(3)}, params={"p": 3}))
    assert told.code == "LF0610" and "p = 3" in told.message and "N = 3" in told.message


def test_implied_requirements() -> None:
    text = "input x: f32[N]  let y[i in 0..8] = x[i]  output y"
    assert bound(text, {"x": zeros(8)}).sizes == {"N": 8}
    told = refused(lambda: bound(text, {"x": zeros(7)}))
    assert told.code == "LF0611"
    assert "N = 7" in told.message and "8" in told.message
    assert told.primary is not None


def test_domains_show_the_first_offender() -> None:
    text = "input x: f32[N, M] where x > 0  output y = sum(x)"
    data = np.ones((3, 4), np.float32)
    assert bound(text, {"x": data}).sizes == {"N": 3, "M": 4}
    data[1, 2], data[2, 0] = -2.5, np.nan
    told = refused(lambda: bound(text, {"x": data}))
    assert told.code == "LF0612"
    assert "`x[1, 2]` = -2.5" in told.message and "x > 0" in told.message
    assert "first of 2" in told.notes[0]


def test_domains_of_indices_params_and_scalars() -> None:
    text = "input t: f32[M]  input k: i32[N] where 0 <= k < M  output y[n] = t[k[n]]"
    good = {"t": zeros(5), "k": np.array([0, 4], np.int32)}
    assert bound(text, good).sizes == {"M": 5, "N": 2}
    told = refused(lambda: bound(text, {**good, "k": np.array([0, 5, -1], np.int32)}))
    assert told.code == "LF0612" and "`k[1]` = 5" in told.message
    text = "param eps: f32 = 1e-5 where eps > 0  input x: f32[N]  output y = sum(x) + eps"
    assert refused(lambda: bound(text, {"x": zeros(2)}, params={"eps": 0.0})).code == "LF0612"
    text = "input s: f32 where s > 0  output y = s * 2"
    assert "`s` = -1.0" in refused(lambda: bound(text, {"s": -1.0})).message


def test_generated_inputs_and_sizes() -> None:
    text = "input x: f32[N, D] where x > 1  input w: f32[D]  output y = sum(x) + sum(w)"
    made_up = {"x": Spec("auto", (), "auto"), "w": zeros(3)}
    found = bound(text, made_up, dims={"N": 4})
    assert found.inputs["x"].shape == (4, 3)
    assert (found.inputs["x"] > 1).all()
    told = refused(lambda: bound(text, made_up))
    assert told.code == "LF0507" and told.fix is not None and "--dims N=.." in told.fix.text


def test_memory_is_counted_before_it_is_taken() -> None:
    text = "input x: f32[N, D]  output y = sum(x)"
    spec = {"x": Spec("randn", (), "randn")}
    told = refused(lambda: bound(text, spec, dims={"N": 1 << 20, "D": 1 << 21}))
    assert told.code == "LF0509" and "8 TiB" in told.message
    told = refused(lambda: bound(text, spec, dims={"N": 10**30, "D": 10**30}))
    assert told.code == "LF0509"
    assert refused(lambda: bound(text, spec, dims={"N": 10, "D": 10}, limit=399)).code == "LF0509"
    assert bound(text, spec, dims={"N": 10, "D": 10}, limit=400).inputs["x"].shape == (10, 10)


def test_windows_count_as_wide_as_they_are() -> None:
    t = Poly.of("t")
    window = (((t,), (t + 2,)), ((Poly.of(0),), (N,)))
    assert buffer_bytes(Buffer("h", F32, (M + 1, N), window=window), {"M": 1000, "N": 8}) == 2 * 8 * 4
    assert buffer_bytes(Buffer("h", F32, (M + 1, N)), {"M": 1000, "N": 8}) == 1001 * 8 * 4


def test_everything_can_be_made_up() -> None:
    text = """
    input x: f32[N, C, H, W]  input w: f32[C, C, R, S]  input k: i32[N] where 0 <= k < C  input var: f32[C] where var > 0
    require R % 2 == 1 and S % 2 == 1 and H >= R and W >= S
    output y = sum(x) + sum(w) + sum(var) + f32(sum(k))
    """
    found = bound(text, fill=True)
    assert found.sizes["R"] % 2 == 1
    assert found.sizes["H"] >= found.sizes["R"]
    assert len({found.sizes[n] for n in "NCHW"}) >= 3
    assert found.inputs["x"].shape == tuple(found.sizes[n] for n in "NCHW")
    assert (found.inputs["k"] < found.sizes["C"]).all()


def test_made_up_data_keeps_to_domains_that_are_no_bounds() -> None:
    found = bound(
        "input k: i32[N] where k % 3 == 1  input x: f32[N] where x > 0 or x < -1  output y = sum(k)", fill=True
    )
    assert (found.inputs["k"] % 3 == 1).all()
    x = found.inputs["x"]
    assert ((x > 0) | (x < -1)).all()
    impossible = refused(lambda: bound("input k: i32[N] where k != k  output y = sum(k)", fill=True))
    assert impossible.code == "LF0612"


def test_bf16() -> None:
    text = "input x: bf16[N]  output y = sum(x)"
    found = bound(text, {"x": np.ones(3, ml_dtypes.bfloat16)})
    assert found.inputs["x"].dtype == BF16.numpy
    assert "ml_dtypes.bfloat16" in str(refused(lambda: bound(text, {"x": zeros(3)})).fix)


def test_empty_extents() -> None:
    found = bound("input x: f32[N] where x > 0  output y = sum(x)", {"x": zeros(0)})
    assert found.sizes == {"N": 0}


def test_a_domain_of_another_shape_is_made_up_too() -> None:
    source = Source("s.lf", "input v: f32[C]\ninput w: f32[C, N] where v > 0\noutput y[c, n] = w[c, n] / v[c]\n")
    typed = compile_source(source).typed
    bound = bind_program(typed, Given({}, dims={"C": 3, "N": 4}, fill=True))
    assert bound.inputs["w"].shape == (3, 4)
