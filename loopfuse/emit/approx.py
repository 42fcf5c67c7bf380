"""Where approximate spellings serve: what 16-bit stores leave of an error.

The default numerics allow an approximate form only where its error, carried to the value that is stored, stays under a
quarter of a unit in the last place of the stored type. For a normal number that unit is at least 2^-8 (bf16) or 2^-11
(f16) of it, so a relative error of 2^-10 or 2^-13 is allowed (`BUDGET`); below the normal numbers the unit does not shrink
and a relative error shrinks with the value. Only stores of these two types qualify: at f32 no approximation is that good.

*What an error does on its way.* `CONDITION` lists the operations whose result moves, relatively, by no more than a factor
times what their operands move: products and quotients (1 each), roots, minima (they pick one of two values, whose signs
relative errors keep), tanh and erf (x f'(x)/f(x) is at most 1). A sum does so where both terms have one sign. Everything
else, a sum that may cancel, exp (an error of its argument grows with it), a comparison, a cast to an integer, a subscript,
asks for operands that are accurate: nothing below it is approximated. A value is *tolerant* if each of its uses is an
operand of a tolerant value that qualifies, or a 16-bit store. The terms of a sum with a repair qualify where the repair
multiplies the sum by something that is never negative, as the rescaling by a new maximum does: that moves no relative
error, and keeps the signs of the terms the same. What the repair itself computes stays accurate.

*What is used* (`NEAR`), with a bound on the relative error at every operand. From the PTX manual: ex2.approx 2^-22,
rcp.approx 2^-23, sqrt.approx 2^-22, div.full 2 ulp, tanh.approx 2^-11, without flushing denormals.
- exp: ex2(x * log2 e). The product errs by 2^-23 of itself (constant and rounding), that is by |x| 2^-23 as a relative
  error of exp; |x| is at most 104 where exp is neither 0 nor infinite. 104 2^-23 + 2^-22 < 2^-16.2.
- sigmoid: 2^-24 / (2^-24 exp(-x) + 2^-24). The factor is for rcp, which flushes what is under 2^-126: that is reached where
  sigmoid is under 2^-150. It enters by the multiply-add of the exponent, which rounds once: 2^-16.2 + 2^-21.
- tanh: 1 - 2 / (1 + exp(2|x|)) errs absolutely by less than 3 2^-23, relatively by 2^-18 where |x| >= 0.1; below it
  x (1 - x^2 / 3), which errs by 2/15 x^4 < 2^-16.1. For bf16 the instruction's own 2^-11 is enough, if little else errs.

*Spellings of several operations.* 2^(s v), with a scale s that is a constant, takes log2 e and the factor of a product c v
that it is of, so that c v is not rounded: s is rounded once and s v once, which is what exp has, 2^-16.2; adding 1, rcp and
the last product make it less than 2^-16.2 + 2^-21.
- 1 + tanh(c v): `lf_near_twice`, 2 / (1 + 2^(s v)), s = -2 c log2 e; 1 - tanh(c v) turns the sign of s. What falls under
  2^-126 is flushed; there 1 + tanh errs in f32 by 2^-24 at best, so nothing is lost. The instruction tanh.approx in its
  place would err by 2^-11 absolutely, where the sum goes to 0: this is why it is not tolerant.
- x times it times 0.5, in any order: x `lf_near_once`, x / (1 + 2^(s v)). Halving is exact but for two ends. Below the
  normal numbers it rounds, by 2^-150: the last place of bf16 is 2^-133 there, that of f16 2^-24. And of 0.5 (x (1 + tanh))
  the inner product may be infinite where the half of it is not, and then the half is stored, as multiply-add does.
- n / (1 + exp(c v)), which silu and its like are: n `lf_near_logistic`, n times a quarter of 1 / (2^(s v) / 4 + 1 / 4). As
  1 / (1 + 2^(s v)) it would be flushed from exp > 2^126 on, and silu(-88) is 2^-120, a normal number of bf16. So it is
  flushed where exp in f32 is infinite, too, and n times 0 is a zero of n's sign or NaN, as n / inf is. A quarter under
  2^-126 is rounded by 2^-150, which is 2^-22 of it at most; exp errs less there than at its ends.
The errors of all that is approximated on the way to a store are added up; where they exceed the budget the instruction
for tanh is given up first, then every approximation. `strict` has none; `fast` takes the op table's without asking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import e, inf, isnan, log2

from loopfuse.constants import constant, to_number
from loopfuse.dtypes import BF16, F16, F32, DType
from loopfuse.ir import Acc, Buffer, Const, Expr, Let, Load, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.ops import Numerics
from loopfuse.walking import children, exprs, free_names, walk

BUDGET: dict[DType, float] = {BF16: 2.0**-10, F16: 2.0**-13}
MARGIN = 0.98  # for what products of errors add

# What a relative error of each operand is multiplied by.
CONDITION: dict[str, tuple[float, ...]] = {
    "mul": (1.0, 1.0), "div": (1.0, 1.0), "neg": (1.0,), "abs": (1.0,), "minimum": (1.0, 1.0), "maximum": (1.0, 1.0),
    "clip": (1.0, 1.0, 1.0), "sqrt": (0.5,), "rsqrt": (0.5,), "cbrt": (0.34,), "tanh": (1.0,), "erf": (1.0,),
    "atan": (1.0,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Near:
    """A spelling at f32 and a bound on its relative error. `coarse`: given up first."""

    text: str
    error: float
    coarse: bool = False


EXP = 2.0**-16.2
FORM = EXP + 2.0**-21  # of a quotient by 1 + 2^(s v)
NEAR: dict[str, tuple[Near, ...]] = {
    "exp": (Near("lf_near_exp({0})", EXP),),
    "exp2": (Near("lf_near_exp2({0})", 2.0**-22),),
    "sigmoid": (Near("lf_near_sigmoid({0})", FORM),),
    "tanh": (Near("lf_tanh_approx({0})", 2.0**-11, coarse=True), Near("lf_near_tanh({0})", 2.0**-16)),
    "div": (Near("lf_div_approx({0}, {1})", 2.0**-21),),
    "sqrt": (Near("lf_sqrt_approx({0})", 2.0**-22),),
}
LOG2_E = log2(e)
PAIRS = {"add": -2.0 * LOG2_E, "sub": 2.0 * LOG2_E}  # 1 + tanh(v) and 1 - tanh(v): the scale of v
EXPONENTS = {"exp": LOG2_E, "exp2": 1.0}

FUNCTIONS: dict[str, str] = {
    "lf_near_exp2": """__device__ __forceinline__ float lf_near_exp2(float x) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_near_exp": "__device__ __forceinline__ float lf_near_exp(float x) { return lf_near_exp2(x * 1.44269504f); }",
    "lf_near_sigmoid": """__device__ __forceinline__ float lf_near_sigmoid(float x) {
  return lf_rcp_approx(lf_exp2_approx(fmaf(x, -1.44269504f, -24.0f)) + 0x1p-24f) * 0x1p-24f;
}""",
    "lf_near_tanh": """__device__ __forceinline__ float lf_near_tanh(float x) {
  float a = fabsf(x), e = lf_exp2_approx(a * 2.88539008f);
  float r = 1.0f - 2.0f * lf_rcp_approx(1.0f + e);
  return copysignf(a < 0.1f ? a * (1.0f - a * a * 0.333333343f) : r, x);
}""",
    # 2 / (1 + 2^(s x)), and 1 / (1 + 2^(s x)) twice: the second one where the quotient falls under 2^-126, too.
    "lf_near_twice": "__device__ __forceinline__ float lf_near_twice(float x, float s) "
    "{ return lf_rcp_approx(0.5f * lf_exp2_approx(x * s) + 0.5f); }",
    "lf_near_once": "__device__ __forceinline__ float lf_near_once(float x, float s) "
    "{ return lf_rcp_approx(lf_exp2_approx(x * s) + 1.0f); }",
    "lf_near_logistic": """__device__ __forceinline__ float lf_near_logistic(float x, float s) {
  return 0.25f * lf_rcp_approx(lf_exp2_approx(fmaf(x, s, -2.0f)) + 0.25f);
}""",
}


@dataclass
class Approximations:
    """The operations of a kernel that are spelled otherwise: by node, the text and its operands."""

    chosen: dict[int, tuple[str, tuple[Expr, ...]]] = field(default_factory=dict)
    body: tuple[Stmt, ...] = ()  # keeps the nodes alive

    def __call__(self, op: Op) -> tuple[str, tuple[Expr, ...]] | None:
        """The text of an operation over `{0}`, `{1}` and what these stand for; None where the op table says it."""
        return self.chosen.get(id(op))


def approximations(body: Iterable[Stmt], buffers: Mapping[str, Buffer], numerics: Numerics,
                   local: Collection[str] = ()) -> Approximations:  # fmt: skip
    """What may be approximated in the statements of a kernel; `local` buffers never reach memory."""
    stmts = tuple(body)
    if numerics != "default":
        return Approximations()
    analysis = _Analysis(stmts, buffers, local)
    for coarse in (True, False):
        chosen = analysis.chosen(coarse)
        if chosen is not None:
            return Approximations(chosen, stmts)
    return Approximations()


class _Analysis:
    """Tolerance from uses back to definitions, signs and errors from definitions on."""

    def __init__(self, stmts: tuple[Stmt, ...], buffers: Mapping[str, Buffer], local: Collection[str]) -> None:
        self.stmts, self.buffers = list(walk(stmts)), buffers
        self.local = frozenset(local) - {b for s in self.stmts if isinstance(s, Loop) and s.order != "par"
                                         for b in free_names(s.body).stores}  # fmt: skip
        self.lets = {s.id: s.value for s in self.stmts if isinstance(s, Let)}
        self.folded: set[str] = set()  # lets that are made from accumulators
        self.signs: dict[int, int] = {}
        self.named: dict[str, int] = {}  # the signs of lets and accumulators
        self.accs: dict[str, Acc] = {a.id: a for s in self.stmts if isinstance(s, Loop) for a in s.accs}
        for let, value in self.lets.items():
            if any(isinstance(n, Ref) and (n.id in self.accs or n.id in self.folded) for n in _postorder(value)):
                self.folded.add(let)
        self.shifted = {a.id for a in self.accs.values() if a.repair is not None and not self._scales(a.repair)}
        self.tolerant: dict[int, bool] = {}
        self.values: dict[
            str, bool
        ] = {}  # whether every use of a let, an accumulator or a local buffer tolerates errors
        self.order: list[Expr] = []  # all nodes of values, operands first, statement by statement
        self._sign_all()
        self._tolerate_all()

    # -- signs --------------------------------------------------------------------------------------------------------

    def _sign_all(self) -> None:
        for stmt in self.stmts:
            for root in exprs(stmt):
                for node in _postorder(root):
                    self.signs[id(node)] = self._sign(node)
            if isinstance(stmt, Let):
                self.named[stmt.id] = self.signs[id(stmt.value)]
            elif isinstance(stmt, Store) and stmt.absorb:
                known = self.named.get(stmt.buffer)
                sign = self.signs[id(stmt.value)]
                same = known in (None, sign) and stmt.buffer not in self.shifted
                self.named[stmt.buffer] = sign if same else 0

    def _scales(self, repair: Expr) -> bool:
        """Whether a repair, as multiplying by what is never negative, leaves the accumulator its sign and its relative error."""
        self.named["self"] = 1
        for node in _postorder(repair):
            self.signs[id(node)] = self._sign(node)
        del self.named["self"]
        stack = [repair]
        while stack:
            node = stack.pop()
            for child, fine in zip(children(node), self._passes(node), strict=True):
                if fine:
                    stack.append(child)
                elif any(isinstance(n, Ref) and n.id == "self" for n in _postorder(child)):
                    return False
        return self.signs[id(repair)] == 1

    def _sign(self, node: Expr) -> int:
        """1: never negative, -1: never positive (NaN aside), 0: unknown."""
        if isinstance(node, Const):
            number = float(to_number(node.bits, node.dtype)) if node.dtype.kind != "bool" else 1.0
            return 0 if isnan(number) else 1 if number >= 0 else -1
        if isinstance(node, Ref):
            acc = self.accs.get(node.id)
            kept = acc is None or acc.monoid in ("sum", "max", "min", "prod")
            return self.named.get(node.id, 0) if kept and not (acc and acc.monoid == "prod") else 0
        if isinstance(node, Select):
            then, other = self.signs[id(node.then)], self.signs[id(node.other)]
            return then if then == other else 0
        if not isinstance(node, Op):
            return 0
        return self._sign_of(node, [self.signs.get(id(a), 0) for a in node.args])

    def _sign_of(self, node: Op, signs: list[int]) -> int:
        name = node.op
        if name in ("exp", "exp2", "sigmoid", "sqrt", "rsqrt", "abs", "cosh"):
            return 1 if node.dtype.is_float else 0
        if name in ("mul", "div"):
            same = name == "mul" and node.args[0] == node.args[1] and node.dtype.is_float
            return 1 if same else signs[0] * signs[1] if node.dtype.is_float else 0
        if name == "neg":
            return -signs[0] if node.dtype.is_float else 0
        if name in ("tanh", "erf", "atan", "cbrt"):
            return signs[0]
        if name == "cast":
            return signs[0] if node.dtype.is_float and node.args[0].dtype.is_float else 0
        if name == "maximum":
            return 1 if 1 in signs else -1 if signs == [-1, -1] else 0
        if name == "minimum":
            return -1 if -1 in signs else 1 if signs == [1, 1] else 0
        if name == "add" and node.dtype.is_float:
            return signs[0] if signs[0] == signs[1] else 0
        if name == "sub" and node.dtype.is_float:
            return signs[0] if signs[0] == -signs[1] else 0
        if name == "where":
            return signs[1] if signs[1] == signs[2] else 0
        return 0

    # -- tolerance ----------------------------------------------------------------------------------------------------

    def _tolerate_all(self) -> None:
        """From the last statement back: of each value whether all of its uses tolerate errors; again, while uses that
        stand before a definition (in repairs) take something away."""
        known: dict[str, bool] | None = None
        while known != self.values:
            known = dict(self.values)
            for stmt in reversed(self.stmts):
                for root in exprs(stmt):
                    self._tolerate(root, isinstance(stmt, Let | Store) and root is stmt.value and self._result(stmt))

    def _result(self, stmt: Let | Store) -> bool:
        """Whether what becomes of a statement's value tolerates errors."""
        if isinstance(stmt, Let):
            return self.values.get(stmt.id, True)
        if stmt.absorb:
            acc = self.accs.get(stmt.buffer)
            kind = acc.monoid if acc is not None and acc.id not in self.shifted else ""
            fine = kind in ("max", "min") or (kind == "sum" and self.signs[id(stmt.value)] != 0)
            return fine and self.values.get(stmt.buffer, True)
        if stmt.buffer in self.local:
            return self.values.get(stmt.buffer, True)
        return self.buffers[stmt.buffer].dtype in BUDGET if stmt.buffer in self.buffers else False

    def _tolerate(self, root: Expr, tolerant: bool) -> None:
        stack = [(root, tolerant)]
        while stack:
            node, may = stack.pop()
            may = may and node.dtype.is_float and node.dtype.bits <= 32
            self.tolerant[id(node)] = self.tolerant.get(id(node), True) and may
            may = self.tolerant[id(node)]
            if isinstance(node, Ref):
                name = node.id.removesuffix(".old").removesuffix(".new")  # as repairs read accumulators
                for each in (node.id, name):
                    self.values[each] = self.values.get(each, True) and may and name == node.id
            elif isinstance(node, Load):
                self.values[node.buffer] = self.values.get(node.buffer, True) and may
            stack += [(child, may and fine) for child, fine in zip(children(node), self._passes(node), strict=True)]

    def _passes(self, node: Expr) -> tuple[bool, ...]:
        """Of each operand whether a relative error of it leaves one of the result that is bounded."""
        if isinstance(node, Select):
            return (False, True, True)
        if not isinstance(node, Op):
            return (False,) * len(children(node))
        return tuple(f is not None for f in self.factors(node))

    def factors(self, node: Op) -> tuple[float | None, ...]:
        """What the relative error of each operand is multiplied by; None: it has no bound."""
        if node.op in CONDITION:
            return CONDITION[node.op]
        if node.op == "cast":
            return (1.0 if node.dtype.is_float and node.args[0].dtype.is_float else None,)
        if node.op == "where":
            return (None, 1.0, 1.0)
        if node.op in ("add", "sub"):
            one, two = (self.signs.get(id(a), 0) for a in node.args)
            if one and one == (two if node.op == "add" else -two):
                return (1.0, 1.0)
        return (None,) * len(node.args)

    # -- errors -------------------------------------------------------------------------------------------------------

    def chosen(self, coarse: bool) -> dict[int, tuple[str, tuple[Expr, ...]]] | None:
        """The spellings, or None where their errors exceed a budget."""
        found: dict[int, tuple[str, tuple[Expr, ...]]] = {}
        errors: dict[int, float] = {}
        named: dict[str, float] = {}
        for stmt in self.stmts:
            for root in exprs(stmt):
                for node in _postorder(root):
                    errors[id(node)] = self._error(node, errors, named, found, coarse)
            if isinstance(stmt, Let):
                named[stmt.id] = errors[id(stmt.value)]
            elif isinstance(stmt, Store):
                error = errors[id(stmt.value)]
                if stmt.absorb or stmt.buffer in self.local:
                    named[stmt.buffer] = max(named.get(stmt.buffer, 0.0), error)
                elif error > MARGIN * BUDGET.get(self.buffers[stmt.buffer].dtype, 0.0):
                    return None
        return found

    def _error(self, node: Expr, errors: Mapping[int, float], named: Mapping[str, float],
               found: dict[int, tuple[str, tuple[Expr, ...]]], coarse: bool) -> float:  # fmt: skip
        """The relative error of a value, after noting how it is spelled."""
        if isinstance(node, Ref):
            return named.get(node.id, 0.0)
        if isinstance(node, Load):
            return named.get(node.buffer, 0.0)
        if isinstance(node, Select):
            return max(errors[id(node.then)], errors[id(node.other)])
        if not isinstance(node, Op):
            return 0.0
        form = self._form(node)
        if form is not None:
            found[id(node)] = form
            # The exponent, last of the operands, is accurate, or moves the value by less than a factor 1.
            return FORM + sum(errors[id(operand)] for operand in form[1])
        total = 0.0
        for factor, arg in zip(self.factors(node), node.args, strict=True):
            error = errors[id(arg)]
            total += factor * error if factor is not None else inf if error else 0.0
        for near in NEAR.get(node.op, ()) if self._open(node) else ():
            if coarse or not near.coarse:
                found[id(node)] = near.text, node.args
                return total + near.error
        return total

    def _open(self, node: Op) -> bool:
        """Whether a node may be spelled otherwise: it is tolerant and at f32 (or 16 bits, which are rounded after)."""
        return self.tolerant.get(id(node), False) and all(a.dtype in (F32, BF16, F16) for a in node.args)

    # -- spellings of several operations ------------------------------------------------------------------------------

    def _form(self, node: Op) -> tuple[str, tuple[Expr, ...]] | None:
        """The spelling of several operations at once, of which this is the last."""
        if node.dtype != F32 or not self._open(node):
            return None
        if node.op == "mul":
            return self._halved(node)
        if node.op == "div":
            return self._logistic(node)
        pair = self._pair(node)
        return pair and (f"lf_near_twice({{0}}, {pair[1]})", (pair[0],))

    def _pair(self, node: Expr) -> tuple[Expr, str] | None:
        """v and the scale of it for `1 + tanh(c v)` or `1 - tanh(c v)`."""
        if not isinstance(node, Op) or node.op not in PAIRS or not self._open(node):
            return None
        for one, other in _orders(node) if node.op == "add" else (node.args,):
            inner = self._seen(other)
            if _is(one, 1.0) and isinstance(inner, Op) and inner.op == "tanh" and inner.dtype == F32:
                return self._scaled(inner.args[0], PAIRS[node.op])
        return None

    def _halved(self, node: Op) -> tuple[str, tuple[Expr, ...]] | None:
        """`x * 0.5 * (1 + tanh(c v))`, its factors in any order."""
        for one, other in _orders(node):
            inner = self._seen(other)
            if not isinstance(inner, Op) or inner.op != "mul" or inner.dtype != F32:
                continue
            for x, half, sum_ in permutations((one, *inner.args)):
                # A sum by name has other uses, for which it is computed anyway.
                if _is(half, 0.5) and (inner is other or sum_ is one) and (pair := self._pair(sum_)) is not None:
                    return f"({{0}} * lf_near_once({{1}}, {pair[1]}))", (x, pair[0])
        return None

    def _logistic(self, node: Op) -> tuple[str, tuple[Expr, ...]] | None:
        """`n / (1 + exp(c v))`."""
        sum_ = node.args[1]
        if not isinstance(sum_, Op) or sum_.op != "add":
            return None
        for one, power in _orders(sum_):
            if _is(one, 1.0) and isinstance(power, Op) and power.op in EXPONENTS:
                v, scale = self._scaled(power.args[0], EXPONENTS[power.op])
                return f"({{0}} * lf_near_logistic({{1}}, {scale}))", (node.args[0], v)
        return None

    def _scaled(self, operand: Expr, scale: float) -> tuple[Expr, str]:
        """v of an operand `c * v` or `-v`, and the text of its scale."""
        inner = self._seen(operand)
        if isinstance(inner, Op) and inner.op == "neg":
            return self._scaled(inner.args[0], -scale)
        for one, other in _orders(inner) if isinstance(inner, Op) and inner.op == "mul" else ():
            if isinstance(one, Const):
                product = scale * float(to_number(one.bits, one.dtype))
                if 2.0**-64 <= abs(product) <= 2.0**64:  # rounded as a normal number, and no NaN
                    return other, _text(product)
        return operand, _text(scale)

    def _seen(self, expr: Expr) -> Expr:
        """The value of a let in place of its name, where it can be computed again: the same, from what has names here."""
        inner = self.lets.get(expr.id) if isinstance(expr, Ref) else None
        if inner is None:
            return expr
        for node in _postorder(inner):
            if isinstance(node, Load) or (isinstance(node, Ref) and node.id in self.accs):
                return expr
            # Beside sums, what does not follow them may have been computed elsewhere.
            if self.accs and isinstance(node, Ref) and node.id in self.lets and node.id not in self.folded:
                return expr
        return inner


def _orders(node: Op) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """The operands of an operation that commutes, both ways."""
    one, other = node.args
    return (one, other), (other, one)


def _is(expr: Expr, number: float) -> bool:
    return isinstance(expr, Const) and expr.dtype.is_float and to_number(expr.bits, expr.dtype) == number


def _text(scale: float) -> str:
    """A number rounded to f32, in C."""
    return f"{float(to_number(constant(scale, F32), F32))!r}f"


def _postorder(root: Expr) -> Sequence[Expr]:
    """All nodes, operands first."""
    found: list[Expr] = []
    stack = [root]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += children(node)
    return found[::-1]
