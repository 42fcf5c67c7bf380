"""Random cascades of the supported classes, on rows with infinities and NaN: the naive program's results, always."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from harness import cascaded, folds, rows, same
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs

from loopfuse.backends.reference import run
from loopfuse.passes.base import Options
from loopfuse.passes.cascade import cascade
from loopfuse.verify import verify

ELEMENTS = (
    "x[i, J]", "x[i, J] * 0.5f64", "x[i, J] + w[i, J]", "maximum(x[i, J], w[i, J])", "tanh(x[i, J])",
    "x[i, J] if w[i, J] > 0.0f64 else -inf:f64", "where({J} <= {i}, x[i, J], -inf:f64)", "-abs(x[i, J])",
)  # fmt: skip
WEIGHTS = ("", " * w[i, J]", " / (1.0f64 + w[i, J] * w[i, J])", " * f64({J + 1})")
HEADERS = (
    "fold J < N",
    "fold J in 0 .. min(N, i + 1)",
    "fold J in i .. min(N, i + 3)",
    "fold J < N where w[i, J] > 0.0f64",
)
BASES = ("m", "b")
START = """program t(M, N)
buf x: f64[M, N] in
buf w: f64[M, N] in
buf y: f64[M] out
buf z: f64[M] out
kernel k
  par i < M
"""


def fold(header: str, index: str, acc: str, monoid: str, term: str) -> str:
    return (
        f"    {header}\n      acc {acc}: f64 {monoid}\n      e{acc} = {term}\n      {acc} <- e{acc}\n"
    ).replace("J", index)  # fmt: skip


@st.composite
def exponentials(draw: st.DrawFn) -> str:
    """A maximum, a sum of exponentials about it, perhaps a normalised weighted sum."""
    header, element = draw(st.sampled_from(HEADERS)), draw(st.sampled_from(ELEMENTS))
    weight, base = draw(st.sampled_from(WEIGHTS)), draw(st.sampled_from(BASES))
    function, scale = draw(st.sampled_from((("exp", ""), ("exp2", ""), ("exp", " * 0.25f64"))))
    masked = draw(st.booleans())

    def power(by: str) -> str:
        made = f"{function}((({element}) - {by}){scale})"
        return f"{made} if {{J + i}} != {{3}} else 0.0f64" if masked else made

    text = START + fold(header, "j", "m", "max", element)
    text += "    b = where(isfinite(m), m, 0.0f64)\n" if base == "b" else ""
    if draw(st.booleans()):
        text += fold(header, "j.1", "l", "sum", power(base)) + "    y[i] = l\n"
        third = f"({power(base)}) / l{weight}"
    else:
        text += "    y[i] = m\n"
        third = f"({power(base)}){weight}" if base == "m" else f"({power(base)})"
    return text + fold(header, "j.2", "o", "sum", third) + "    z[i] = o\n"


@st.composite
def moments(draw: st.DrawFn) -> str:
    """A sum, and sums of what depends on it."""
    header, element = (
        draw(st.sampled_from(HEADERS[:1])),
        draw(st.sampled_from(("x[i, J]", "x[i, J] * 0.5f64 + 3.0f64"))),
    )
    text = START + fold(header, "j", "s", "sum", element)
    text += "    a = s / f64'({N})\n"
    terms = [
        ("sum", f"(({element}) - a) ** 2.0f64"), ("sum", f"(({element}) - a) * w[i, J]"),
        ("sum", f"(a - ({element})) * (({element}) - a)"), ("max", f"({element}) - a"), ("min", f"({element}) + s"),
        ("max", f"a - ({element})"), ("sum", f"w[i, J] * (({element}) - a) + {element}"),
        ("sum", f"({element}) * w[i, J] * rsqrt(1.0f64 + a * a)"),
    ]  # fmt: skip
    first, second = (draw(st.sampled_from(terms)) for _ in range(2))
    text += fold(header, "j.1", "l", *first) + "    y[i] = l\n"
    return text + fold(header, "j.2", "o", *second) + "    z[i] = o\n"


def check(text: str, seed: int, extent: int) -> None:
    program, outcome = cascaded(text)
    assert not [r.text for r in outcome.remarks if r.missed]
    assert len(folds(outcome.program)) == 1
    rng = np.random.default_rng(seed)
    x, w = rows(rng, 9, extent), rng.standard_normal((9, extent))
    same(program, outcome.program, {"x": x, "w": w}, {"M": 9, "N": extent}, 1e-11, 1e-10)


@settings(max_examples=20)
@given(exponentials(), st.integers(0, 1 << 30), st.sampled_from((0, 1, 2, 9, 40)))
def test_exponentials(text: str, seed: int, extent: int) -> None:
    check(text, seed, extent)


@settings(max_examples=20)
@given(moments(), st.integers(0, 1 << 30), st.sampled_from((0, 1, 2, 9, 40)))
def test_moments(text: str, seed: int, extent: int) -> None:
    check(text, seed, extent)


@settings(max_examples=20)
@given(st.data())
def test_any_program_keeps_its_bits_under_strict(data: st.DataObject) -> None:
    program = replace(data.draw(ir_programs()), numerics="strict")
    sizes, inputs = data.draw(ir_inputs(program))
    after = cascade(program, Options()).program
    verify(after)
    want, found = (run(p, inputs, sizes).outputs for p in (program, after))
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value)
