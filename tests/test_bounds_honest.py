"""Derived bounds against exact arithmetic: plans that a correct compiler may choose stay inside, and not much is inside
beside them.

A plan is an order of a sum and a choice, at each product that is added, of one rounding or two. The exact result comes
from rational numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopfuse import numerics
from loopfuse.backends.reference import Bounded, agrees, run_bounded, vague
from loopfuse.cli import main
from loopfuse.diag import Source
from loopfuse.driver import compile_source, lower_program
from loopfuse.dtypes import F32
from loopfuse.generate import Array

F = np.float32
N = 24  # elements a program
EXAMPLES = settings().max_examples // 5


def bounded(text: str, **inputs: Array) -> Bounded:
    """The one output of a script with its bound."""
    made = lower_program(compile_source(Source("test", text)).typed)
    (found,) = run_bounded(made.program, inputs, {}).values()
    return found


# -- chains -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """An expression over the inputs a, b, c: a leaf, or an operation on two."""

    op: str
    left: Node | None = None
    right: Node | None = None

    def text(self) -> str:
        """In the language."""
        return (
            self.op
            if self.left is None or self.right is None
            else f"({self.left.text()} {self.op} {self.right.text()})"
        )


LEAVES = st.sampled_from("abc").map(Node)
TREES = st.recursive(LEAVES, lambda t: st.builds(Node, st.sampled_from("++--***/"), t, t), max_leaves=14)


def plan(node: Node, inputs: dict[str, Array], rng: random.Random) -> Array:
    """The expression in f32, products contracted with the sum around them or not, as the dice say."""
    if node.left is None or node.right is None:
        return inputs[node.op]
    for product, other, turned in ((node.left, node.right, False), (node.right, node.left, True)):
        if node.op in "+-" and product.op == "*" and rng.random() < 0.5:
            assert product.left is not None and product.right is not None
            x, y = plan(product.left, inputs, rng), plan(product.right, inputs, rng)
            z = plan(other, inputs, rng)
            if node.op == "-":
                x, z = (-x, z) if turned else (x, -z)
            return numerics.fma(x, y, z, F32)
    x, y = plan(node.left, inputs, rng), plan(node.right, inputs, rng)
    return {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[node.op](x, y)


def exact(node: Node, inputs: dict[str, Fraction]) -> Fraction:
    """The expression in rational numbers. Raises `ZeroDivisionError`."""
    if node.left is None or node.right is None:
        return inputs[node.op]
    x, y = exact(node.left, inputs), exact(node.right, inputs)
    return x + y if node.op == "+" else x - y if node.op == "-" else x * y if node.op == "*" else x / y


def values(seed: int, shape: tuple[int, ...], spread: float) -> Array:
    """Numbers of either sign whose magnitudes are spread over that many powers of ten."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)).astype(F)


@settings(max_examples=EXAMPLES)
@given(TREES, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 2.0, 6.0]))
def test_chains_stay_inside(tree: Node, seed: int, spread: float) -> None:
    inputs = {name: values(seed + k, (N,), spread) for k, name in enumerate("abc")}
    text = "".join(f"input {name}: f32[{N}]\n" for name in inputs) + f"output y = {tree.text()}\n"
    found = bounded(text, **inputs)
    rng = random.Random(seed)
    with np.errstate(all="ignore"):
        for _ in range(4):
            assert (miss := agrees(found, plan(tree, inputs, rng))) is None, (tree.text(), miss)
    for k in np.flatnonzero(~found.undecided & np.isfinite(found.value)):
        try:
            right = exact(tree, {name: Fraction(float(array[k])) for name, array in inputs.items()})
        except ZeroDivisionError:
            continue
        off = abs(right - Fraction(float(found.shadow[k])))
        # The shadow, in f64, rounds too.
        assert off <= Fraction(float(found.bound[k])) * (1 + Fraction(1, 2**20)), (tree.text(), k)


# -- sums -------------------------------------------------------------------------------------------------------------

DOT = """input a: f32[{n}]
input b: f32[{n}]
output y = sum(a[k] * b[k] for k)
"""


def in_some_order(a: Array, b: Array, rng: random.Random) -> Array:
    """The sum of products along a random tree, with random contraction."""
    terms: list[tuple[Array, Array | None]] = list(zip(a, b, strict=True))

    def done(term: tuple[Array, Array | None]) -> Array:
        return term[0] if term[1] is None else F(term[0] * term[1])

    depth = rng.choice(("pairs", "left", "random"))
    while len(terms) > 1:
        at = {"pairs": 0, "left": len(terms) - 2, "random": rng.randrange(len(terms) - 1)}[depth]
        first, second = terms.pop(at), terms.pop(at)
        if second[1] is not None and rng.random() < 0.5:
            made = numerics.fma(second[0], second[1], done(first), F32)
        else:
            made = F(done(first) + done(second))
        terms.insert(len(terms) if depth == "pairs" else at, (made, None))
    return np.asarray(done(terms[0]))


@settings(max_examples=EXAMPLES)
@given(st.integers(1, 150), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 5.0]))
def test_sums_in_any_order_stay_inside(n: int, seed: int, spread: float) -> None:
    a, b = values(seed, (n,), spread), values(seed + 1, (n,), spread)
    found = bounded(DOT.format(n=n), a=a, b=b)
    rng = random.Random(seed)
    for _ in range(4):
        assert (miss := agrees(found, in_some_order(a, b, rng))) is None, miss
    right = sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))
    off = abs(right - Fraction(float(found.shadow)))
    assert off <= Fraction(float(found.bound)) + n * Fraction(2) ** -53 * sum(
        abs(Fraction(float(x)) * Fraction(float(y))) for x, y in zip(a, b, strict=True)
    )


# -- how wide they are ------------------------------------------------------------------------------------------------

MOST_MEDIAN = 4.0  # of the bound of a chain without cancellation, in units of the worst plan seen
MOST_WORST = 1.1  # the same of a sum whose terms are chosen against it


def test_bounds_of_chains_are_a_few_times_the_worst_that_is_seen() -> None:
    """Positive numbers, so that nothing cancels; relative to the result, at the element where each is worst."""
    rng = random.Random(5)

    def tree(depth: int) -> Node:
        if depth == 0 or rng.random() < 0.15:
            return Node(rng.choice("abc"))
        return Node(rng.choice("++***/"), tree(depth - 1), tree(depth - 1))

    ratios = []
    for seed in range(40):
        node = Node("+", Node("*", Node("a"), tree(2)), tree(2))
        inputs = {name: np.abs(values(7 * seed + k, (N,), 0.3)) + F(0.1) for k, name in enumerate("abc")}
        text = "".join(f"input {name}: f32[{N}]\n" for name in inputs) + f"output y = {node.text()}\n"
        found = bounded(text, **inputs)
        worst = max(float(np.max(np.abs(plan(node, inputs, rng) - found.shadow) / found.shadow)) for _ in range(6))
        ratios.append(float(np.max(found.bound / found.shadow)) / worst)
    assert min(ratios) >= 1.0 and np.median(ratios) <= MOST_MEDIAN, (min(ratios), np.median(ratios), max(ratios))


@pytest.mark.parametrize("n", [10, 100, 500])
def test_the_bound_of_a_sum_is_reached(n: int) -> None:
    """Terms that are lost one by one beside a first large one, and not where they are added first."""
    a, b = np.full(n, 2.0**-12 * (1 - 2.0**-20), dtype=F), np.full(n, 2.0**-12, dtype=F)
    a[0] = b[0] = 1
    found = bounded(DOT.format(n=n), a=a, b=b)
    total = F(1)
    for k in range(1, n):
        total = F(total + a[k] * b[k])
    assert agrees(found, np.asarray(total)) is None
    assert float(found.bound) <= MOST_WORST * abs(float(total) - float(found.shadow))


# -- what must not be inside ------------------------------------------------------------------------------------------


def test_a_declared_cast_that_is_left_out_is_caught() -> None:
    x = values(3, (N,), 0)
    for mode in ("strict", "default", "fast"):
        found = bounded(f"numerics {mode}\ninput x: f32[{N}]\noutput y = f32(f16(x))\n", x=x)
        assert agrees(found, x.astype(np.float16).astype(F)) is None
        miss = agrees(found, x)
        assert miss is not None and miss.wrong >= N - 1 and not found.undecided.any()
        mixed = bounded(f"numerics {mode}\ninput x: f32[{N}]\noutput y = f32(f16(x * 1.1 if x > 0 else x))\n", x=x)
        assert agrees(mixed, np.where(x > 0, x * F(1.1), x).astype(np.float16).astype(F)) is None
        miss = agrees(mixed, np.where(x > 0, mixed.value, x))
        assert miss is not None and miss.wrong >= np.count_nonzero(x < 0) - 1


def test_an_implied_rounding_may_be_left_out_but_in_strict() -> None:
    x = np.full(N, 300, dtype=np.float16)
    text = f"input x: f16[{N}]\noutput y = x * x / 300\n"
    assert bounded(text, x=x).undecided.all()
    assert not bounded(f"numerics strict\n{text}", x=x).undecided.any()


def test_an_overflow_at_the_declared_width_is_the_programs_own() -> None:
    """No correct program computes f32 wider, but for a product that is added."""
    x = np.array([-100, 1, 100], dtype=F)
    found = bounded("input x: f32[3]\noutput y = 1 / (1 + exp(-x))\n", x=x)
    assert not found.undecided.any() and found.value[0] == 0
    wrong = found.value.copy()
    wrong[0] = np.nan
    assert agrees(found, wrong) is not None
    big = np.array([1e20, 2e20, 1], dtype=F)
    assert bounded("input x: f32[3]\noutput y = x * x - 1e38\n", x=big).undecided.tolist() == [True, True, False]
    exact = bounded("numerics strict\ninput x: f32[3]\noutput y = x * x - 1e38\n", x=big)
    assert not exact.undecided.any() and np.isinf(exact.value[0])
    products = bounded(
        "numerics strict\ninput x: f32[4]\noutput y = prod(x)\n", x=np.array([1e30, 1e30, 1e-30, 1e-30], F)
    )
    assert products.undecided  # in another order it does not overflow


def test_a_weight_of_minus_infinity_is_exactly_zero_in_fast() -> None:
    """An error that grows with the operand ends where the function is at its limit."""
    x = np.array([-np.inf, -1e30, 0, 1], dtype=F)
    found = bounded("numerics fast\ninput x: f32[4]\noutput y = exp(x)\n", x=x)
    assert not found.undecided.any() and np.all(found.bound[:2] < 2.0**-125)
    wrong = found.value.copy()
    wrong[0] = np.nan
    assert agrees(found, wrong) is not None


# -- what says nothing ------------------------------------------------------------------------------------------------


def test_an_integer_is_rounded_alike_everywhere() -> None:
    """And an exponent that may be off by one has no sign to give to a power of a negative number."""
    x, n = np.array([-1, -2, 2], dtype=F), np.array([2**31 - 1, 3, 5], dtype=np.int32)
    found = bounded("input n: i32[3]\ninput x: f32[3]\noutput y = x ** f32(n)\n", n=n, x=x)
    assert found.value.tolist() == [1.0, -8.0, 32.0] and not found.undecided.any() and found.bound[0] < 1e-5
    third = bounded("input n: i32[3]\ninput x: f32[3]\noutput y = x ** (f32(n) * (1.0 / 3.0))\n", n=n, x=x)
    assert third.undecided.tolist() == [False, True, False]  # 2^31 over three is exact, as a power of two times it


def test_a_bound_that_says_nothing_is_counted() -> None:
    x = np.linspace(0.5, 1.5, N, dtype=F)
    ill = bounded(f"input x: f32[{N}]\noutput y = (x * 1e9 + 0.25) - x * 1e9\n", x=x)
    assert vague(ill) == N and agrees(ill, (ill.value + F(20))) is None
    assert vague(bounded(f"input x: f32[{N}]\noutput y = x * 3 + 1\n", x=x)) == 0
    assert vague(bounded(f"input x: f32[{N}]\noutput y = x - mean(x)\n", x=x)) == 0
    assert vague(bounded(f"input x: f32[{N}]\noutput y = exp(-500 * x)\n", x=x)) == 0  # tiny as a whole
    assert vague(bounded(f"input x: f32[{N}]\noutput y = x - x\n", x=x)) == 0  # exact


def test_check_tells_of_bounds_that_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of f16, whose implied roundings the passes drop; where all passes keep the bits no bound is needed."""
    script = tmp_path / "ill.lf"
    script.write_text("input x: f16[N] where x > 0.9 and x < 1.1\noutput y = (x * 1000 + 0.1) - x * 1000 - 0.1\n")
    assert main(["check", "--every-pass", str(script)]) == 0
    told = "".join(capsys.readouterr())
    assert "say nothing, since the program is ill-conditioned on this data" in told
    script.write_text("input x: f16[N] where x > 0.9 and x < 1.1\noutput y = x * 1.5 + 0.1\n")
    assert main(["check", "--every-pass", str(script)]) == 0
    assert "say nothing" not in "".join(capsys.readouterr())


def test_a_nan_has_no_sign() -> None:
    """What made it decides its sign, which differs between processors."""
    x = np.array([-np.inf, 1], dtype=F)
    found = bounded("input x: f32[2]\noutput y = copysign(x, sin(x))\n", x=x)
    assert found.undecided.tolist() == [True, False]
    assert bounded("input x: f32[2]\noutput y = bits(sqrt(x), u32)\n", x=x).undecided.tolist() == [True, False]
