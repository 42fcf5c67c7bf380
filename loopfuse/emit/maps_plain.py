"""Which vectors a thread of a map kernel takes, where no operand lies across another.

Three arrangements. `flat`: the band is one index, and the vectors of a block follow one another. `rows`: a block is a patch
of rows and columns, a thread keeps its column, and what depends on the column alone is loaded once. `decoded`: vectors are
numbered through all rows. A block at the end of the band goes through its elements or vectors one at a time.
"""

from __future__ import annotations

from math import prod

from loopfuse.emit.code import ceil_div
from loopfuse.emit.maps_form import Form, Given
from loopfuse.sizes import ONE, Poly


class Plain(Form):
    """The writing of one function without tiles."""

    def write(self) -> Poly:
        """The body of the function; gives the number of blocks."""
        if not self.groups:
            self.single()
            return ONE
        return {"flat": self.flat, "rows": self.rows, "decoded": self.decoded}[self.shape.arrangement]()

    def single(self) -> None:
        """A band of one element."""
        with self.w.block("if (threadIdx.x == 0)"):
            self.one([])

    def flat(self) -> Poly:
        """One index over the whole band."""
        w, shape, group = self.w, self.shape, self.groups[0]
        step = shape.threads * shape.width
        block = step * shape.vectors
        number = self.study.target.number(group.extent)
        last, at = w.names.fresh("end"), w.names.fresh("at")
        first, here = w.names.fresh("first"), w.names.fresh("here")
        w.line(f"const {w.index} {first} = {self.number_of_block()} * {block};")
        place = f"{first} + (int)threadIdx.x * {shape.width}" if shape.width > 1 else f"{first} + (int)threadIdx.x"

        def whole() -> None:
            w.line(f"const {w.index} {at} = {place};")

            def coordinates(u: str) -> Given:
                self.place(group, at if u == "0" else here)
                return [(here, f"const {w.index} {here} = {at} + {u} * {step};")]

            self.fast(coordinates)

        def rest() -> None:
            k = w.names.fresh("k")
            with w.block(f"for ({w.index} {k} = {first} + (int)threadIdx.x; {k} < {last}; {k} += {shape.threads})"):
                self.place(group, k)
                self.width = 1
                self.one([])
                self.width = shape.width

        if number is None or number % block:
            w.line(f"const {w.index} {last} = {w.poly(group.extent)};")
            self.branch([f"{first} + {block} <= {last}"], whole, rest)
        else:
            whole()
        return ceil_div(group.extent, block)

    def rows(self) -> Poly:
        """Patches of rows and columns."""
        w, shape, inner, outer = self.w, self.shape, self.groups[-1], self.groups[:-1]
        columns, rows = self.count(inner.extent, shape.width), prod((g.extent for g in outer), start=ONE)
        chunks = ceil_div(columns, shape.across)
        patch = shape.down * shape.vectors
        chunk, thread = w.names.fresh("chunk"), "(int)threadIdx.x"
        row, column, start = w.names.fresh("row"), w.names.fresh("column"), w.names.fresh("top")
        if chunks == ONE:
            w.line(f"const {w.index} {start} = {self.number_of_block()} * {patch};")
        else:
            w.line(f"const {w.index} {chunk} = blockIdx.x % {w.poly(chunks)}u;")
            w.line(f"const {w.index} {start} = {self.number_of_block(f'(blockIdx.x / {w.poly(chunks)}u)')} * {patch};")
        side = f"threadIdx.x % {shape.across}u" if shape.down > 1 else "threadIdx.x"
        base = f"({w.index})({side})" if shape.down > 1 else thread
        base = base if chunks == ONE else f"({chunk} * {shape.across} + {base})"
        w.line(f"const {w.index} {column} = {base}{f' * {shape.width}' if shape.width > 1 else ''};")
        below = f"{start} + (int)(threadIdx.x / {shape.across}u)" if shape.down > 1 else start

        def coordinates(u: str) -> Given:
            at = below if u == "0" else f"{below} + {u}{f' * {shape.down}' if shape.down > 1 else ''}"
            self.place(inner, column)
            return [(row, f"const {w.index} {row} = {at};"), *self.split(row, outer)]

        def rest() -> None:
            with w.block(f"for (int u = 0; u < {shape.vectors}; ++u)"):
                given = coordinates("u")

                def inside() -> None:
                    with w.block(f"if ({row} < {w.poly(rows)} && {column} < {w.poly(inner.extent)})"):
                        self.one([])

                self.scoped(given, inside)

        tests = []
        if self.uneven(rows, patch):
            tests.append(f"{start} + {patch} <= {w.poly(rows)}")
        if self.uneven(columns, shape.across):
            tests.append(f"({chunk} + 1) * {shape.across} <= {w.poly(columns)}")
        self.branch(tests, lambda: self.fast(coordinates, {inner.atom: column}), rest)
        return chunks * ceil_div(rows, patch)

    def decoded(self) -> Poly:
        """Vectors numbered through all rows."""
        w, shape, inner, outer = self.w, self.shape, self.groups[-1], self.groups[:-1]
        columns, rows = self.count(inner.extent, shape.width), prod((g.extent for g in outer), start=ONE)
        total, block = self.study.target.poly(columns * rows), shape.threads * shape.vectors
        first, q, row, column = (w.names.fresh(n) for n in ("first", "q", "row", "column"))
        unsigned = f"unsigned {w.index}"
        per, end = (self.named(n, p) for n, p in (("columns", columns), ("end", total)))
        w.line(f"const {w.index} {first} = {self.number_of_block()} * {block};")

        def coordinates(u: str) -> Given:
            more = "" if u == "0" else f" + {u} * {shape.threads}"
            times = f" * {shape.width}" if shape.width > 1 else ""
            self.place(inner, column)
            return [
                (q, f"const {unsigned} {q} = {first} + (int)threadIdx.x{more};"),
                (row, f"const {w.index} {row} = {q} / ({unsigned}){per};"),
                (column, f"const {w.index} {column} = {q} % ({unsigned}){per}{times};"),
                *self.split(row, outer),
            ]

        def rest() -> None:
            with w.block(f"for (int u = 0; u < {shape.vectors}; ++u)"):
                given = coordinates("u")

                def inside() -> None:
                    with w.block(f"if ({q} < ({unsigned}){end})"):
                        self.one([])

                self.scoped(given, inside)

        tests = [f"{first} + {block} <= {end}"] if self.uneven(total, block) else []
        self.branch(tests, lambda: self.fast(coordinates), rest)
        return ceil_div(total, block)

    # -- parts --------------------------------------------------------------------------------------------------------

    def number_of_block(self, text: str = "blockIdx.x") -> str:
        """The number of the block in the index type."""
        return f"({self.w.index}){text}"

    def named(self, name: str, value: Poly) -> str:
        """A number, or a variable that holds it."""
        text = self.w.poly(value)
        if value.is_const or value.name is not None:
            return text
        variable = self.w.names.fresh(name)
        self.w.line(f"const {self.w.index} {variable} = {text};")
        return variable

    def count(self, extent: Poly, width: int) -> Poly:
        """The vectors of a row; the width divides it."""
        return self.study.target.poly(extent) // width if width > 1 else self.study.target.poly(extent)
