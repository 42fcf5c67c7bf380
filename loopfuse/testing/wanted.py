"""Statements that aim at something: a rule, an operation at a type, a schedule that little else reaches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from loopfuse.dtypes import DTYPES
from loopfuse.ops import OPS
from loopfuse.testing.coverage import universe
from loopfuse.testing.page import DIMS, FLOATS, INDICES, Scope, bare
from loopfuse.testing.templates import Templates
from loopfuse.testing.unreachable import UNREACHABLE
from loopfuse.testing.wholes import Wholes

MATRIX = ("f16", "bf16", "f32")
RISING = {"relu": "maximum({}, 0)", "sigmoid": "sigmoid({})", "scaled": "{} * 0.5", "plain": "{}"}


@cache
def wanted(kind: str) -> tuple[str, ...]:
    """The names of a kind that programs can reach."""
    return tuple(sorted(universe()[kind] - set(UNREACHABLE)))


@cache
def types_of_rules() -> Mapping[str, tuple[str, ...]]:
    """The types that the left side of each rule may have."""
    found: dict[str, list[str]] = {}
    for dtype in DTYPES:
        for name in Templates.of(dtype):
            found.setdefault(name, []).append(dtype)
    return {name: tuple(dtypes) for name, dtypes in found.items() if name not in UNREACHABLE}


class Wanted(Wholes):
    """Statements that favour what was seldom reached over what reads well."""

    def aimed_scope(self) -> Scope:
        """Indices of an array that is there, or of a new extent."""
        known = [a.shape for a in self.arrays if 1 <= len(a.shape) <= 2]
        shape = self.choices.pick(known[::-1]) if known and self.choices.chance(70) else (self.dim(),)
        return dict(zip(INDICES, shape, strict=False))

    def aimed(self, dtype: str, scope: Scope, text: str) -> None:
        """An equation of a text over a scope."""
        self.let(text, dtype, tuple(scope.values()), self.binders(scope, text))

    def form_rule(self) -> None:
        """The left side of a rule of the passes, by itself."""
        rules = types_of_rules()
        name = self.choices.favour({name: name for name in rules})
        dtype = self.main if self.main in rules[name] and self.choices.chance(50) else self.choices.pick(rules[name])
        scope = self.aimed_scope()
        _, text = Templates.of(dtype)[name](self.choices, lambda d: self.leaf(d, scope))
        self.aimed(dtype, scope, text)

    def form_operation(self) -> None:
        """Operations at types, and conversions."""
        for _ in range(self.choices.pick((1, 2, 3))):
            self.aimed_operation()

    def aimed_operation(self) -> None:
        """One operation, or conversion."""
        _, op, *types = self.choices.favour({name: name for name in wanted("op")}).split()
        row, scope = OPS[op], self.aimed_scope()
        of, to = types[0], types[-1]
        if row.gives == "explicit":
            operand = self.leaf(of, scope, exact=row.jumps(DTYPES[of], DTYPES[to]))
            self.aimed(to, scope, f"bits({operand}, {to})" if op == "bits" else f"{to}({bare(operand)})")
        elif row.operands == "cond":
            cond, then, other = (self.leaf(d, scope) for d in ("bool", of, of))
            self.aimed(of, scope, f"where({cond}, {then}, {other})")
        else:
            text = self.written(row, of, lambda d: self.leaf(d, scope), scope)
            self.aimed("bool" if row.gives == "bool" else of, scope, text)

    def form_constants(self) -> None:
        """Constants on the way, which meet."""
        dtype, scope = self.num_dtype(), self.aimed_scope()
        op = self.choices.pick(("+", "*")) if dtype not in FLOATS else "+"
        value = self.leaf(dtype, scope)
        self.aimed(dtype, scope, f"({value} {op} {self.choices.pick('23')}) {op} {self.choices.pick('35')}")

    # -- schedules ----------------------------------------------------------------------------------------------------

    def damping(self, factor: str) -> str:
        """A factor after a product, most often: exponentials and recurrences of large sums are so ill-conditioned that their
        results decide nothing."""
        return factor if self.choices.chance(80) else ""

    def form_attention(self) -> None:
        """Two products, of which the second takes what the first gives, changed or as weights."""
        dtype = self.choices.pick(MATRIX)
        q = self.some_array(dtype, 2)
        depth = q.shape[1]
        rows = self.dim()
        k, v = self.whole_leaf(dtype, (rows, depth)), self.whole_leaf(dtype, (rows, depth))
        shape = (q.shape[0], rows)
        product = f"{q.name} @ {k}.T" if k.isidentifier() else f"{q.name} @ ({k}).T"
        scores = self.let(product + self.damping(" * 0.05"), dtype, shape).name
        if self.choices.chance(50):
            rising = self.choices.favour({f"rising {name}": text for name, text in RISING.items()})
            self.let(f"{bare(rising.format(scores))} @ {v}", dtype, (q.shape[0], depth))
            return
        power = self.let(f"exp({scores} - max({scores}, axis=1, keepdims=true))", dtype, shape).name
        if self.choices.chance(50):
            self.let(f"({power} / sum({power}, axis=1, keepdims=true)) @ {v}", dtype, (q.shape[0], depth))
        else:
            self.let(f"({power} @ {v}) / sum({power}, axis=1, keepdims=true)", dtype, (q.shape[0], depth))

    def form_recurrence(self) -> None:
        """A recurrence with a product, or a sum over neighbours, at each step."""
        dtype = self.choices.pick(("f32", "f16", "f64", "bf16"))
        self.dims = len(DIMS)
        steps, batch, width = DIMS  # three of them: with one alone a product at each step is of its fourth power
        x = self.whole_leaf(dtype, (steps, batch, width))
        found = next((a for a in self.arrays if a.name == x), None)
        if found is None:
            return
        state, carry, emitted = self.name(), self.name(), self.name()
        if self.choices.chance(70):
            w = self.whole_leaf(dtype, (width, width))
            step = f"tanh({carry} @ {w}{self.damping(' * 0.05')} + {x}[t])"
        else:
            step = f"({carry} + roll({carry}, 1, axis=1)) * 0.25 + {x}[t]"
        # Seldom from zeros: what is not finite times an exact zero may be left out of a product, and so decides nothing.
        start = (
            f"zeros({dtype}, {batch}, {width})" if self.choices.chance(20) else f"full({dtype}, 0.5, {batch}, {width})"
        )
        self.lines.append(
            f"scan t in 0..{found.shape[0]} carry ({carry} = {start}) {{\n"
            f"  let {state} = {step}\n  next {carry} = {state}\n  emit {emitted} = {state}\n}}"
        )
        self.defined(emitted, dtype, found.shape)
        self.defined(carry, dtype, (batch, width))
