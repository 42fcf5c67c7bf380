"""Mistakes planted in the passes themselves: bisecting names the pass, the step in it, and the data that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from loopfuse import driver
from loopfuse.analysis import hashing
from loopfuse.bind import Given
from loopfuse.bisect import Culprit, bisect
from loopfuse.diag import Source
from loopfuse.dtypes import F16, F32
from loopfuse.ir import Acc, Buffer, Const, Expr, Load, Loop, Op, Store
from loopfuse.ops import from_bits, to_bits, to_number
from loopfuse.passes import contract, distribute, fold, peephole, simplify
from loopfuse.passes.cascade import terms
from loopfuse.passes.distribute import units
from loopfuse.passes.merge import blocks, inlining
from loopfuse.passes.rulefile import read_rules
from loopfuse.passes.sharing import safety
from loopfuse.passes.window import regions
from loopfuse.sizes import Poly

Patch = pytest.MonkeyPatch


def culprit(script: str, passes: str = "default") -> Culprit | None:
    """What bisecting finds in the passes as they are, as `loopfuse bisect` does without data."""
    typed = driver.compile_source(Source("s.lf", script)).typed
    data, _ = driver.trial_data(typed, Given({}, fill=True))
    return bisect(driver.lower_program(typed), data, passes)


# -- the bugs ---------------------------------------------------------------------------------------------------------


def wrong_rule(patch: Patch) -> None:
    """x - x is not 0 where x is infinite or NaN."""
    rules = (*read_rules("difference-of-one: x - x => 0"), *simplify.specs())
    patch.setattr(simplify, "specs", lambda: rules)


def endless_rule(patch: Patch) -> None:
    """A sum that is turned for ever."""
    rules = (*read_rules("turn: x - y => -(y - x)"), *simplify.specs())
    patch.setattr(simplify, "specs", lambda: rules)


def ignored_dependence(patch: Patch) -> None:
    """What lies between two loops may stay where it is."""
    patch.setattr(blocks, "_needed", lambda after, stmt, scope: [])


def equal_extents(patch: Patch) -> None:
    """Indices of equal extents are one, whatever they are used for."""

    def pairing(first: Loop, second: Loop, scope: Any) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for c in second.dims:
            equal = (
                a.id
                for a in first.dims
                if a.id not in pairs.values() and scope.env.value(a.hi[0]) == scope.env.value(c.hi[0])
            )
            if (a := next(equal, None)) is not None:
                pairs[c.id] = a
        return pairs

    patch.setattr(blocks, "pairing", pairing)


def short_halo(patch: Patch) -> None:
    """The part of an array that a tile needs ends one too early."""
    image = regions.image

    def short(*given: Any) -> regions.Region | None:
        found = image(*given)
        return found and replace(found, hi=tuple(p - 1 for p in found.hi))

    patch.setattr("loopfuse.passes.window.image", short)
    patch.setattr("loopfuse.passes.window.stages.image", short, raising=False)


def dropped_repair(patch: Patch) -> None:
    absorb = terms.Rewriter._absorb

    def bare(self: terms.Rewriter, made: Any, acc: Acc, value: Expr, store: Store) -> None:
        absorb(self, made, replace(acc, repair=None), value, store)

    patch.setattr(terms.Rewriter, "_absorb", bare)


def unguarded_pole(patch: Patch) -> None:
    peak = terms.Rewriter._peak

    def found(self: terms.Rewriter, power: Any, conds: Any) -> Any:
        first, rest = peak(self, power, conds)
        return first and (*first[:2], False), rest

    patch.setattr(terms.Rewriter, "_peak", found)


def mode_of_argument(patch: Patch) -> None:
    """The fill goes into what the value is computed from."""
    value = inlining._Inliner._value

    def wrong(self: Any, load: Load, lets: Any, known: Any) -> Expr:
        modes = {k: m for k, m in enumerate(load.modes) if m is not None and m.kind == "constant"}
        polys = [self.scope.poly(s) for s in load.subs]
        if not modes or None in polys:
            return value(self, load, lets, known)
        made = self.definitions[load.buffer]
        indices = dict(zip(made.axes, polys, strict=True))
        body: Expr = self._body(made, indices, {made.axes[k]: m for k, m in modes.items()}, lets, load)
        return body

    patch.setattr(inlining._Inliner, "_value", wrong)


def equal_zeros(patch: Patch) -> None:
    """Constants are compared as Python does: 0.0 == -0.0."""
    node = hashing.Keys.node

    def loose(self: hashing.Keys, expr: Expr, operands: list[bytes]) -> bytes:
        if isinstance(expr, Const) and to_number(expr.bits, expr.dtype) == 0:
            expr = replace(expr, bits=0)
        return node(self, expr, operands)

    patch.setattr(hashing.Keys, "node", loose)


def narrow_fold(patch: Patch) -> None:
    """Constants of f32 are folded in f16."""
    evaluate = fold.evaluate

    def narrow(op: Op) -> Const | None:
        made = evaluate(op)
        if made is None or made.dtype != F32:
            return made
        return replace(made, bits=to_bits(F32.numpy.type(F16.numpy.type(from_bits(made.bits, F32))), F32))

    patch.setattr(fold, "evaluate", narrow)


def moved_carry(patch: Patch) -> None:
    """What the trip before gives is not asked for."""
    dependences = units.dependences
    patch.setattr(distribute, "dependences", lambda found: [d for d in dependences(found) if d.trip != 1])


def truncating_division(patch: Patch) -> None:
    """-7 // 4 is -2, and not -1."""
    line = "div-trunc: x // c => (x + ((x >> 31) & (c - 1))) >> exponent(c) where i32(x), power(c), atomic(x)"
    rules = (*read_rules(line), *peephole.specs())
    patch.setattr(peephole, "specs", lambda: rules)


def short_window(patch: Patch) -> None:
    """A recurrence keeps one value where it needs two."""
    shrunk = contract._shrunk

    def short(v: Any, buffer: Buffer) -> Buffer:
        found = shrunk(v, buffer)
        window = tuple((lo, (hi[0] - 1,) if hi[0] - lo[0] == Poly.of(2) else hi) for lo, hi in found.window or ())
        return replace(found, window=window or None)

    patch.setattr(contract, "_shrunk", short)


def unguarded_load(patch: Patch) -> None:
    patch.setattr(safety.Safety, "safe", lambda self, root, infos, point, values: True)


# -- where they show --------------------------------------------------------------------------------------------------

SOFTMAX = """input x: f32[M, N]
let m[i] = max(x[i, j] for j)
let e[i, j] = exp(x[i, j] - m[i])
output y[i, j] = e[i, j] / sum(e[i, k] for k)
"""


@dataclass(frozen=True)
class Planted:
    """A bug, a script that it breaks, and what bisecting says: the pass, whether the program is broken or its results
    differ, parts of the step's description and of the problem, and the data that shows it (the verifier needs none)."""

    bug: Callable[[Patch], None]
    script: str
    pass_name: str
    invalid: bool
    step: str
    problem: str
    data: str


BUGS = [
    Planted(wrong_rule, """input x: f32[N]
input w: f32[N]
let d = x * 1 - w
output y = d * 2 + (x - x)
""",
            "simplify", False, "difference-of-one: ", "`y`[0] is", "infinities and NaN"),
    Planted(endless_rule, """input x: f32[N]
input w: f32[N]
output y = x - w
""",
            "simplify", True, "turn: x[i] - w[i] => ", "no fixed point", ""),
    Planted(ignored_dependence, SOFTMAX,
            "fuse", True, "fuse `m` with `e`", "an element of `m` may be read before it is written", ""),
    Planted(equal_extents, """input x: f32[M, N]
let t[i] = exp(sum(x[i, j] for j))
output y[j] = max(x[i, j] * t[i] for i)
""",
            "fuse", True, "fuse `t` with `y`", "an element of `t` may be read before it is written", ""),
    Planted(short_halo, """input u: f32[N]
let a[i in 0..N] = exp(sin(edge(u)[i - 1]) + u[i])
output b[i in 0..N] = edge(a)[i - 1] + edge(a)[i + 1] * a[i]
""",
            "fuse", True, "fuse `a` with `b`", "may be outside the window of axis 0 of `a`", ""),
    Planted(dropped_repair, SOFTMAX,
            "cascade", True, "joins the loop of the maximum", "is not a later, repaired accumulator", ""),
    Planted(unguarded_pole, SOFTMAX,
            "cascade", True, "joins the loop of the maximum", "the repair of `sum` is not what its term implies", ""),
    Planted(mode_of_argument, """input x: f32[N]
let t = x * 2 + 1
output y[i in 0..N] = constant(t, 0)[i - 1] + t[i]
""",
            "fuse", False, "fuse `t` with `y`", "`y`[0] is", "N = 5"),
    Planted(equal_zeros, """input x: f32[N]
let a = x * 0.0
let b = x * -0.0
output y = 1 / a
output z = 1 / b
""",
            "bodies", False, "compute `x[i] * 0.0f32` once", "`z`[0] is inf, and was -inf before", "N = 5"),
    Planted(narrow_fold, """input x: f32[N]
output y = x * (2 ** 3) + (f32(1) + f32(1)) * x
output z = x + (f32(1) / f32(3) + f32(1))
output w = x * (f32(16777216) + f32(1) + f32(1))
""",
            "constprop", False, "1.0f32 / 3.0f32 is 0.33325195f32", "`z`[0] is", "N = 5"),
    Planted(moved_carry, """input x: f32[T, N]
scan t in 0..T carry (h = zeros(f32, N)) {
  let a = exp(h) * 0.5
  let b = x[t] * a
  next h = b
  emit ys = a
}
output ys
output h
""",
            "distribute", True, "compute `a` before the loop", "an element of `h` may be read before it is written", ""),
    Planted(truncating_division, """input x: i32[N]
output y = x // 4
output z = x * 8
""",
            "peephole", False, "div-trunc: ", "`y`[", "zeros of both signs"),
    Planted(short_window, """input x: f32[T, N]
scan t in 0..T carry (h = zeros(f32, N)) {
  let a = exp(h) * 0.5
  next h = x[t] * a
}
output h
""",
            "contract", True, "contract `h`", "may be outside the window of axis 0 of `h`", ""),
    Planted(unguarded_load, """input x: f32[N]
input w: f32[M]
output y[i in 0..N] = sum(exp(w[i]) * x[j] if i < M else 0 for j)
""",
            "bodies", True, "compute `exp(w[i])` outside its loop", "may be outside axis 0 of `w`", ""),
]  # fmt: skip


@pytest.mark.parametrize("planted", BUGS, ids=lambda p: p.bug.__name__)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.bug(monkeypatch)
    found = culprit(planted.script)
    assert found is not None
    assert (found.pass_name, found.invalid) == (planted.pass_name, planted.invalid)
    assert found.step is not None and planted.step in found.description
    assert planted.problem in found.problem
    assert planted.data in found.data and bool(found.data) != planted.invalid
    if found.after is not None:
        assert found.before != found.after
    assert (found.after is None) == (planted.bug is endless_rule)


@pytest.mark.parametrize("script", sorted({p.script for p in BUGS}))
def test_without_a_bug_nothing_is_found(script: str) -> None:
    assert culprit(script) is None
