"""Random expressions of one element, in index notation: every one has the type asked for and reads in range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from loopfuse.dtypes import DTYPES
from loopfuse.oprow import OpRow
from loopfuse.ops import MONOIDS, OPS
from loopfuse.testing.page import FLOATS, INDICES, INTS, Array, Page, Scope, Shape, bare, stands_alone
from loopfuse.testing.templates import Templates
from loopfuse.testing.unreachable import UNREACHABLE

VIEWS = ("edge", "wrap", "reflect", "symmetric", "constant")
POSITIVE = frozenset({"sqrt", "rsqrt", "log", "log2", "log10", "pow"})
REDUCTIONS: Mapping[str, tuple[str, ...]] = {
    "sum": (*FLOATS, "i64", "u64"), "max": (*FLOATS, *INTS), "min": (*FLOATS, *INTS), "prod": (*FLOATS, "i64", "u64"),
    "mean": FLOATS, "any": ("bool",), "all": ("bool",), "argmax": ("i64",), "argmin": ("i64",), "logsumexp": FLOATS,
}  # fmt: skip
# What sums and products of a wide integer are of.
SUMMANDS = {"i64": ("i32", "i64", "i8", "i16"), "u64": ("u8", "u32", "u16", "u64")}
FILTERED = ("sum", "max", "min", "prod", "any", "all", "mean")
Makers = dict[str, Callable[[], str]]
Place = Scope | Shape  # where an expression stands: indices of one element, or the extents of a whole array


@cache
def operations(dtype: str) -> tuple[OpRow, ...]:
    """The operations whose result has a type and whose operands have it too, bools being made by others."""
    kind = DTYPES[dtype].kind
    return tuple(row for row in OPS.values() if row.gives == "same" and row.operands != "cond" and kind in row.kinds)


class Elements(Page):
    """Expressions of elements. `levels` is how deep an expression may be."""

    def element(self, dtype: str, scope: Scope, levels: int = 3) -> str:
        """An expression of a type over the indices in scope."""
        if levels <= 0 or not self.spend():
            return self.leaf(dtype, scope)
        makers: Makers = {
            "expr leaf": lambda: self.leaf(dtype, scope),
            "expr operation": lambda: self.operation(dtype, lambda d: self.element(d, scope, levels - 1), scope),
            "expr choice": lambda: self.choice(dtype, scope, levels - 1),
            "expr template": lambda: self.template(dtype, lambda d: self.leaf(d, scope)),
            "expr cast": lambda: self.cast(dtype, scope, levels - 1),
            "expr reduction": lambda: self.reduction(dtype, scope, levels - 1),
            "expr call": lambda: self.applied(dtype, lambda d: self.element(d, scope, levels - 1)),
            "expr guarded": lambda: self.guarded(dtype, scope),
            "expr view": lambda: self.view(dtype, scope),
        }
        if dtype == "bool":
            makers["expr comparison"] = lambda: self.comparison(lambda d: self.element(d, scope, levels - 1), scope)
        often = self.choices.number(0, 9)
        name = "expr leaf" if often < 2 else "expr operation" if often < 6 else ""
        return makers[name]() if name else self.choices.favour(makers)()

    # -- leaves -------------------------------------------------------------------------------------------------------

    def leaf(self, dtype: str, scope: Scope, exact: bool = False) -> str:
        """An element of an array; `exact`: of an input, which no rounding has touched."""
        found = [a for a in self.arrays if a.dtype == dtype and (a.given or not exact) and self.fits(a.shape, scope)]
        if not found and not exact:
            index = [k for k in scope if dtype != "bool" and DTYPES[dtype].bits >= 16]
            if index and self.choices.chance(15):
                return f"{dtype}({self.choices.pick(index)})"
            if dtype != "bool" and self.choices.chance(8):
                return self.param(dtype)
        if not found and not self.room:
            others = [a for a in self.arrays if self.fits(a.shape, scope) and a.given]
            return f"{dtype}({self.read(others[0], scope)})" if others else f"{dtype}({self.number(dtype)})"
        if not found or (self.room and self.choices.chance(8)):
            extents = list(dict.fromkeys(scope.values()))
            rank = min(len(extents), self.choices.number(0, 2) or 1)
            return self.read(self.declare(dtype, tuple(extents[-rank:] if rank else ())), scope)
        return self.read(self.choices.pick(found[::-1]), scope)

    def fits(self, shape: Shape, scope: Scope) -> bool:
        """Whether every axis has an index, or is of a written extent of at least 1."""
        return all(e in scope.values() or (e.isdecimal() and int(e) > 0) for e in shape)

    def read(self, array: Array, scope: Scope) -> str:
        """An element of an array."""
        return (
            f"{array.name}[{', '.join(self.subscript(e, scope) for e in array.shape)}]" if array.shape else array.name
        )

    def subscript(self, extent: str, scope: Scope) -> str:
        """A subscript that is in range for an axis."""
        fitting = [k for k, e in scope.items() if e == extent]
        if not fitting:
            return "0"
        index = self.choices.pick(fitting[::-1])
        how = self.choices.number(0, 19)
        if how >= 17:
            return {17: f"{extent} - 1 - {index}", 18: f"{index} // 2", 19: self.gathered(extent, scope, index)}[how]
        return index

    def gathered(self, extent: str, scope: Scope, index: str) -> str:
        """A subscript that is read from an array."""
        found = [a for a in self.arrays if a.below == extent and self.fits(a.shape, scope)]
        if not found and not self.room:
            return index
        array = self.choices.pick(found) if found else self.subscripts_below(extent, (scope[index],))
        return f"{array.name}[{', '.join(self.plain(e, scope) for e in array.shape)}]" if array.shape else array.name

    def plain(self, extent: str, scope: Scope) -> str:
        """An index of an extent as it is."""
        return next((k for k, e in scope.items() if e == extent), "0")

    # -- reads beside the place ---------------------------------------------------------------------------------------

    def shifted(self, index: str) -> str:
        """An index moved, or scaled."""
        return self.choices.pick((f"{index} - 1", f"{index} + 1", f"{index} + 2", f"2 * {index}", f"3 - {index}"))

    def view(self, dtype: str, scope: Scope) -> str:
        """An element of a boundary view, wherever its subscripts are."""
        ranks = (1, 2) if len(scope) > 1 else (1,)
        found = [a for a in self.arrays if a.dtype == dtype and len(a.shape) in ranks]
        if not scope or not (found or self.room):
            return self.leaf(dtype, scope)
        array = self.choices.pick(found[::-1]) if found else self.declare(dtype, (list(scope.values())[-1],))
        kind = self.choices.favour({f"view {v}": v for v in VIEWS})
        subs = []
        for extent in array.shape:
            index = self.choices.pick([k for k, e in scope.items() if e == extent] or list(scope))
            subs.append(self.shifted(index) if self.choices.chance(70) else index)
            if index in subs and scope[index] != extent:
                subs[-1] = f"{index} + 0"  # alone it would say what the index ranges over
        fill = f", {self.number(dtype, plain=False)}" if kind == "constant" else ""
        return f"{kind}({array.name}{fill})[{', '.join(subs)}]"

    def guarded(self, dtype: str, scope: Scope) -> str:
        """A neighbour where there is one."""
        found = [a for a in self.arrays if a.dtype == dtype and a.shape and all(e in scope.values() for e in a.shape)]
        if not found:
            return self.leaf(dtype, scope)
        array = self.choices.pick(found[::-1])
        axis = self.choices.number(0, len(array.shape) - 1)
        subs = [self.plain(e, scope) for e in array.shape]
        index, extent = subs[axis], array.shape[axis]
        subs[axis], condition = self.choices.pick((
            (f"{index} - 1", f"{index} >= 1"), (f"{index} + 1", f"{index} < {extent} - 1"),
            (f"{index} + 2", f"{index} + 2 < {extent}"),
        ))  # fmt: skip
        return f"({array.name}[{', '.join(subs)}] if {condition} else {self.leaf(dtype, scope)})"

    # -- operations ---------------------------------------------------------------------------------------------------

    def operation(self, dtype: str, operand: Callable[[str], str], place: Place) -> str:
        """An operation whose result has the type; `operand` makes expressions of types."""
        rows = {f"op {row.name} {dtype}": row for row in operations(dtype)}
        row = self.choices.favour(rows)
        if row.gives == "explicit":
            return operand(dtype)
        return self.written(row, dtype, operand, place)

    def written(self, row: OpRow, dtype: str, operand: Callable[[str], str], place: Place) -> str:
        """An operation on operands of a type; one that jumps has exact operands most often, which decide it."""
        jumps = row.switches and dtype in FLOATS
        made = [self.exact(dtype, place) if jumps and self.choices.chance(90) else operand(dtype)]
        kind = DTYPES[dtype].kind
        if row.name == "pow" and kind != "float":
            return f"({bare_power(made[0])} ** {self.choices.pick('2130')})"
        if row.name in POSITIVE and kind == "float" and self.choices.chance(80):
            made[0] = f"abs({bare(made[0])})"
        for _ in range(row.arity - 1):
            literal = self.choices.chance(25) and not (row.name in ("shl", "shr") and kind == "uint")
            made.append(self.number(dtype, plain=self.choices.chance(80)) if literal else operand(dtype))
        if row.name in ("floordiv", "mod") and made[1] == "0":
            made[1] = "3"
        if row.prefix is not None:
            return f"({row.prefix}{' ' if row.prefix == 'not' else ''}{made[0]})"
        if row.infix is not None:
            return f"({made[0]} {row.infix} {made[1]})"
        return f"{row.surface}({', '.join(map(bare, made))})"

    def exact(self, dtype: str, place: Place) -> str:
        """An operand without rounding."""
        assert isinstance(place, dict)
        return self.leaf(dtype, place, exact=True)

    def comparison(self, operand: Callable[[str], str], place: Place) -> str:
        """A bool from numbers or bools."""
        rows = {f"op {row.name} {d}": (row, d) for row in OPS.values() if row.gives == "bool"
                for d in dict.fromkeys((self.main, "f32", "i32")) if DTYPES[d].kind in row.kinds}  # fmt: skip
        row, dtype = self.choices.favour(rows)
        return self.written(row, dtype, operand, place)

    def choice(self, dtype: str, scope: Scope, levels: int) -> str:
        """One of two values, lazily or not."""
        cond = self.comparison(lambda d: self.leaf(d, scope), scope) if self.choices.chance(70) else (
            self.element("bool", scope, levels)
        )  # fmt: skip
        then, other = self.element(dtype, scope, levels), self.element(dtype, scope, levels)
        if self.choices.chance(50):
            return f"where({bare(cond)}, {bare(then)}, {bare(other)})"
        return f"({then} if {cond} else {other})"

    def cast(self, dtype: str, scope: Scope, levels: int) -> str:
        """A value of another type, converted or read as bits."""
        others = {f"op cast {d} {dtype}": d for d in (*FLOATS, *INTS, "bool") if d != dtype}
        source = self.choices.favour(others)
        to, of = DTYPES[dtype], DTYPES[source]
        if to.bits == of.bits and "bool" not in (to.name, of.name):
            ways = {f"op cast {source} {dtype}": False, f"op bits {source} {dtype}": True}
            if self.choices.favour(ways):
                return f"bits({bare(self.exact(source, scope))}, {dtype})"
        jumps = of.is_float and not to.is_float
        return f"{dtype}({bare(self.exact(source, scope) if jumps else self.element(source, scope, levels))})"

    def template(self, dtype: str, leaf: Callable[[str], str]) -> str:
        """The left side of a rule of the passes."""
        rules = {name: made for name, made in Templates.of(dtype).items() if name not in UNREACHABLE}
        name, text = self.choices.favour(rules)(self.choices, leaf)
        return text if name else leaf(dtype)

    def applied(self, dtype: str, operand: Callable[[str], str]) -> str:
        """A call of a function of the script."""
        fitting = [f for f, kind in self.functions.items() if (kind == "num" and dtype != "bool") or dtype in FLOATS]
        return f"{self.choices.pick(fitting)}({bare(operand(dtype))})" if fitting else operand(dtype)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def free_index(self, scope: Scope) -> str:
        """An index that is not in scope."""
        return next(k for k in INDICES if k not in scope)

    def reduction(self, dtype: str, scope: Scope, levels: int) -> str:
        """A reduction over one more index, or two."""
        if len(scope) >= 4:
            return self.leaf(dtype, scope)
        monoids = {f"reduction {m} {dtype}": m for m, types in REDUCTIONS.items() if dtype in types}
        if not monoids:
            return self.cast(dtype, scope, 1) if dtype == "bool" else self.leaf(dtype, scope)
        monoid = self.choices.favour(monoids)
        index = self.free_index(scope)
        known = list(dict.fromkeys(e for a in self.arrays for e in a.shape)) or [self.dim()]
        inner = {**scope, index: self.choices.pick(known)}
        if monoid in ("sum", "max") and len(inner) < 4 and self.choices.chance(15):
            inner[self.free_index(inner)] = self.choices.pick(known)
        value = self.element(self.reduced(monoid, dtype), inner, levels)
        cond = ""
        if monoid in FILTERED and self.choices.chance(20):
            cond = f" if {bare(self.comparison(lambda d: self.leaf(d, inner), inner))}"
        new = [k for k in inner if k not in scope]
        binders = ", ".join(self.range(k, inner, scope, value, monoid) for k in new)
        return f"{monoid}({bare(value)} for {binders}{cond})"

    def reduced(self, monoid: str, dtype: str) -> str:
        """The type of what is reduced to a type."""
        if monoid in ("argmax", "argmin"):
            return self.num_dtype()
        if monoid in ("sum", "prod") and dtype in SUMMANDS:
            return self.choices.pick(
                (*SUMMANDS[dtype], "bool") if (monoid, dtype) == ("sum", "i64") else SUMMANDS[dtype]
            )
        return dtype

    def range(self, index: str, inner: Scope, scope: Scope, value: str, monoid: str) -> str:
        """The binder of an index of a reduction: all of its extent, or a part."""
        extent = inner[index]
        how = self.choices.number(0, 9)
        same = [k for k, e in scope.items() if e == extent]
        if how == 9 and same:
            return f"{index} in 0..{same[-1]} + 1"
        if how == 8 and monoid in FILTERED:
            return f"{index} in 0..{extent} by 2"
        return index if stands_alone(index, value) and how < 6 else f"{index} in 0..{extent}"


def bare_power(text: str) -> str:
    """The base of a power: a sign in front of it would be taken last."""
    return f"({text})" if text.startswith("-") else text


assert set(REDUCTIONS) >= set(MONOIDS) - {"bitor", "bitand", "bitxor"}
