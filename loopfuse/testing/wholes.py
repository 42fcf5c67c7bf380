"""Random expressions of whole arrays, as in NumPy: every one has the type and the extents asked for."""

from __future__ import annotations

from collections.abc import Callable

from loopfuse.testing.elements import REDUCTIONS, Elements, Makers, Place
from loopfuse.testing.page import FLOATS, Array, Shape, bare, product

CUMULATIVE = ("cumsum", "cummax", "cummin", "cumprod")


class Wholes(Elements):
    """Expressions of arrays."""

    def whole(self, dtype: str, shape: Shape, levels: int = 3) -> str:
        """An expression of a type and extents."""
        if levels <= 0 or not self.spend():
            return self.whole_leaf(dtype, shape)
        again = self.again(shape, levels)
        makers: Makers = {
            "whole leaf": lambda: self.whole_leaf(dtype, shape),
            "whole operation": lambda: self.stretched(dtype, shape, levels - 1),
            "whole choice": lambda: self.whole_choice(dtype, shape, levels - 1),
            "whole template": lambda: self.template(dtype, lambda d: self.whole_leaf(d, shape)),
            "whole cast": lambda: self.whole_cast(dtype, shape, again),
            "whole call": lambda: self.applied(dtype, again),
        }
        if dtype == "bool":
            makers["whole comparison"] = lambda: self.comparison(again, shape)
        if shape:
            makers["whole made"] = lambda: self.made(dtype, shape)
            makers["whole moved"] = lambda: self.moved(dtype, shape, levels - 1)
            makers["whole gather"] = lambda: self.whole_gather(dtype, shape)
        if len(shape) < 3:
            makers["whole reduction"] = lambda: self.whole_reduction(dtype, shape, levels - 1)
        if len(shape) == 2 and dtype != "bool":
            makers["whole product"] = lambda: self.product(dtype, shape)
        often = self.choices.number(0, 9)
        name = "whole leaf" if often < 2 else "whole operation" if often < 6 else ""
        return makers[name]() if name else self.choices.favour(makers)()

    def again(self, shape: Shape, levels: int) -> Callable[[str], str]:
        """A maker of operands of the same extents."""
        return lambda dtype: self.whole(dtype, shape, levels - 1)

    # -- leaves -------------------------------------------------------------------------------------------------------

    def whole_leaf(self, dtype: str, shape: Shape, exact: bool = False) -> str:
        """An array of the type and extents; `exact`: an input."""
        found = [a for a in self.arrays if a.dtype == dtype and a.shape == shape and (a.given or not exact)]
        turned = [a for a in self.arrays if a.dtype == dtype and len(shape) == 2 and a.shape == shape[::-1]
                  and (a.given or not exact)]  # fmt: skip
        if turned and self.choices.chance(20 if found else 80):
            return f"{self.choices.pick(turned).name}.T"
        if found and not (self.room and self.choices.chance(8)):
            return self.choices.pick(found[::-1]).name
        if not self.room:
            other = next((a for a in self.arrays if a.shape == shape and (a.given or not exact)), None)
            if other is not None:
                return f"{dtype}({other.name})"
            return f"full({dtype}, {self.number(dtype)}{''.join(', ' + e for e in shape)})" if shape else (
                f"{dtype}({self.number(dtype)})"
            )  # fmt: skip
        return self.declare(dtype, shape).name

    def stretched(self, dtype: str, shape: Shape, levels: int) -> str:
        """An operation of which one operand may lack axes that the other has."""
        first = True

        def operand(of: str) -> str:
            nonlocal first
            lead, first = first, False
            if lead or not shape or self.choices.chance(60):
                return self.whole(of, shape, levels)
            return self.narrow(of, shape, levels)

        return self.operation(dtype, operand, shape)

    def narrow(self, dtype: str, shape: Shape, levels: int) -> str:
        """What broadcasts to the extents: trailing axes alone, an axis of extent 1, or a kept one."""
        how = self.choices.number(0, 3)
        if how == 0 or len(shape) == 1:
            return self.whole_leaf(dtype, shape[1:])
        if how == 1:
            return f"{self.whole_leaf(dtype, shape[:-1])}[..., None]"
        axis = self.choices.number(0, len(shape) - 1)
        if how == 2:
            subs = ["None" if k == axis else ":" for k in range(len(shape))]
            return f"{self.whole_leaf(dtype, shape[:axis] + shape[axis + 1 :])}[{', '.join(subs)}]"
        monoids = [m for m in ("sum", "max", "min", "mean") if dtype in REDUCTIONS[m]]
        if not monoids:
            return self.whole_leaf(dtype, shape)
        monoid = self.choices.pick(monoids)
        operand = self.whole(self.reduced(monoid, dtype), shape, levels - 1)
        return f"{monoid}({bare(operand)}, axis={self.axis(axis, len(shape))}, keepdims=true)"

    def axis(self, axis: int, rank: int) -> int:
        """An axis, counted from the front or from the end."""
        return axis - rank if self.choices.chance(40) else axis

    # -- operations ---------------------------------------------------------------------------------------------------

    def exact(self, dtype: str, place: Place) -> str:
        """An operand without rounding."""
        return self.whole_leaf(dtype, place, exact=True) if isinstance(place, tuple) else super().exact(dtype, place)

    def whole_choice(self, dtype: str, shape: Shape, levels: int) -> str:
        """`where` of whole arrays."""
        cond = self.comparison(lambda d: self.whole_leaf(d, shape), shape)
        then = self.whole(dtype, shape, levels)
        other = self.number(dtype) if self.choices.chance(30) else self.whole(dtype, shape, levels)
        return f"where({bare(cond)}, {bare(then)}, {bare(other)})"

    def whole_cast(self, dtype: str, shape: Shape, operand: Callable[[str], str]) -> str:
        """A conversion."""
        others = {f"op cast {d} {dtype}": d for d in (*FLOATS, "i32", "i64", "u8", "i8", "bool") if d != dtype}
        source = self.choices.favour(others)
        jumps = source in FLOATS and dtype not in FLOATS
        return f"{dtype}({bare(self.exact(source, shape) if jumps else operand(source))})"

    # -- arrays from nothing, and rearranged ones ---------------------------------------------------------------------

    def made(self, dtype: str, shape: Shape) -> str:
        """An array of constants, or of a rule."""
        extents = ", ".join(shape)
        makers: Makers = {
            "make zeros": lambda: f"zeros({dtype}, {extents})",
            "make ones": lambda: f"ones({dtype}, {extents})",
            "make full": lambda: f"full({dtype}, {self.number(dtype)}, {extents})",
            "make broadcast": lambda: f"broadcast_to({self.whole_leaf(dtype, shape[-1:])}, {extents})",
        }
        if len(shape) == 1 and dtype not in ("bool", "i8", "u8", "f16", "bf16"):
            makers["make iota"] = lambda: f"iota({extents}, dtype={dtype})"
            makers["make comprehension"] = lambda: f"[{dtype}(i) * 2 for i in 0..{extents}]"
        if len(shape) == 2 and shape[0] == shape[1]:
            makers["make eye"] = lambda: f"eye({dtype}, {shape[0]})"
        if len(shape) == 2:
            makers["make outer"] = lambda: self.outer(dtype, shape)
            makers["make one_hot"] = lambda: self.one_hot(dtype, shape)
        return self.choices.favour(makers)()

    def outer(self, dtype: str, shape: Shape) -> str:
        """All products of two vectors."""
        if dtype == "bool":
            return self.whole_leaf(dtype, shape)
        return f"outer({self.whole_leaf(dtype, shape[:1])}, {self.whole_leaf(dtype, shape[1:])})"

    def one_hot(self, dtype: str, shape: Shape) -> str:
        """A one in every row."""
        return f"one_hot({self.indices_below(shape[1], shape[:1]).name}, {shape[1]}, dtype={dtype})"

    def indices_below(self, extent: str, shape: Shape) -> Array:
        """An array of subscripts for an axis: one that is there, or a new input."""
        found = [a for a in self.arrays if a.below == extent and a.shape == shape]
        return self.choices.pick(found) if found else self.subscripts_below(extent, shape)

    def moved(self, dtype: str, shape: Shape, levels: int) -> str:
        """The elements of an array of the same extents in other places."""
        inner = bare(self.whole(dtype, shape, levels - 1))
        axis = self.choices.number(0, len(shape) - 1)
        at = self.axis(axis, len(shape))
        cumulative = [
            c for c in CUMULATIVE if dtype != "bool" and (c in ("cummax", "cummin") or dtype in (*FLOATS, "i64", "u64"))
        ]
        makers: Makers = {
            "move flip": lambda: f"flip({inner}, axis={at})",
            "move roll": lambda: f"roll({inner}, {self.choices.pick(('1', '-1', '2'))}, axis={at})",
            "move reverse": lambda: f"({inner})[{', '.join(['::-1'] + [':'] * (len(shape) - 1))}]",
            "move squeeze": lambda: f"squeeze(expand_dims({inner}, {axis}), axis={axis})",
            "move concat": lambda: self.halves(inner, dtype, shape, axis),
        }
        if cumulative:
            makers["move cumulative"] = lambda: f"{self.choices.pick(cumulative)}({inner}, axis={at})"
        if len(shape) == 2:
            makers["move triangle"] = lambda: (
                f"{self.choices.pick(('tril', 'triu'))}({inner}, k={self.choices.pick((0, 1, -1))})"
            )
            turned = f"{self.whole_leaf(dtype, shape[::-1])}"
            makers["move transpose"] = lambda: self.choices.pick((f"{turned}.T", f"swapaxes({turned}, 0, 1)"))
        if len(shape) >= 2:
            makers["move reshape"] = lambda: self.folded(dtype, shape)
        return self.choices.favour(makers)()

    def halves(self, inner: str, dtype: str, shape: Shape, axis: int) -> str:
        """Two parts joined again, the other way round."""
        lead = ":, " * axis
        name = inner if inner.isidentifier() else self.let(inner, dtype, shape).name
        return f"concat({name}[{lead}1:], {name}[{lead}:1], axis={axis})"

    def folded(self, dtype: str, shape: Shape) -> str:
        """A vector of all elements, given its axes."""
        count = product(*shape)
        found = next((a for a in self.arrays if a.dtype == dtype and a.shape == (count,)), None)
        if found is None and not self.room:
            return self.whole_leaf(dtype, shape)
        vector = found or self.declare(dtype, (count,))
        return f"reshape({vector.name}, {', '.join(shape)})"

    def whole_gather(self, dtype: str, shape: Shape) -> str:
        """Rows by number."""
        if not self.room:
            return self.whole_leaf(dtype, shape)
        extent = self.dim()
        table = self.whole_leaf(dtype, (extent, *shape[1:]))
        index = self.indices_below(extent, shape[:1]).name
        named = table if table.isidentifier() else self.let(table, dtype, (extent, *shape[1:])).name
        return f"{named}[{index}]" if self.choices.chance(50) else f"take({named}, {index}, axis=0)"

    # -- reductions and products --------------------------------------------------------------------------------------

    def whole_reduction(self, dtype: str, shape: Shape, levels: int) -> str:
        """A reduction over one more axis."""
        monoids = {f"reduction {m} {dtype}": m for m, types in REDUCTIONS.items() if dtype in types}
        if dtype in FLOATS:
            monoids |= {f"reduction {m} {dtype}": m for m in ("var", "std", "norm")}
        if dtype == "i64":
            monoids["reduction count_nonzero"] = "count_nonzero"
        if not monoids:
            return self.whole_leaf(dtype, shape)
        monoid = self.choices.favour(monoids)
        axis = self.choices.number(0, len(shape))
        known = list(dict.fromkeys(e for a in self.arrays for e in a.shape)) or [self.dim()]
        extent = self.choices.pick(known)
        wide = (*shape[:axis], extent, *shape[axis:])
        of = self.num_dtype() if monoid == "count_nonzero" else self.reduced(monoid, dtype)
        value = bare(self.whole(of, wide, levels))
        where = f", axis={self.axis(axis, len(wide))}" if shape or self.choices.chance(50) else ""
        more = ", ddof=1" if monoid in ("var", "std") and self.choices.chance(30) else ""
        return f"{monoid}({value}{where}{more})"

    def product(self, dtype: str, shape: Shape) -> str:
        """A matrix product."""
        inner = self.dim()
        a, b = self.whole_leaf(dtype, (shape[0], inner)), self.whole_leaf(dtype, (inner, shape[1]))
        if self.choices.chance(20):
            return f'einsum("ij,jk->ik", {a}, {b})'
        return f"({a} @ {b})"
