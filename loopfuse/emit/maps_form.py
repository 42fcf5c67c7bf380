"""The text of a map kernel: vectors of adjacent elements, all loads of a thread before the first use.

`Form` writes the vectors of a thread, wherever they are; which they are is said by `maps_plain`, and by `maps_tile` where
operands lie across each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Literal

from loopfuse.emit.approx import approximations
from loopfuse.emit.maps_access import Axis, Group, Key, Study
from loopfuse.emit.maps_operands import Operand, Operands, registers
from loopfuse.emit.serial import Serial
from loopfuse.emit.writer import HALVES, Place, Writer, c_type, storage
from loopfuse.ir import Let, Load, Store
from loopfuse.sizes import ONE, ZERO, Poly

Given = list[tuple[str, str]]  # names, and the lines that define them where something mentions them
Arrangement = Literal["flat", "rows", "decoded"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block is arranged: `width` elements a vector, `vectors` a thread, `across` by `down` threads.

    `across` vectors lie side by side in a row (flat: all threads). `chunks`: blocks that cover a row.
    """

    arrangement: Arrangement
    width: int
    vectors: int
    across: int
    down: int = 1

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.across * self.down


class Form:
    """The writing of one function."""

    def __init__(self, study: Study, operands: Operands, shape: Shape, cached: frozenset[str]) -> None:
        self.study, self.groups, self.shape = study, operands.groups, shape
        self.made = operands.made(shape.width)
        self.w: Writer = study.job.writer()
        self.w.names.keep("u", "e", "k")  # the loops over vectors and their elements
        self.w.near = approximations(study.body, study.job.buffers, study.target.numerics)
        for axis in study.axes:
            self.w.names(axis.id)  # a name that the writer knows is no size
        self.serial = Serial(self.w)
        self.width, self.cached = shape.width, cached
        self.packed = [o for o in self.made if o.store and o.kind == "vector"] if shape.width > 1 else []
        self.part = ""  # how many elements of a vector there are, where that is not all
        self.names = {id(o): self._name(o) for o in self.made}
        self.at: dict[str, str] = {}  # the C text of each group's index
        self.texts: dict[Key, str] = {}
        self.w.hook = lambda load: self.texts.get((load.buffer, load.subs, load.modes))

    @property
    def registers(self) -> float:
        """Registers for the operands that a thread loads before their use."""
        return registers(self.made, self.width, len(self.groups)) * self.shape.vectors

    def _name(self, operand: Operand) -> str:
        return self.w.names.fresh(f"{operand.access.node.buffer}_")

    # -- places -------------------------------------------------------------------------------------------------------

    def uneven(self, count: Poly, block: int) -> bool:
        """Whether some block may be cut."""
        number = self.study.target.number(count)
        return number is None or number % block != 0

    def branch(self, tests: list[str], whole: Callable[[], None], rest: Callable[[], None]) -> None:
        """Whole blocks one way, those at the end another."""
        if not tests:
            whole()
            return
        with self.w.block(f"if ({' && '.join(tests)})"):
            whole()
        with self.w.block("else"):
            rest()

    def place(self, group: Group, text: str) -> None:
        """A group's index is a C text from now on."""
        self.at[group.atom] = text
        self.w.alias[group.atom] = text

    def split(self, row: str, outer: Sequence[Group]) -> Given:
        """The indices of the outer groups from a row's number."""
        found: Given = []
        text = f"(unsigned {self.w.index}){row}"
        for n, group in enumerate(reversed(outer)):
            if n == len(outer) - 1:
                self.place(group, row if n == 0 else f"({self.w.index})({text})")
                break
            name = self.w.names(f"{group.axes[0].id}.row")
            extent = f"(unsigned {self.w.index}){self.w.poly(group.extent)}"
            found.append((name, f"const {self.w.index} {name} = {text} % {extent};"))
            self.place(group, name)
            text = f"{text} / {extent}"
        return found

    def scoped(self, given: Given, write: Callable[[], None]) -> None:
        """Lines, before them those of the definitions given that they mention."""
        w = self.w
        start = len(w.lines)
        write()
        made = w.lines[start:]
        del w.lines[start:]
        text, needed = "\n".join(made), list[str]()
        for name, line in reversed(given):
            if re.search(rf"\b{re.escape(name)}\b", text):
                needed.append(line)
                text = f"{line}\n{text}"
        for line in reversed(needed):
            w.line(line)
        w.lines += made

    def indices(self, inner: str = "") -> Given:
        """The indices of the band; `inner` is added to the last group's index."""
        w = self.w
        placed = {a.id for g in self.groups if g.atom in self.at for a in g.axes}
        fixed = {a.id for a in self.study.axes} - {a.id for g in self.groups for a in g.axes}
        names = [(a, w.names(a.id)) for a in self.study.axes if a.id in placed | fixed]
        return [(name, f"const {w.index} {name} = {self.index_text(a.id, inner)};") for a, name in names]

    def index_text(self, axis: str, inner: str) -> str:
        """An index of the band in C."""
        w = self.w
        value = "0"
        for group in self.groups:
            ids = [a.id for a in group.axes]
            if axis not in ids:
                continue
            at = self.at[group.atom] + (f" + {inner}" if inner and group is self.groups[-1] else "")
            k = ids.index(axis)
            below = self.study.target.poly(prod((a.extent for a in group.axes[k + 1 :]), start=ONE))
            value = at
            unsigned = f"(unsigned {w.index})"
            if below != ONE:
                value = f"{unsigned}({value}) / {unsigned}{w.poly(below)}"
            if k:
                value = value if below != ONE else f"{unsigned}({value})"
                value = f"{value} % {unsigned}{w.poly(group.axes[k].extent)}"
            value = f"({w.index})({value})" if below != ONE or k else value
        found = next(a for a in self.study.axes if a.id == axis)
        if found.step != ONE:
            value = f"({value}) * {w.poly(found.step)}"
        return value if found.low == ZERO else f"{w.poly(found.low)} + {value}"

    # -- vectors ------------------------------------------------------------------------------------------------------

    def fast(self, coordinates: Callable[[str], Given], column: dict[str, str] | None = None) -> None:
        """All vectors of a thread. `column`: the index of the last group, where all vectors have it in common."""
        w, count = self.w, self.shape.vectors
        common = frozenset(column or ())
        for atom, text in (column or {}).items():
            self.at[atom] = w.alias[atom] = text
        loads = [o for o in self.made if not o.store and o.stage is not None]
        if count == 1:
            self.one(coordinates("0"), loads)
            return
        early = [o for o in loads if o.needs <= common and o.stage == 0]
        self.load_all([], early)
        self.ahead([o for o in loads if o not in early], coordinates)
        with self.unrolled("u", count):
            given = coordinates("u")
            if self.width == 1:
                self.scoped([*given, *self.indices()], lambda: self.body(True))
            else:
                self.scoped(given, self.body)

    def ahead(self, operands: Sequence[Operand], coordinates: Callable[[str], Given]) -> None:
        """Operands for all vectors of a thread, one stage after another."""
        count = self.shape.vectors
        for operand in operands:
            self.w.line(f"{self.held(operand)} {self.names[id(operand)]}[{count}];")
        for stage in sorted({o.stage or 0 for o in operands}):
            with self.unrolled("u", count):
                self.load_all(coordinates("u"), [o for o in operands if o.stage == stage], "[u]")

    def one(self, given: Given, loads: list[Operand] | None = None) -> None:
        """One vector, or with width 1 one element, at the present place: its loads and its statements."""
        wanted = [o for o in (self.made if loads is None else loads) if not o.store and o.stage is not None]

        def both() -> None:
            if self.width == 1:
                for operand in wanted:
                    self.load(operand, "")
                self.body(True)
            else:
                self.load_all([], wanted)
                self.body()

        self.scoped([*given, *self.indices()] if self.width == 1 else given, both)

    def load_all(self, given: Given, operands: Sequence[Operand], sub: str = "") -> None:
        """Operands into registers, before them the definitions that their subscripts mention."""

        def write() -> None:
            for operand in operands:
                self.load(operand, sub)

        self.scoped([*given, *self.indices()], write)

    def unrolled(self, name: str, count: int) -> ExitStack:
        """A loop that is unrolled."""
        stack = ExitStack()
        self.w.line("#pragma unroll")
        stack.enter_context(self.w.block(f"for (int {name} = 0; {name} < {count}; ++{name})"))
        return stack

    def held(self, operand: Operand) -> str:
        """The C type in which a loaded operand waits."""
        dtype = operand.access.buffer.dtype
        vector = operand.kind == "vector" and self.width > 1
        return f"lf_vec<{storage(dtype)}, {self.width}>" if vector else c_type(dtype)

    def load(self, operand: Operand, sub: str) -> None:
        """An operand into a variable of its own, or with `sub` an element of an array; there the body finds it."""
        node = operand.access.node
        assert isinstance(node, Load)
        name, w = self.names[id(operand)], self.w
        place = (
            w.place(node.buffer, False) if node.subs or self.study.job.buffers[node.buffer].role != "param" else None
        )
        vector = operand.kind == "vector" and self.width > 1

        self.texts.pop(operand.access.key, None)
        if place is None or (operand.offset is None and not vector):
            text = w.load(node)
        elif vector:
            how = "lf_read" if operand.stream else "lf_peek"
            text = f"{how}<{self.width}, {operand.piece}>({self.address(operand, place)})"
            if self.part:
                text = f"lf_read_part<{self.width}>({self.address(operand, place)}, {self.part})"
        else:
            text = w.fetched(f"{place.pointer}[{self.offset(operand, place)}]", place)
        w.line(f"{'' if sub else f'const {self.held(operand)} '}{name}{sub} = {text};", node.span)
        found = f"{name}{sub}"
        if vector:
            assert place is not None
            found = w.fetched(f"{found}.v[e]", place)
        self.texts[operand.access.key] = found

    def offset(self, operand: Operand, place: Place) -> str:
        """The offset of an operand's first element in C."""
        if operand.offset is not None:
            return self.w.poly(operand.offset)
        node = operand.access.node
        subs, guards = self.w.subscripts(node.subs, node.modes, place, node, node.buffer)
        assert not guards
        return self.w.flat(subs, place)

    def address(self, operand: Operand, place: Place) -> str:
        """The address of an operand's first element."""
        text = self.offset(operand, place)
        return place.pointer if text == "0" else f"{place.pointer} + {text}"

    def body(self, declared: bool = False) -> None:
        """The statements for one vector, whose loads are in registers. `declared`: whoever calls declares the indices."""
        w = self.w
        packed = {id(o.access.node): o for o in self.packed} if self.width > 1 else {}
        for operand in packed.values():
            dtype = operand.access.buffer.dtype
            kind = "float" if dtype in HALVES else storage(dtype)
            w.line(f"lf_vec<{kind}, {self.width}> {self.names[id(operand)]};")
        plain = {id(o.access.node): o for o in self.made if o.store and o.offset is not None}

        def write() -> None:
            for stmt in self.study.body:
                if isinstance(stmt, Let):
                    self.serial.let(stmt)
                elif id(stmt) in packed:
                    place = w.place(stmt.buffer, True)
                    value = w.unrounded(w.expr(stmt.value), place)
                    w.line(f"{self.names[id(packed[id(stmt)])]}.v[e] = {value};", stmt.span)
                elif self.width == 1 and id(stmt) in plain:
                    self.store(stmt, plain[id(stmt)])
                else:
                    self.serial.store(stmt)

        if declared or self.width == 1:
            write()
        else:
            self.elements(write)
        for operand in packed.values():
            self.put(operand)

    def elements(self, write: Callable[[], None]) -> None:
        """Statements for each element of a vector. Indices that are one with others are not divided out for each element:
        they count on, with a carry."""
        w, inner = self.w, self.groups[-1].axes
        text = w.trial(write)
        mentioned = [bool(re.search(rf"\b{re.escape(w.names(a.id))}\b", text)) for a in inner]
        counted = inner[mentioned.index(True) :] if len(inner) > 1 and any(mentioned) else ()
        with ExitStack() as stack:
            if counted:
                stack.enter_context(w.block(""))
            for axis in counted:
                w.line(f"{w.index} {w.names(axis.id)} = {self.index_text(axis.id, '')};")
            stack.enter_context(self.unrolled("e", self.width))
            if self.part:
                stack.enter_context(w.block(f"if (e < {self.part})"))
            names = {w.names(a.id) for a in counted}
            self.scoped([(name, line) for name, line in self.indices("e") if name not in names], write)
            if counted:
                w.line(self.carry(counted, counted[0] is not inner[0]))

    def carry(self, axes: Sequence[Axis], wraps: bool) -> str:
        """The next value of indices, outermost first; `wraps`: the outermost begins again at its end."""
        step = ""
        for k, axis in enumerate(axes):
            name, low = self.w.names(axis.id), self.w.poly(axis.low)
            more = f"++{name}" if axis.step == ONE else f"({name} += {self.w.poly(axis.step)})"
            high = self.w.poly(self.study.target.poly(axis.low + axis.step * axis.extent))
            step = f"if ({more} == {high}) {{ {name} = {low}; {step}}}" if k or wraps else f"{more}; "
        return step.strip()

    def store(self, stmt: Store, operand: Operand) -> None:
        """A store of one element at an offset that is linear."""
        place = self.w.place(stmt.buffer, True)
        value = self.w.kept(self.w.expr(stmt.value), place)
        assert operand.offset is not None
        self.w.line(f"{place.pointer}[{self.w.poly(operand.offset)}] = {value};", stmt.span)

    def put(self, operand: Operand) -> None:
        """An output's vector to memory."""
        buffer = operand.access.buffer
        place = self.w.place(buffer.id, True)
        how = "lf_leave" if buffer.id in self.cached or not operand.stream else "lf_write"
        value = self.names[id(operand)]
        value = f"lf_pack_{buffer.dtype}({value})" if buffer.dtype in HALVES else value
        if self.part:
            self.w.line(f"lf_write_part<{self.width}>({self.address(operand, place)}, {value}, {self.part});")
        else:
            self.w.line(f"{how}<{operand.piece}>({self.address(operand, place)}, {value});")
