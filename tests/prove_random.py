"""Random small problems for the prover, and their brute-force truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from loopfuse.dtypes import BOOL, I32, I64, U8
from loopfuse.ir import Affine, Expr, Load, Op, Ref, Select
from loopfuse.prove import Facts, Judgement, judge
from loopfuse.sizes import ONE, ZERO, Poly

Env = dict[str, int]
Arrays = dict[str, list[int]]
Truth = Callable[[Env, Arrays], bool]
_COMPARE = {
    "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__,
}  # fmt: skip


@dataclass
class Problem:
    """Sizes with their ranges, loops, requirements, guards, and arrays of one axis with the range of their elements."""

    sizes: dict[str, range]
    params: dict[str, range]
    loops: list[tuple[str, tuple[Poly, ...], tuple[Poly, ...], int]]
    require: list[Expr]
    guards: list[tuple[Expr, bool]]
    arrays: dict[str, tuple[Poly, Poly] | None] = field(default_factory=dict)
    masks: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    lets: list[tuple[str, Expr]] = field(default_factory=list)
    multiples: dict[str, int] = field(default_factory=dict)
    subs: list[Expr] = field(default_factory=list)
    extent: Poly = ZERO
    num: Poly = ZERO
    den: Poly = ONE

    def facts(self) -> Facts:
        """What the prover is told."""
        facts = Facts.empty()
        for name in self.sizes:
            facts = facts.size(name, multiple=self.multiples.get(name, 1))
        for name in self.params:
            facts = facts.size(name, least=None)
        for cond in self.require:
            facts = facts.assume(cond)
        for name, span in self.arrays.items():
            if span:
                facts = facts.value_range(name, (span[0],), (span[1],))
        for name, (index, value) in self.masks.items():
            facts = facts.define(name, (index,), value)
        for name, lo, hi, step in self.loops:
            facts = facts.index(name, lo, hi, Poly.of(step))
        for name, value in self.lets:
            facts = facts.let(name, value)
        for cond, truth in self.guards:
            facts = facts.assume(cond, truth)
        return facts

    def assignments(self, rng: Random, most: int) -> Iterator[Env]:
        """Sizes and params that meet the requirements and divide by nothing that is zero."""
        names = {**self.sizes, **self.params}
        if math.prod(map(len, names.values())) <= 4000:
            every = list(itertools.product(*names.values()))
            rng.shuffle(every)
        else:
            every = [tuple(map(rng.choice, names.values())) for _ in range(2000)]
        found = 0
        for values in every:
            env = dict(zip(names, values, strict=True))
            if any(env[n] % m for n, m in self.multiples.items()):
                continue
            if all(d.value(env) for d in self.divisors()) and all(holds(self, c, env, {}) for c in self.require):
                yield env
                found += 1
                if found == most:
                    return

    def divisors(self) -> set[Poly]:
        """All divisors over sizes alone."""
        polys = [p for _, lo, hi, _ in self.loops for p in (*lo, *hi)] + [self.extent, self.num]
        polys += [p for span in self.arrays.values() if span for p in span]
        exprs = [*self.require, *self.subs, *(c for c, _ in self.guards), *(v for _, v in self.lets)]
        exprs += [v for _, v in self.masks.values()]
        for e in exprs:
            polys += _polys(e)
        names = self.sizes.keys() | self.params.keys()
        return {q.den for p in polys for q in p.quotients() if q.den.names <= names} | {self.den}

    def iterations(self, env: Env, arrays: Arrays) -> Iterator[Env]:
        """The iterations where the guards hold."""

        def walk(at: int, env: Env) -> Iterator[Env]:
            if at == len(self.loops):
                env = dict(env)
                for name, value in self.lets:
                    env[name] = number(self, value, env, arrays)
                if all(holds(self, c, env, arrays) == truth for c, truth in self.guards):
                    yield env
                return
            name, lo, hi, step = self.loops[at]
            for value in range(max(p.value(env) for p in lo), min(p.value(env) for p in hi), step):
                yield from walk(at + 1, {**env, name: value})

        yield from walk(0, env)

    def contents(self, rng: Random, env: Env) -> Arrays | None:
        """Arrays that keep their ranges, or None where a range is empty."""
        found = {}
        for name, span in self.arrays.items():
            lo, hi = (p.value(env) for p in span) if span else (0, 255)
            if lo > hi:
                return None
            found[name] = [rng.choice([lo, hi, rng.randint(lo, hi)]) for _ in range(16)]
        return found


def _polys(e: Expr) -> list[Poly]:
    match e:
        case Affine():
            return [e.poly]
        case Op():
            return [p for a in e.args for p in _polys(a)]
        case Load():
            return [p for a in e.subs for p in _polys(a)]
        case Select():
            return [p for a in (e.cond, e.then, e.other) for p in _polys(a)]
    return []


def number(problem: Problem, e: Expr, env: Env, arrays: Arrays) -> int:
    """The value of an integer expression; i32 and u8 wrap."""
    match e:
        case Affine():
            return int(e.poly.value(env))
        case Ref():
            return env[e.id]
        case Load():
            return arrays[e.buffer][number(problem, e.subs[0], env, arrays) % 16]
        case Select():
            return number(problem, e.then if holds(problem, e.cond, env, arrays) else e.other, env, arrays)
        case Op(op="where"):
            return number(problem, e.args[1 if holds(problem, e.args[0], env, arrays) else 2], env, arrays)
        case Op(op="cast") if e.args[0].dtype == BOOL:
            return int(holds(problem, e.args[0], env, arrays))
    assert isinstance(e, Op)
    return _wrapped(_raw(e.op, [number(problem, a, env, arrays) for a in e.args], e.dtype.bits), e)


def _raw(op: str, args: list[int], bits: int) -> int:
    a, b = args[0], args[-1]
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // b if b else 0
        case "mod":
            return a % b if b else 0
        case "minimum":
            return min(a, b)
        case "maximum":
            return max(a, b)
        case "clip":
            return min(max(a, args[1]), b)
        case "bitand":
            return a & b
        case "bitor":
            return a | b
        case "bitxor":
            return a ^ b
        case "shl":
            return a << b if 0 <= b < bits else 0
        case "shr":
            return a >> b if 0 <= b < bits else -(a < 0)
        case "abs":
            return abs(a)
        case "sign":
            return (a > 0) - (a < 0)
        case "cast":
            return a
        case "neg":
            return -a
        case "invert":
            return ~a
    raise AssertionError(op)


def _wrapped(value: int, e: Expr) -> int:
    value &= (1 << e.dtype.bits) - 1
    return value - (1 << e.dtype.bits) if e.dtype.kind == "int" and value > e.dtype.greatest else value


def holds(problem: Problem, e: Expr, env: Env, arrays: Arrays) -> bool:
    """The truth of a condition."""
    match e:
        case Op(op="and"):
            return holds(problem, e.args[0], env, arrays) and holds(problem, e.args[1], env, arrays)
        case Op(op="or"):
            return holds(problem, e.args[0], env, arrays) or holds(problem, e.args[1], env, arrays)
        case Op(op="not"):
            return not holds(problem, e.args[0], env, arrays)
        case Select():
            return holds(problem, e.then if holds(problem, e.cond, env, arrays) else e.other, env, arrays)
        case Load():
            index, value = problem.masks[e.buffer]
            return holds(problem, value, {**env, index: number(problem, e.subs[0], env, arrays)}, arrays)
    assert isinstance(e, Op), e
    a, b = (number(problem, x, env, arrays) for x in e.args)
    return bool(_COMPARE[e.op](a, b))


_CHOICES = (
    "add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "minimum", "maximum", "clip", "bitand", "bitor",
    "bitxor", "shr", "shl", "abs", "sign", "select", "cast32", "mask", "neg", "where", "invert",
)  # fmt: skip


# -- generation -------------------------------------------------------------------------------------------------------


class Generator:
    """Makes problems of a few names and small numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sizes = ["A", "B"][: self.rng.randint(1, 2)]
        self.params = ["p"] if self.rng.random() < 0.3 else []
        self.arrays: dict[str, tuple[Poly, Poly] | None] = {}
        self.masks: dict[str, tuple[str, Expr]] = {}

    def poly(self, names: list[str], depth: int = 2) -> Poly:
        """A small polynomial over names."""
        roll = self.rng.random()
        if depth == 0 or roll < 0.35:
            return Poly.of(self.rng.choice(names)) if names and self.rng.random() < 0.75 else self.constant()
        a, b = self.poly(names, depth - 1), self.poly(names, depth - 1)
        if roll < 0.55:
            return a + b
        if roll < 0.7:
            return a - b
        if roll < 0.78:
            return a * b
        if roll < 0.82:
            return a * self.rng.randint(1, 3)
        den = Poly.of(self.rng.choice([2, 2, 3, 4])) if self.rng.random() < 0.6 else self.divisor()
        return a // den if roll < 0.93 else a % den

    def divisor(self) -> Poly:
        """A divisor over sizes and params."""
        den = Poly.of(self.rng.choice(self.sizes + self.params))
        return den + self.rng.choice([0, 0, 1, -1])

    def constant(self) -> Poly:
        """A small number."""
        return Poly.of(self.rng.choice([0, 1, 1, 2, 3, -1, 4]))

    def comparison(self, names: list[str], data: bool) -> Expr:
        """A comparison, at times `x % d == c`."""
        if self.rng.random() < 0.25 and names:
            d = self.rng.randint(2, 3)
            left: Expr = Affine(self.poly(names, 1) % d)
            right: Expr = Affine(Poly.of(self.rng.choice([0, 0, 1])))
            return Op("eq", (left, right), BOOL)
        op = self.rng.choice(["lt", "le", "gt", "ge", "lt", "le", "eq", "ne"])
        return Op(op, (self.expr(names, data, 1), self.expr(names, False, 1)), BOOL)

    def condition(self, names: list[str], depth: int, data: bool) -> Expr:
        """A condition."""
        roll = self.rng.random()
        if self.masks and data and roll < 0.12 and names:
            mask = self.rng.choice(list(self.masks))
            return Load(mask, (Affine(self.poly(names, 1)),), (None,), BOOL)
        if depth == 0 or roll < 0.55:
            return self.comparison(names, data)
        a, b = self.condition(names, depth - 1, data), self.condition(names, depth - 1, data)
        if roll < 0.72:
            return Op("and", (a, b), BOOL)
        if roll < 0.86:
            return Op("or", (a, b), BOOL)
        if roll < 0.94:
            return Op("not", (a,), BOOL)
        return Select(a, b, self.condition(names, 0, data))

    def expr(self, names: list[str], data: bool, depth: int = 2) -> Expr:
        """An integer expression of type i64 (narrower inside casts)."""
        roll = self.rng.random()
        if not data or depth == 0 or roll < 0.6:
            if data and self.arrays and self.rng.random() < 0.25 and names:
                name = self.rng.choice(list(self.arrays))
                load = Load(name, (Affine(Poly.of(self.rng.choice(names))),), (None,), I64 if self.arrays[name] else U8)
                return load if load.dtype == I64 else Op("cast", (load,), I64)
            return Affine(self.poly(names, 2))
        a, b = self.expr(names, data, depth - 1), self.expr(names, data, depth - 1)
        op = self.rng.choice(_CHOICES)
        if op in ("select", "where"):
            cond = self.condition(names, 1, data)
            return Select(cond, a, b) if op == "select" else Op("where", (cond, a, b), I64)
        if op == "clip":
            return Op("clip", (a, b, self.expr(names, data, 0)), I64)
        if op in ("abs", "sign", "neg", "invert"):
            return Op(op, (a,), I64)
        if op == "cast32":
            narrow = self.rng.choice([I32, U8])
            inner = Op("add", (Op("cast", (a,), narrow), Op("cast", (b,), narrow)), narrow)
            return Op("cast", (inner,), I64)
        if op == "mask":
            return Op("cast", (self.condition(names, 0, data),), I64)
        if op == "bitand" and self.rng.random() < 0.5:
            b = Affine(Poly.of(self.rng.choice([1, 3, 7])))
        if op == "shl":
            a = Affine(ONE)
        return Op(op, (a, b), I64)

    def problem(self) -> Problem:
        """A whole problem."""
        rng = self.rng
        outer = self.sizes + self.params
        multiples = {n: rng.choice([2, 3]) for n in self.sizes if rng.random() < 0.15}
        require = [self.condition(outer, 1, False) for _ in range(rng.choice([0, 0, 1, 1, 2]))]
        data = rng.random() < 0.5
        if data:
            self.arrays = {"u": None}
            low = self.constant()
            self.arrays["d"] = (low, low + self.poly(outer, 1))
        loops: list[tuple[str, tuple[Poly, ...], tuple[Poly, ...], int]] = []
        names = list(outer)
        for name in ["i", "j", "k"][: rng.randint(1, 3)]:
            lo = [ZERO] if rng.random() < 0.7 else [self.poly(names, 1)]
            hi = [Poly.of(rng.choice(outer))] if rng.random() < 0.4 else [self.poly(names, 2)]
            if rng.random() < 0.1:
                lo.append(self.poly(names, 1))
            if rng.random() < 0.15:
                hi.append(self.poly(names, 1))
            step = rng.choice([1, 1, 1, 1, 2, 3])
            loops.append((name, tuple(lo), tuple(hi), step))
            names.append(name)
        if data and rng.random() < 0.5:
            self.masks["m"] = ("z", self.condition([*outer, "z"], 1, False))
        lets: list[tuple[str, Expr]] = []
        if data and rng.random() < 0.4:
            lets.append(("t", self.expr(names, True)))
            names.append("t")
        guards = [(self.condition(names, 2, data), rng.random() < 0.75) for _ in range(rng.choice([0, 0, 1, 1, 2]))]
        subs = [self.expr(names, data) for _ in range(3)]
        # many subscripts near the loops that they run in, so that all verdicts occur
        near, lo, hi, _ = rng.choice(loops)
        subs.append(Affine(Poly.of(near) + rng.choice([0, 0, -1, 1])))
        extent = hi[0] + rng.choice([0, 0, 1, -1]) if rng.random() < 0.4 else self.poly(outer, 2)
        if not extent.names <= set(outer):
            extent = self.poly(outer, 1)
        den = self.poly(outer, 1) if rng.random() < 0.5 else Poly.of(rng.randint(1, 4))
        index = [n for n in names if n != "t"]
        num = self.poly(index, 1) * den + self.poly(index, 1)
        return Problem(
            {n: range(7 if n in multiples else 5) for n in self.sizes}, {n: range(-2, 4) for n in self.params},
            loops, require, guards, self.arrays, self.masks, lets, multiples, subs, extent, num, den,
        )  # fmt: skip


def check(seed: int, assignments: int = 14, points: int = 400) -> dict[str, int]:
    """Compare the prover with brute force on one random problem; counts of verdicts."""
    problem = Generator(seed).problem()
    return compare(problem, problem.facts(), seed, assignments, points)


def compare(problem: Problem, facts: Facts, seed: int, assignments: int = 14, points: int = 400) -> dict[str, int]:
    """Compare all that the prover says of a problem with brute force; counts of verdicts."""
    rng = Random(seed + 1)
    verdicts = [judge(facts, sub, problem.extent) for sub in problem.subs]
    claims = _claims(problem, facts)
    inside: list[tuple[Env, list[Env], Arrays]] = []
    for env in problem.assignments(rng, assignments):
        arrays = problem.contents(rng, env)
        if arrays is not None:
            inside.append((env, list(itertools.islice(problem.iterations(env, arrays), points)), arrays))
    counts: dict[str, int] = {}
    for sub, verdict in zip(problem.subs, verdicts, strict=True):
        counts[verdict.verdict] = counts.get(verdict.verdict, 0) + 1
        for env, iterations, arrays in inside:
            values = [number(problem, sub, at, arrays) for at in iterations]
            about = (seed, str(sub), str(problem.extent), verdict.verdict, env, values[:20])
            _agrees(verdict, values, problem.extent.value(env), env, len(values) < points, about)
    for claim, truth in claims:
        for env, iterations, arrays in inside:
            assert all(truth(at, arrays) for at in iterations), (seed, claim, env)
    return counts


def _agrees(verdict: Judgement, values: list[int], extent: int, env: Env, complete: bool, about: object) -> None:
    """A verdict agrees with the values that a subscript takes."""
    outside = [v for v in values if not 0 <= v < extent]
    if verdict.verdict == "proved":
        assert not outside, about
    elif verdict.verdict == "wrong":
        assert outside or not values or not complete, about
    elif verdict.verdict == "requires":
        assert verdict.requires and all(p.names <= set(env) for p in verdict.requires), about
        assert not outside or not all(p.value(env) >= 0 for p in verdict.requires), about
    if verdict.lo is not None:
        assert all(v >= verdict.lo.value(env) for v in values), (about, "lo", str(verdict.lo))
    if verdict.hi is not None:
        assert all(v <= verdict.hi.value(env) for v in values), (about, "hi", str(verdict.hi))


def _claims(problem: Problem, facts: Facts) -> list[tuple[str, Truth]]:
    """What the other questions claim, with a test of each claim at a point."""
    claims: list[tuple[str, Truth]] = []
    sizes = frozenset(problem.sizes) | frozenset(problem.params)
    a, b = problem.num, problem.extent
    for poly in (a, a - b, b - 1, a % 2):
        if facts.nonneg(poly):
            claims.append((f"{poly} >= 0", lambda at, _, p=poly: p.value(at) >= 0))
        if facts.negative(poly):
            claims.append((f"{poly} < 0", lambda at, _, p=poly: p.value(at) < 0))
        if facts.zero(poly):
            claims.append((f"{poly} == 0", lambda at, _, p=poly: p.value(at) == 0))
        if facts.unequal(poly, a):
            claims.append((f"{poly} != {a}", lambda at, _, p=poly: p.value(at) != a.value(at)))
    found = facts.divide(a, problem.den)
    if found is not None:
        q, r = found
        claims.append(
            (
                f"{a} = ({q}) * ({problem.den}) + {r}",
                lambda at, _: (
                    a.value(at) == q.value(at) * problem.den.value(at) + r.value(at)
                    and 0 <= r.value(at) < problem.den.value(at)
                ),
            )
        )
    for sub in problem.subs:
        lo, hi = facts.bounds(sub, sizes)
        for bound in lo:
            claims.append((f"{sub} >= {bound}", lambda at, d, s=sub, x=bound: number(problem, s, at, d) >= x.value(at)))
        for bound in hi:
            claims.append((f"{sub} <= {bound}", lambda at, d, s=sub, x=bound: number(problem, s, at, d) <= x.value(at)))
        poly = facts.poly(sub)
        if poly is not None and poly.names <= set(sizes) | {n for n, *_ in problem.loops}:
            claims.append((f"{sub} is {poly}", lambda at, d, s=sub, x=poly: number(problem, s, at, d) == x.value(at)))
    return claims
