"""Array accumulators that many threads update: how an element is kept, and how it is updated."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from loopfuse.dtypes import F32
from loopfuse.emit.strips import Element
from loopfuse.emit.updates import WORDS
from loopfuse.emit.writer import HALVES, Writer, state_bytes, state_type
from loopfuse.ir import Acc, Store
from loopfuse.ops import MONOIDS
from loopfuse.sizes import ONE, Poly

Way = Literal["atomic", "turn", "exact"]
_INSTRUCTIONS = {"sum": "Add", "max": "Max", "min": "Min", "bitor": "Or", "bitand": "And", "bitxor": "Xor",
                 "any": "Or", "all": "And"}  # fmt: skip
_ZERO = ("sum", "bitor", "bitxor", "any")


@dataclass(frozen=True, slots=True)
class Table:
    """An array accumulator and the way in which threads that meet in an element update it.

    `atomic`: by atomic instructions, for the order does not matter; `turn`: a table is a warp's, whose lanes take turns;
    `exact`: floats are added to numbers of so many digits that no order gives other bits.
    """

    acc: Acc
    way: Way
    size: Poly
    count: int | None

    @property
    def word(self) -> str:
        """The C type of an element while it is updated: integers of less than 32 bits are kept in 32."""
        dtype = self.acc.dtype
        if MONOIDS[self.acc.monoid].positional or dtype.is_float or (dtype.is_int and dtype.bits >= 32):
            return state_type(self.acc.monoid, dtype)
        return "int" if dtype.kind == "int" else "unsigned int"

    @property
    def bytes(self) -> int:
        """The size of an element while it is updated."""
        return max(4, state_bytes(self.acc.monoid, self.acc.dtype))

    @property
    def narrow(self) -> bool:
        """Whether a word holds more than the element's type."""
        return self.word != state_type(self.acc.monoid, self.acc.dtype)

    @property
    def zero(self) -> bool:
        """Whether an element starts with all bits zero, and words of different threads meet by atomic instructions."""
        return self.way == "atomic" and self.acc.monoid in _ZERO

    def identity(self, w: Writer) -> str:
        """The start of a word."""
        return f"({self.word}){w.identity(self.acc.monoid, self.acc.dtype)}" if self.narrow else w.identity(
            self.acc.monoid, self.acc.dtype)  # fmt: skip

    def joined(self, w: Writer, left: str, right: str) -> str:
        """Two words as one."""
        if not self.narrow:
            return w.combine(self.acc.monoid, self.acc.dtype, left, right)
        return f"({self.word}){w.combine(self.acc.monoid, self.acc.dtype, self.value(left), self.value(right))}"

    def value(self, word: str) -> str:
        """The element that a word holds."""
        return f"({state_type(self.acc.monoid, self.acc.dtype)})({word})" if self.narrow else word

    def update(self, w: Writer, pointer: str, value: str) -> str:
        """A statement that joins a value to the word at a pointer, whatever other threads do meanwhile."""
        acc, word = self.acc, self.word
        name = _INSTRUCTIONS.get(acc.monoid, "")
        if name and acc.dtype.is_float and not (name == "Add" and acc.dtype not in HALVES):
            name = ""
        if not name:
            join = self.joined(w, "seen", "mine")
            return f"{{ const {word} mine = {value}; lf_update({pointer}, [=]({word} seen) {{ return {join}; }}); }}"
        if word == "long long" and name not in ("Max", "Min"):
            return f"atomic{name}((unsigned long long*)({pointer}), (unsigned long long)({value}));"
        return f"atomic{name}({pointer}, ({word})({value}));"


def table_of(w: Writer, acc: Acc, private: bool) -> Table | None:
    """The table of an array accumulator: one of every block, or one of all; None where there is no way to update it."""
    size = w.target.poly(prod(acc.shape, start=ONE))
    count = w.target.number(size)
    rounds = acc.dtype.is_float and acc.monoid in ("sum", "prod")
    free = not MONOIDS[acc.monoid].positional and not rounds
    if free or (rounds and acc.monoid == "sum" and acc.dtype not in HALVES and w.target.numerics == "fast"):
        return Table(acc, "atomic", size, count)
    if private:
        return Table(acc, "turn", size, count)
    return Table(acc, "exact", size, count) if acc.monoid == "sum" and acc.dtype == F32 else None


class Updating(Element):
    """The statements at one element, updates of tables by whoever meets there."""

    def __init__(self, w: Writer, prefix: str, tables: dict[str, Table]) -> None:
        super().__init__(w, prefix)
        self.tables = tables
        self.accs.update({id: t.acc for id, t in tables.items()})

    def absorb(self, stmt: Store) -> None:
        """A value into a table, or into a state."""
        table = self.tables.get(stmt.buffer)
        if table is None:
            super().absorb(stmt)
            return
        key, value, test = self.aimed(stmt)
        place = self.w.places[stmt.buffer]
        if table.way == "exact":
            text = f"lf_exact_add({place.pointer} + (long long)({key}) * {WORDS}, {value});"
        else:
            text = table.update(self.w, f"&{place.pointer}[{key}]", value)
        self.w.line(f"if ({test}) {text}" if test else text, stmt.span)

    def aimed(self, stmt: Store) -> tuple[str, str, str]:
        """The offset, the value, and the condition of an update."""
        acc, place = self.accs[stmt.buffer], self.w.places[stmt.buffer]
        value = self.w.expr(stmt.value)
        if stmt.at is not None:
            value = f"{state_type(acc.monoid, acc.dtype)}{{{value}, {self.position(stmt.at)}}}"
        subs, guards = self.w.subscripts(stmt.subs, stmt.modes, place, stmt, stmt.buffer)
        return self.w.flat(subs, place), value, " && ".join(c for c, _ in guards)


class Aiming(Updating):
    """The statements at one element, updates of tables only noted: `aims` has the variables for offset and value of each."""

    def __init__(self, w: Writer, prefix: str, tables: dict[str, Table]) -> None:
        super().__init__(w, prefix, tables)
        self.aims: dict[int, tuple[str, str]] = {}

    def absorb(self, stmt: Store) -> None:
        """An update noted, or a value into a state."""
        if id(stmt) not in self.aims:
            super().absorb(stmt)
            return
        key, value, test = self.aimed(stmt)
        offset, variable = self.aims[id(stmt)]
        self.w.line(f"{offset} = {f'{test} ? ' if test else ''}(int)({key}){' : -1' if test else ''};", stmt.span)
        self.w.line(f"{variable} = {value};")


__all__ = ["Aiming", "Table", "Updating", "table_of"]
