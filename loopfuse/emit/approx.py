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
- sigmoid: e = exp(-|x|), then 1 or e over 1 + e, which is in [1, 2]: 2^-16.2 + 2^-22.
- tanh: 1 - 2 / (1 + exp(2|x|)) errs absolutely by less than 3 2^-23, relatively by 2^-18 where |x| >= 0.1; below it
  x (1 - x^2 / 3), which errs by 2/15 x^4 < 2^-16.1. For bf16 the instruction's own 2^-11 is enough, if little else errs.
- 1 + tanh(u) (`PAIRS`): 2 / (1 + exp(-2u)). Its relative error is that of exp, 2^-16.2, but for what falls under 2^-126
  (flushed); there 1 + tanh errs in f32 by 2^-24 at best, so nothing is lost. The instruction tanh.approx in its place
  would err by 2^-11 absolutely, where the sum goes to 0: this is why it is not tolerant. 1 - tanh(u) is its mirror.
The errors of all that is approximated on the way to a store are added up; where they exceed the budget the instruction
for tanh is given up first, then every approximation. `strict` has none; `fast` takes the op table's without asking.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan

from loopfuse.constants import to_number
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
NEAR: dict[str, tuple[Near, ...]] = {
    "exp": (Near("lf_near_exp({0})", EXP),),
    "exp2": (Near("lf_near_exp2({0})", 2.0**-22),),
    "sigmoid": (Near("lf_near_sigmoid({0})", EXP + 2.0**-21),),
    "tanh": (Near("lf_tanh_approx({0})", 2.0**-11, coarse=True), Near("lf_near_tanh({0})", 2.0**-16)),
    "div": (Near("lf_div_approx({0}, {1})", 2.0**-21),),
    "sqrt": (Near("lf_sqrt_approx({0})", 2.0**-22),),
}
PAIRS: dict[str, Near] = {
    "add": Near("lf_near_tanh_above({0})", EXP + 2.0**-21),
    "sub": Near("lf_near_tanh_below({0})", EXP + 2.0**-21),
}

FUNCTIONS: dict[str, str] = {
    "lf_near_exp2": """__device__ __forceinline__ float lf_near_exp2(float x) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    "lf_near_exp": "__device__ __forceinline__ float lf_near_exp(float x) { return lf_near_exp2(x * 1.44269504f); }",
    "lf_near_sigmoid": """__device__ __forceinline__ float lf_near_sigmoid(float x) {
  float e = lf_near_exp2(fabsf(x) * -1.44269504f), r = lf_rcp_approx(1.0f + e);
  return x >= 0.0f ? r : e * r;
}""",
    "lf_near_tanh": """__device__ __forceinline__ float lf_near_tanh(float x) {
  float a = fabsf(x), e = lf_exp2_approx(a * 2.88539008f);
  float r = 1.0f - 2.0f * lf_rcp_approx(1.0f + e);
  return copysignf(a < 0.1f ? a * (1.0f - a * a * 0.333333343f) : r, x);
}""",
    # 1 + tanh(x) and 1 - tanh(x).
    "lf_near_tanh_above": "__device__ __forceinline__ float lf_near_tanh_above(float x) "
    "{ return lf_rcp_approx(0.5f * lf_exp2_approx(x * -2.88539008f) + 0.5f); }",
    "lf_near_tanh_below": "__device__ __forceinline__ float lf_near_tanh_below(float x) "
    "{ return lf_rcp_approx(0.5f * lf_exp2_approx(x * 2.88539008f) + 0.5f); }",
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
        self.signs: dict[int, int] = {}
        self.named: dict[str, int] = {}  # the signs of lets and accumulators
        self.accs: dict[str, Acc] = {a.id: a for s in self.stmts if isinstance(s, Loop) for a in s.accs}
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
        pair = self._pair(node)
        if pair is not None:
            near, operand = pair
            found[id(node)] = near.text, (operand,)
            return near.error + errors[id(operand)]  # which moves this by less than a factor 1, where there is one
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

    def _pair(self, node: Op) -> tuple[Near, Expr] | None:
        """The operand u of `1 + tanh(u)` or `1 - tanh(u)`, and how it is spelled."""
        if node.op not in PAIRS or not self._open(node):
            return None
        orders = [node.args, node.args[::-1]] if node.op == "add" else [node.args]
        for one, other in orders:
            if not isinstance(one, Const) or to_number(one.bits, one.dtype) != 1.0:
                continue
            inner = self.lets.get(other.id, other) if isinstance(other, Ref) else other
            moved = inner is not other and any(
                isinstance(n, Load) or (isinstance(n, Ref) and n.id in self.accs) for n in _postorder(inner)
            )
            if isinstance(inner, Op) and inner.op == "tanh" and inner.dtype == F32 and not moved:
                return PAIRS[node.op], inner.args[0]
        return None


def _postorder(root: Expr) -> Sequence[Expr]:
    """All nodes, operands first."""
    found: list[Expr] = []
    stack = [root]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += children(node)
    return found[::-1]
