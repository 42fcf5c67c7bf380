"""Data that `loopfuse fuzz` draws: extents that meet the requirements, domains that leave nothing, and failures whose data is
made plain."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopfuse as lf
from loopfuse import contracts
from loopfuse.bind import Given, bind, fitted
from loopfuse.diag import UserError
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Bounds
from loopfuse.testing import data
from loopfuse.testing.alike import OFTEN
from loopfuse.testing.campaign import Campaign, Limits, Source
from loopfuse.testing.choices import Steered
from loopfuse.testing.reduce import Reducer
from loopfuse.testing.saved import load_case, save
from loopfuse.testing.simpler import blocks, grounds, rank, shown, simpler
from loopfuse.testing.trial import Case, Failure, Setting, again

NAMES = ("N", "M", "K")


def typed_of(*requires: str, sizes: tuple[str, ...] = ("N", "M")) -> TypedProgram:
    lines = [f"input {n.lower()}: f32[{n}]\noutput r{n.lower()} = {n.lower()} + 1" for n in sizes]
    typed: TypedProgram = lf.parse("\n".join((*lines, *requires)) + "\n")._typed
    return typed


# -- extents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requires", "least_different"), [
    (("require N == 50",), 1), (("require N % 4 == 0",), 4), (("require N > M",), 8), (("require M * 2 == N",), 4),
    (("require N == 1000 or N == 2000",), 1), (("require N > 1000", "require M % 3 == 0"), 3),
    (("require N - M == 100",), 4), (("require N == M * M",), 3), (("require 3 * N + 5 * M == 60",), 2),
    (("require N % 6 == 2 and N % 4 == 0",), 3), (("require N // 2 == M",), 4), (("require N % (M + 1) == 0",), 5),
    (("require N != M", "require N >= 3", "require M < 2"), 4), (("require N == 1048576",), 1),
    (("require N % 5000 == 2500",), 1), (("require N % 7000 == 0", "require N > 0"), 1),
])  # fmt: skip
def test_requirements_are_met(requires: tuple[str, ...], least_different: int) -> None:
    """Every set that is drawn meets them, and they are not always the same."""
    typed = typed_of(*requires)
    found = []
    for number in range(16):
        draw = data.draw(typed, Given({}, dims={}), Steered(Random(number)), "small")
        assert not isinstance(draw, str), draw
        found.append((draw.bound.sizes["N"], draw.bound.sizes["M"]))
    assert len(set(found)) >= least_different, found


@pytest.mark.parametrize(("condition", "found"), [
    ("N % w == 0 and N > 0", 7000), ("N == w + 1", 7001), ("N == i64(w) * 2", 14000), ("N // w == 1", 7000),
])  # fmt: skip
def test_params_have_a_part_in_it(condition: str, found: int) -> None:
    """Their types are narrower than that of sizes."""
    typed = typed_of("param w: i32 = 7000", f"require {condition}", sizes=("N",))
    assert bind(typed, Given({}, fill=True)).sizes["N"] == found


@settings(max_examples=40)
@given(st.lists(st.sampled_from(("N", "M", "K")), min_size=2, max_size=2, unique=True), st.integers(1, 6),
       st.integers(1, 6), st.integers(-40, 40), st.sampled_from(("==", "<", ">=", "!=")))  # fmt: skip
def test_whatever_small_sizes_meet_is_met(names: list[str], a: int, b: int, c: int, symbol: str) -> None:
    left, right = names
    condition = f"{a} * {left} {symbol} {b} * {right} + {c}"
    typed = typed_of(f"require {condition}", sizes=NAMES)
    met = any(eval(condition, {left: x, right: y}) for x in range(60) for y in range(60))
    found = fitted(typed, Given({}), {"N": 3, "M": 7, "K": 1})
    if met:
        assert found is not None and eval(condition, dict(found)), condition
    assert found is None or bind(typed, Given({}, dims=found, fill=True)).sizes.items() >= found.items()


def test_extents_of_given_data_count() -> None:
    """Twelve elements of an array of `N * M`: sizes that are made up agree with them."""
    typed: TypedProgram = lf.parse("input x: f32[N * M]\ninput z: f32[N]\noutput y = x + 1\noutput w = z + 1\n")._typed
    bound = bind(typed, Given({"x": np.zeros(12, np.float32)}, fill=True))
    assert bound.sizes["N"] * bound.sizes["M"] == 12 and bound.inputs["z"].shape == (bound.sizes["N"],)


@pytest.mark.parametrize(("requires", "said"), [
    (("require N * N == 2 * M * M + 7 and N > 30",), "meet `N * N == 2 * M * M + 7 and N > 30`"),
    (("require N > 4", "require N < 3", "require M > 1"), "meet `N > 4` and `N < 3`"),
    (("require M > 1", "require N * N == 7"), "meet `N * N == 7`"),
])  # fmt: skip
def test_what_no_sizes_meet_is_named(requires: tuple[str, ...], said: str) -> None:
    typed = typed_of(*requires)
    with pytest.raises(UserError) as caught:
        bind(typed, Given({}, fill=True))
    (problem,) = caught.value.diagnostics
    assert problem.code == "LF0507" and said in problem.message and problem.primary is not None
    assert problem.primary.text.startswith("require")


# -- domains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("declared", "said"), [
    ("f32[N] where 1 <= x <= 0", "no data can exist for `x`: no f32 lies in the domain `1 <= x <= 0`"),
    ("i32[N] where 3 < x < 4", "no i32 lies in the domain"), ("f16[N] where 1 < x < 1.0009", "no f16 lies in the domain"),
    ("u8[4] where M <= i64(x) < M", "with M = "), ("f32[N] where x * x < -1", "no data was found that keeps to the domain"),
])  # fmt: skip
def test_domains_that_leave_nothing(declared: str, said: str) -> None:
    typed: TypedProgram = lf.parse(f"input x: {declared}\ninput w: f32[M]\noutput y = x\noutput z = w + 1\n")._typed
    with pytest.raises(UserError) as caught:
        bind(typed, Given({}, dims={}, fill=True))
    (problem,) = caught.value.diagnostics
    assert problem.code == "LF0612" and said in problem.message, problem.message


def test_no_elements_keep_to_any_domain() -> None:
    """Extents that are made up become 0 where nothing else is possible; the message says so of those that are given."""
    text = "input i: i32[M] where 0 <= i < N\ninput t: f32[N]\noutput y = t[i]\n"
    typed: TypedProgram = lf.parse(text)._typed
    assert bind(typed, Given({}, dims={"N": 0}, fill=True)).sizes == {"N": 0, "M": 0}
    assert bind(typed, Given({"t": np.zeros(0, np.float32)}, fill=True)).inputs["i"].size == 0
    asked = (Given({}, dims={"N": 0, "M": 4}, fill=True), typed, ", unless M = 0")
    forbidden: TypedProgram = lf.parse(text + "require M > 0\n")._typed
    for ask, script, end in (asked, (Given({}, dims={"N": 0}, fill=True), forbidden, "with N = 0")):
        with pytest.raises(UserError) as caught:
            bind(script, ask)
        (problem,) = caught.value.diagnostics
        assert problem.code == "LF0612" and problem.message.endswith(end), problem.message


def test_other_extents_are_drawn_where_a_domain_leaves_nothing() -> None:
    """Subscripts of an array without elements."""
    typed: TypedProgram = lf.parse("input i: i32[M] where 0 <= i < N\ninput t: f32[N]\noutput y = t[i]\n")._typed
    for number in range(40):
        assert not isinstance(data.draw(typed, Given({}), Steered(Random(number))), str)


# -- plain data -------------------------------------------------------------------------------------------------------


def smallest(text: str, most: int = 60) -> Failure:
    """What a campaign finds in a script, made small; it still fails."""
    campaign = Campaign(Source(text), Setting(passes="none"), 0, Limits(examples=most))
    campaign.run()
    assert campaign.found, text
    (failure,) = campaign.found.values()
    small = Reducer(failure, campaign.setting).run()
    found = again(small.case, campaign.setting).failure
    assert found is not None and found.key == failure.key
    return small


def test_one_element_is_left() -> None:
    case = smallest('input x: f32[B, N]\nrequire N > 5\noutput y = x * 2\ncheck all(isfinite(y)), "numbers"\n').case
    assert case.sizes == {"B": 1, "N": 6} and case.text.startswith("input x")
    (left,) = case.arrays["x"][case.arrays["x"] != 0]
    assert not isfinite(left * 2) and rank(left) <= rank(np.float32(-3e38)) + 1001
    assert not case.kind


def test_sizes_that_belong_together_become_small_together() -> None:
    case = smallest(
        "input a: f32[N]\ninput b: f32[M]\nrequire M * 2 == N\nlet c = sum(a)\nlet d = sum(b)\n"
        "output y = c + d\ncheck y != y or y <= 0\n"
    ).case
    assert case.sizes == {"N": 2, "M": 1}
    assert sum(np.count_nonzero(array) for array in case.arrays.values()) <= 1


def test_what_a_script_says_of_sizes_stays() -> None:
    """Without its value the size would follow from the data, and be another one."""
    text = (
        "size R = 2\ninput x: f32[N]\ninput k: f32[2*R + 1]\nrequire N >= 2*R + 1\nlet z = x + 1\n"
        "output y[i in 0..N - 2*R] = sum(x[i + j] * k[j] for j in 0..2*R + 1)\ncheck all(y == y)\n"
    )
    case = smallest(text).case
    assert case.sizes == {"N": 5} and "size R = 2" in case.text and "require" in case.text
    assert "z =" not in case.text and sum(np.count_nonzero(array) for array in case.arrays.values()) <= 2


def test_elements_between_two_ends_go() -> None:
    arrays = {"x": np.zeros(40, np.float32)}
    arrays["x"][[1, 38]] = 3e38
    text = "input x: f32[N]\nlet s = sum(x[i] for i)\noutput y = s\ncheck isfinite(y)\n"
    failure = again(Case(text, arrays=arrays, sizes={"N": 40}), Setting(passes="none")).failure
    assert failure is not None
    case = Reducer(failure, Setting(passes="none")).run().case
    assert case.sizes["N"] == 2 and np.isfinite(case.arrays["x"]).all()


def test_values_keep_to_their_domain() -> None:
    case = smallest("input x: i32[N] where 100 < x < 200\nrequire N > 2\noutput y = x * x\ncheck all(y < 14400)\n").case
    values = case.arrays["x"]
    assert ((values > 100) & (values < 200)).all() and (values * values >= 14400).sum() == 1
    assert sorted(values)[:2] == [101, 101]


def test_another_check_is_another_failure() -> None:
    """Zeros fail the second check: data for the first is not made zeros."""
    text = "input x: f32[N]\noutput y = x\ncheck all(x < 100)\ncheck sum(x) != 0\n"
    campaign = Campaign(Source(text), Setting(passes="none"), 0, Limits(examples=60, failures=2))
    campaign.run()
    assert len(campaign.found) == 2
    smalls = [Reducer(f, campaign.setting).run() for f in campaign.found.values()]
    assert {s.about for s in smalls} == {"check all(x < 100)", "check sum(x) != 0"}
    assert any((s.case.arrays["x"] >= 100).any() for s in smalls)


@settings(max_examples=80)
@given(st.floats(width=32), st.sampled_from((None, -3.0, 0.25)), st.sampled_from((None, 0.5, 7.0)))
def test_simpler_values(value: float, low: float | None, high: float | None) -> None:
    bounds = Bounds(low, high, open_lo=True)
    old = np.float32(value)
    for new in simpler(old, bounds):
        assert new.dtype == old.dtype and rank(new) < rank(old)
        assert (low is None or new > low) and (high is None or new <= high)
    assert all(
        (low is None or g > low) and (high is None or g <= high) for g in grounds(np.zeros(1, np.float32), bounds)
    )


def test_blocks_cover_everything() -> None:
    for count in (1, 2, 7, 100):
        covered = np.zeros(count, int)
        for block in blocks(count, 64):
            covered[block] += 1
        assert covered.min() >= 1 or count == 1


@pytest.mark.parametrize(("array", "said"), [
    (np.float32([0.1, -0.0]), "[0.1, -0.0]"), (np.zeros((2, 0)), "[[], []]"), (np.float32(3), "3.0"),
    (np.eye(1, 200, 170, np.float32), "199 of 200 elements are 0.0, [0, 170] = 1.0"),
])  # fmt: skip
def test_arrays_are_shown_in_short(array: Any, said: str) -> None:
    assert shown(np.asarray(array)) == said


# -- params, and numbers that the script names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("param k: f32 = 0.5 where 0 <= k <= 1\ninput x: f32[N]\noutput p = x\ncheck k != 0\n", "k"),
        ("param k: i32\ninput x: f32[N]\noutput p = x * f32(k)\ncheck k < 7\n", "k"),
        ("param on: bool = false\ninput x: f32[N]\noutput p = x\ncheck not on\n", "on"),
        ("input x: i32[N]\noutput p = x\ncheck all(x != 514)\n", ""),
        ("input x: f32[N] where -1e3 < x < 1e3\noutput p = x\ncheck all(x != -41.5)\n", ""),
    ],
)
def test_what_a_script_names_is_drawn(text: str, param: str) -> None:
    case = smallest(text, 150).case
    assert not param or param in case.params


# -- rows that are alike ----------------------------------------------------------------------------------------------

MOMENTS = """\
input x: f32[B, N] where -1e5 < x < 1e5
require N > 0
let m = sum(x, axis=1) / N
output v = sum(x * x, axis=1) / N - m * m
check all(v >= 0), "no variance is negative"
"""
WEIGHTS = """\
param eps: f32 = 0
input w: f32[B, N] where 0 <= w <= 1
input x: f32[B, N] where -10 < x < 10
require N > 3
let total = sum(w, axis=1) + sum(abs(x), axis=1)
output p = w / (total[:, None] + eps)
check all(isfinite(p)), "weights are numbers"
"""
MASKED = """\
input x: f32[B, N] where -10 < x < 10
input keep: bool[B, N]
require N > 6
let s = where(keep, x, -inf)
let e = exp(s - max(s, axis=1, keepdims=true))
output p = e / sum(e, axis=1, keepdims=true)
check all(isfinite(p)), "weights are numbers"
"""


def drawn_sets(text: str, count: int) -> list[tuple[TypedProgram, Any]]:
    typed: TypedProgram = lf.parse(text)._typed
    found = [(typed, data.draw(typed, Given({}), Steered(Random(f"rows {k}")), rows=OFTEN)) for k in range(count)]
    assert not any(isinstance(draw, str) for _, draw in found)
    return found


@pytest.mark.parametrize("text", [MOMENTS, WEIGHTS, MASKED], ids=["moments", "weights", "masked"])
def test_faults_of_rows_that_are_alike(text: str) -> None:
    """A negative variance, weights of nothing, and a mask of all: shown by one row, which a person can read."""
    case = smallest(text).case
    assert case.sizes["B"] == 1
    for array in case.arrays.values():
        assert len(np.unique(array)) <= 2 and all(len(str(v)) < 10 for v in array.flat), array
    assert text is MOMENTS or not any(array.any() for array in case.arrays.values())


EVERY = """\
input a: f32[B, N]
input b: bf16[B, N] where 0 < b <= 1
input c: f16[N, B] where -50 <= c
input d: f64[B] where 100 < d < 101
input i: i32[B, N] where 0 <= i < N
input u: u8[N] where u > 3
input m: bool[B, N]
input low: f32[N]
input high: f32[N] where high >= low
input s: f32 where s != 0
output ra = a + 1
output rb = b * 2
output rc = c + 1
output rd = d + s
output ri = i + 1
output ru = u
output rm = not m
output rl = high - low
"""


def test_rows_keep_to_their_domains() -> None:
    """In every type, also where the domain compares two inputs, or leaves no zero."""
    alike = 0
    for typed, draw in drawn_sets(EVERY, 24):
        contracts.check_domains(typed, draw.bound.sizes, draw.bound.inputs)
        alike += any(word in draw.kind for word in ("constant", "rows", "of zeros", "zeros at the same places"))
        for entry in typed.inputs:
            found = draw.bound.inputs[entry.buffer]
            assert found.dtype == entry.dtype.numpy and found.flags.c_contiguous
    assert alike >= 8


def forms_of(x: Any) -> list[str]:
    """What the rows of an array have in common."""
    constant = (x == x[:, :1]).all(axis=1)
    with np.errstate(all="ignore"):
        spread = x.max(axis=1) - x.min(axis=1)
        near = (spread > 0) & (spread < 1e-6 * abs(x).max(axis=1))
    return [name for name, has in {
        "ragged": constant.all() and len(np.unique(x[:, 0])) > 1 and np.isfinite(x).all(),
        "constant": (x == x[0, 0]).all(), "columns": (x == x[:1]).all() and not constant.all(),
        "nearly": near.any() and (near | constant).all(),
        "far": (constant | near).all() and 1e3 < abs(x).max() < 2e6,
        "zeros": not x.any(), "one": ((x != 0).sum(axis=1) == 1).all(), "lowest": (x == -np.inf).all(axis=1).any(),
    }.items() if has]  # fmt: skip


def test_each_form_of_rows_is_drawn_several_times() -> None:
    """Among a hundred sets of data, by what the arrays are; finite ones, which fail no check by being infinite."""
    count: Counter[str] = Counter()
    for _, draw in drawn_sets("input x: f32[B, N]\ninput y: f32[B, N]\ninput m: bool[B, N]\n"
                              "require B > 2 and N > 6\noutput r = where(m, x, y)\n", 100):  # fmt: skip
        x, y, m = (draw.bound.inputs[name] for name in ("x", "y", "m"))
        count["zero rows"] += bool(((x == 0).all(axis=1) & (y == 0).all(axis=1) & ~m.any(axis=1)).any())
        count["zero columns"] += bool(((x == 0).all(axis=0) & (y == 0).all(axis=0) & ~m.any(axis=0)).any())
        count["no mask"] += bool((~m.any(axis=1)).any())
        found = Counter(name for array in (x, y) for name in forms_of(array))
        count.update(found.keys())
    assert len(count) == 11 and min(count.values()) >= 3, count


def test_a_set_of_data_is_that_of_its_choices() -> None:
    """The same choices give the same data, and others other data of the same extents."""
    typed: TypedProgram = lf.parse("input x: f32[4, 5]\noutput y = x + 1\n")._typed
    seen: dict[str, set[bytes]] = {}
    for number in range(200):
        first, second = (data.draw(typed, Given({}), Steered(Random(number)), rows=OFTEN) for _ in range(2))
        assert not isinstance(first, str) and not isinstance(second, str) and first.kind == second.kind
        assert first.bound.inputs["x"].tobytes() == second.bound.inputs["x"].tobytes()
        seen.setdefault(first.kind, set()).add(first.bound.inputs["x"].tobytes())
    assert all(len(seen[kind]) >= 5 for kind in (
        "small numbers, ties, zeros of both signs", "infinities and NaN", "a few special values", "rows of zeros",
    )), {kind: len(arrays) for kind, arrays in seen.items()}  # fmt: skip


# -- params of failures -----------------------------------------------------------------------------------------------

SCALED = """\
param eps: f32 = 0.001
param scale: f32
param k: i32
param on: bool = false
param top: f64 where top > 5
input x: f32[N] where 0 <= x <= 1
require N > 0
output y = x * scale + eps + f32(top)
check k < 3 or all(y < 0) or on
"""


def test_params_become_plain(tmp_path: Path) -> None:
    """What a script has by default stays where it fails with that; others are the plainest that their domain has."""
    given_ = {"eps": 3.4e-7, "scale": 123456.7, "k": 7654, "on": False, "top": 31.4159}
    case = Case(SCALED, arrays={"x": np.float32([0.5])}, params=given_, sizes={"N": 1})
    failure = again(case, Setting(passes="none")).failure
    assert failure is not None and failure.case.params["scale"] == 123456.7  # as it is written, not as f32 has it
    small = Reducer(failure, Setting(passes="none")).run()
    assert small.case.params == {"eps": 0.001, "scale": 0, "k": 3, "on": False, "top": 6}
    replayed, passes = load_case(save(small, tmp_path, "none"))
    again_ = again(replayed.case, Setting(passes=passes)).failure
    assert again_ is not None and again_.key == small.key and again_.case.params == small.case.params


def test_a_default_that_does_not_fail_goes() -> None:
    text = "param eps: f32 = 0.001\ninput x: f32[N] where 0 <= x <= 1\nrequire N > 0\noutput y = x / (x + eps)\n" \
           "check all(y == y)\n"  # fmt: skip
    case = smallest(text, 150).case
    assert case.params == {"eps": 0} and not case.arrays["x"].any()


def test_params_and_the_sizes_tied_to_them_become_small_together() -> None:
    text = "param k: i32\ninput x: f32[N]\nrequire N == 2 * k + 1\noutput y = x\ncheck k < 2 or all(x < 0)\n"
    case = Case(text, arrays={"x": np.ones(35, np.float32)}, params={"k": 17}, sizes={"N": 35})
    failure = again(case, Setting(passes="none")).failure
    assert failure is not None
    small = Reducer(failure, Setting(passes="none")).run().case
    assert small.params == {"k": 2} and small.sizes == {"N": 5} and not small.arrays["x"].any()


def test_params_keep_to_their_domains() -> None:
    """No set is lost to a param without a default."""
    for _, draw in drawn_sets("param k: f32 where 0.6 < k < 0.9\nparam n: i32 where 11 <= n <= 13\ninput x: f32[N]\n"
                              "output y = x * k + f32(n)\n", 40):  # fmt: skip
        assert 0.6 < draw.bound.inputs["k"] < 0.9 and 11 <= draw.bound.sizes["n"] <= 13
