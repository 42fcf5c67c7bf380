"""Writing one kernel: lines of C, expressions, subscripts, loads and stores, and the arguments that they turn out to need.

Values of f16 and bf16 are C floats that hold such a number exactly; they are rounded where an operation may leave the
type, and are 16 bits wide in memory. Subscripts are of the index type, `int` where every extent fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from loopfuse.constants import to_number
from loopfuse.devices import H200, Device
from loopfuse.diag import CompilerError, Span
from loopfuse.dtypes import BF16, F16, F32, DType
from loopfuse.emit.code import FAULTS, Argument, Fault, KernelCode, Number, Param, Pointer, TileMap
from loopfuse.emit.names import Names
from loopfuse.ir import Affine, Buffer, Const, Expr, Load, Mode, Op, Ref, Select
from loopfuse.ops import C_TYPES, MONOIDS, OPS, Numerics
from loopfuse.outside import one_line
from loopfuse.sizes import ONE, ZERO, Poly, Quot

HALVES = (F16, BF16)
Hook = Callable[[Load], str | None]
Near = Callable[[Op], "tuple[str, tuple[Expr, ...]] | None"]  # another text for an operation, and its operands


@dataclass(frozen=True, slots=True)
class Target:
    """What code is made for. `sizes`: the numbers of known sizes; the others are arguments of the kernels."""

    device: Device = H200
    numerics: Numerics = "default"
    sizes: Mapping[str, int] = field(default_factory=dict)

    def poly(self, poly: Poly) -> Poly:
        """A polynomial with the known sizes put in."""
        return poly.subs({n: self.sizes[n] for n in poly.names if n in self.sizes})

    def number(self, poly: Poly) -> int | None:
        """The number that a polynomial is, where all of its sizes are known."""
        found = self.poly(poly)
        return found.constant if found.is_const else None


@dataclass(slots=True)
class Faults:
    """The checked accesses of a program, a counter each."""

    sites: list[Fault] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)

    def counter(self, node: object, buffer: str, span: Span | None) -> int:
        """The counter of an access; the same node (which the caller keeps alive) counts on the same one."""
        found = self._known.get(id(node))
        if found is None:
            found = self._known[id(node)] = len(self.sites)
            self.sites.append(Fault(found, buffer, span))
        return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of an array are: an expression for the pointer, the shape, and its memory if it is an argument.

    `raw`: 16-bit floats are kept as C floats (arrays in registers). `base`: what is subtracted from the subscripts.
    """

    pointer: str
    shape: tuple[Poly, ...]
    dtype: DType
    raw: bool = False
    base: tuple[Poly, ...] | None = None
    positional: bool = False


def storage(dtype: DType) -> str:
    """The C type of an element in memory."""
    return "unsigned short" if dtype in HALVES else C_TYPES[dtype.name]


def c_type(dtype: DType) -> str:
    """The C type of a value in a register."""
    return C_TYPES[dtype.name]


class Writer:
    """The text of one kernel in the making.

    `places` says where arrays are that are not plain memory; `hook`, asked first, may answer a load otherwise, and `near`
    an operation. `alias` replaces names of values by other texts.
    """

    def __init__(self, target: Target, buffers: Mapping[str, Buffer], faults: Faults, wide: bool = False) -> None:
        self.target, self.buffers, self.faults, self.wide = target, buffers, faults, wide
        self.names = Names()
        self.index = "long long" if wide else "int"
        self.lines: list[str] = []
        self.depth = 1
        self.places: dict[str, Place] = {}
        self.alias: dict[str, str] = {}
        self.hook: Hook | None = None
        self.near: Near | None = None
        self.shared = 0  # bytes of dynamic shared memory
        self._arguments: dict[str | TileMap, tuple[Argument, str]] = {}  # by key: the argument and its identifier
        self._memory: dict[str, str] = {}  # storage type of each memory that is pointed to
        self._written: set[str] = set()
        self._line: int | None = None

    # -- lines --------------------------------------------------------------------------------------------------------

    def line(self, text: str = "", span: Span | None = None) -> None:
        """A line of code, with its line of the script where that changes."""
        mark = ""
        if span is not None and text and span.line != self._line:
            self._line = span.line
            mark = f"  // line {span.line}"
        self.lines.append("  " * self.depth + text + mark if text else "")

    def comment(self, text: str) -> None:
        """A comment on a line of its own; nothing in it can end it."""
        self.line(f"// {one_line(text)}")

    def trial(self, write: Callable[[], None]) -> str:
        """What `write` would write, which is not kept."""
        start, line = len(self.lines), self._line
        write()
        text = "\n".join(self.lines[start:])
        del self.lines[start:]
        self._line = line
        return text

    @contextmanager
    def block(self, head: str, span: Span | None = None) -> Iterator[None]:
        """A block: `head {` … `}`."""
        self.line(f"{head} {{" if head else "{", span)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self.line("}")

    # -- arguments ----------------------------------------------------------------------------------------------------

    def pointer(self, memory: str, element: str, *, write: bool = False, name: str = "") -> str:
        """The identifier of a pointer argument to a memory of elements of a C type."""
        if write:
            self._written.add(memory)
        key = f"&{memory}"
        if key not in self._arguments:
            self._arguments[key] = (Pointer(memory), self.names.lasting(name or memory))
            self._memory[memory] = element
        return self._arguments[key][1]

    def size(self, name: str) -> str:
        """The identifier of the argument that holds a size or an outer step's index."""
        key = f"#{name}"
        if key not in self._arguments:
            self._arguments[key] = (Number(Poly.of(name), 64 if self.wide else 32), self.names(name))
        return self._arguments[key][1]

    def scalar(self, buffer: Buffer) -> str:
        """The value of a param of the program."""
        key = f"={buffer.id}"
        if key not in self._arguments:
            self._arguments[key] = (Param(buffer.id, buffer.dtype), self.names.lasting(buffer.id))
        name = self._arguments[key][1]
        return f"lf_{buffer.dtype}_value({name})" if buffer.dtype in HALVES else name

    def tile_map(self, map: TileMap, name: str) -> str:
        """The identifier of a tile map, whose address primitives take."""
        if map not in self._arguments:
            self._arguments[map] = (map, self.names.lasting(name))
        return self._arguments[map][1]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments, in the order of the parameters."""
        return tuple(a for a, _ in self._arguments.values())

    def parameters(self) -> str:
        """The parameters of the function."""
        found = []
        for argument, name in self._arguments.values():
            if isinstance(argument, Pointer):
                element = self._memory[argument.memory]
                # Not `__restrict__` where the kernel writes: what another thread wrote may be read after a barrier, and
                # the compiler takes a barrier for a call, which cannot change what a restricted pointer leads to.
                written = argument.memory in self._written
                found.append(f"{element}* {name}" if written else f"const {element}* __restrict__ {name}")
            elif isinstance(argument, Number):
                found.append(f"{self.index} {name}")
            elif isinstance(argument, TileMap):
                found.append(f"const __grid_constant__ lf_map {name}")
            else:
                found.append(f"{storage(argument.dtype)} {name}")
        return ", ".join(found)

    def function(self, name: str, threads: int, *, cluster: int = 1, blocks: int = 0,
                 head: Sequence[str] = (), **more: object) -> KernelCode:  # fmt: skip
        """The finished kernel. `blocks`: how many must fit on a multiprocessor; `head`: comment lines before it."""
        bounds = f"__launch_bounds__({threads}{f', {blocks}' if blocks else ''})"
        grouped = f" __cluster_dims__({cluster}, 1, 1)" if cluster > 1 else ""
        lines = [f"// {one_line(h)}" for h in head]
        lines.append(f'extern "C" __global__ void{grouped} {bounds}')
        lines.append(f"{name}({self.parameters()}) {{")
        declared = any(" lf_shared[]" in text for text in self.lines)
        if not declared and (self.shared or any("lf_shared" in text for text in self.lines)):
            lines.append("  extern __shared__ __align__(16) unsigned char lf_shared[];")
        text = "\n".join([*lines, *self.lines, "}", ""])
        return KernelCode(name, text, threads, self.shared, cluster, **more)  # type: ignore[arg-type]

    # -- index arithmetic ---------------------------------------------------------------------------------------------

    def poly(self, poly: Poly) -> str:
        """A polynomial in C, of the index type; composite texts are in parentheses."""
        poly = self.target.poly(poly)
        if poly.is_const:
            return self._integer(poly.constant)
        parts: list[str] = []
        for monomial, coefficient in poly.terms:
            factors = [self._atom(a) for a in monomial]
            if not factors:
                parts.append(
                    f"- {self._integer(-coefficient)}" if coefficient < 0 else f"+ {self._integer(coefficient)}"
                )
                continue
            if abs(coefficient) != 1:
                factors.append(self._integer(abs(coefficient)))
            parts.append(("- " if coefficient < 0 else "+ ") + " * ".join(factors))
        text = " ".join(parts)
        text = text[2:] if text.startswith("+ ") else "-" + text[2:]
        return text if len(parts) == 1 and parts[0][0] == "+" and "*" not in text else f"({text})"

    def _integer(self, value: int) -> str:
        text = f"{value}ll" if self.wide or not -(2**31) < value < 2**31 else str(value)
        return f"({text})" if value < 0 else text

    def _atom(self, atom: str | Quot) -> str:
        if isinstance(atom, Quot):
            num, den = self.poly(atom.num), self.poly(atom.den)
            if self.target.poly(atom.den).is_const and self.target.poly(atom.den).constant > 0:
                return f"lf_down<{self.index}>({num}, {den})"
            return f"lf_floordiv<{self.index}, unsigned {self.index}>({num}, {den})"
        if atom in self.alias:
            return self.alias[atom]
        if atom in self.names._of:
            return self.names(atom)
        return self.size(atom)

    def extent(self, lows: Sequence[Poly], highs: Sequence[Poly]) -> tuple[str, str]:
        """The bounds of a dim in C: the greatest of the lows, the least of the highs."""
        low, high = self._choose("lf_greatest", lows), self._choose("lf_least", highs)
        return low, high

    def _choose(self, function: str, polys: Sequence[Poly]) -> str:
        known = [self.target.number(p) for p in polys]
        numbers = [n for n in known if n is not None]
        if len(numbers) == len(polys):
            return self._integer((max if function == "lf_greatest" else min)(numbers))
        texts = [self.poly(p) for p in polys]
        text = texts[0]
        for other in texts[1:]:
            text = f"{function}<{self.index}>({text}, {other})"
        return text

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self, expr: Expr) -> str:
        """An expression in C, of the C type of its dtype."""
        if isinstance(expr, Const):
            return constant_text(expr)
        if isinstance(expr, Affine):
            text = self.poly(expr.poly)
            return text if self.wide else f"(long long){text}"
        if isinstance(expr, Ref):
            return self.alias.get(expr.id) or self.names(expr.id)
        if isinstance(expr, Load):
            return self.load(expr)
        if isinstance(expr, Select):
            cond, then, other = (self.expr(e) for e in (expr.cond, expr.then, expr.other))
            return f"({cond} ? {then} : {other})"
        return self._op(expr)

    def _op(self, op: Op) -> str:
        row = OPS[op.op]
        operand = op.args[-1].dtype
        if op.op == "cast" and operand.is_float and operand.bits <= 32 and op.dtype in (operand, F32):
            return self.expr(op.args[0])
        other = self.near(op) if self.near else None
        if other is not None:
            text = other[0].format(*(self.expr(a) for a in other[1]))
        else:
            spelling = row.spell(operand, self.target.numerics, op.dtype)
            text = spelling.format([self.expr(a) for a in op.args], operand, op.dtype)
        return self.rounded(text, op.dtype) if op.dtype in HALVES and self._leaves(op) else text

    def _leaves(self, op: Op) -> bool:
        """Whether a result may be no number of its 16-bit type."""
        row = OPS[op.op]
        if row.name == "bits" or row.name == "cast":
            return not (row.name == "bits" or op.args[0].dtype == op.dtype or op.args[0].dtype.kind == "bool")
        return row.ulp(F32, self.target.numerics) != 0

    def rounded(self, text: str, dtype: DType) -> str:
        """A float rounded to a 16-bit type."""
        return f"lf_round_{dtype}({text})"

    # -- memory -------------------------------------------------------------------------------------------------------

    def place(self, buffer: str, write: bool) -> Place:
        """Where an array is."""
        found = self.places.get(buffer)
        if found is not None:
            if write and f"&{buffer}" in self._arguments:
                self._written.add(buffer)
            return found
        if buffer not in self.buffers:
            raise CompilerError("emit", f"the array `{buffer}` has no place in this kernel")
        b = self.buffers[buffer]
        return Place(self.pointer(buffer, storage(b.dtype), write=write), b.shape, b.dtype)

    def load(self, load: Load) -> str:
        """An element, by the modes of its subscripts."""
        answer = self.hook(load) if self.hook else None
        if answer is not None:
            return answer
        if load.buffer in self.buffers and self.buffers[load.buffer].role == "param" and not load.subs:
            return self.scalar(self.buffers[load.buffer])
        place = self.place(load.buffer, False)
        subs, guards = self.subscripts(load.subs, load.modes, place, load, load.buffer)
        text = self.fetched(f"{place.pointer}[{self.flat(subs, place)}]", place)
        for condition, fill in reversed(guards):
            text = f"({condition} ? {text} : {fill if fill is not None else self._zero(load.dtype)})"
        return text

    def fetched(self, text: str, place: Place) -> str:
        """The value of an element in memory."""
        if place.positional:
            return f"{text}.at"
        return f"lf_{place.dtype}_value({text})" if place.dtype in HALVES and not place.raw else text

    def kept(self, value: str, place: Place) -> str:
        """What is written to memory for a value, which is rounded by being written."""
        value = self.unrounded(value, place)
        return f"lf_{place.dtype}_bits({value})" if place.dtype in HALVES and not place.raw else value

    def unrounded(self, value: str, place: Place) -> str:
        """A value that will be rounded to the type of an array, without a rounding to that type on its outside."""
        head = f"lf_round_{place.dtype}("
        return value[len(head) - 1 :] if value.startswith(head) and closes(value, len(head) - 1) else value

    def _zero(self, dtype: DType) -> str:
        return constant_text(Const(0, dtype))

    def subscripts(self, subs: Sequence[Expr], modes: Sequence[Mode | None], place: Place, node: object, buffer: str,
                   ) -> tuple[list[Poly | str], list[tuple[str, str | None]]]:  # fmt: skip
        """Subscripts inside the array, polynomials where they are, and the conditions (with fills) of the access."""
        found: list[Poly | str] = []
        guards: list[tuple[str, str | None]] = []
        for axis, sub in enumerate(subs):
            mode = modes[axis] if axis < len(modes) else None
            poly = sub.poly if isinstance(sub, Affine) else None
            if mode is None:
                found.append(poly if poly is not None else self.integer(sub))
                continue
            extent, kind, raw = self.poly(place.shape[axis]), self.index, self.integer(sub)
            if poly is None and sub.dtype.bits >= 32 and sub.dtype.name != "i32":  # looked at as computed, not as cut
                kind, raw = "long long", f"(long long)({self.expr(sub)})"
            if mode.kind in ("constant", "checked"):
                test = f"lf_inside<{kind}>({raw}, {extent})"
                if mode.kind == "checked":
                    span = getattr(node, "span", None)
                    counters = self.pointer(FAULTS, "unsigned int", write=True)
                    test = f"({test} || lf_fault({counters}, {self.faults.counter(node, buffer, span)}))"
                guards.append((test, constant_text(mode.fill) if mode.fill is not None else None))
                found.append(poly if poly is not None else self.integer(sub))
            else:
                text = f"lf_{mode.kind}<{kind}>({raw}, {extent})"
                found.append(text if kind == self.index else f"({self.index}){text}")
        return found, guards

    def integer(self, expr: Expr) -> str:
        """An integer expression as a subscript."""
        if isinstance(expr, Affine):
            return self.poly(expr.poly)
        text = self.expr(expr)
        return text if self.wide and expr.dtype.name == "i64" else f"({self.index})({text})"

    def flat(self, subs: Sequence[Poly | str], place: Place) -> str:
        """The offset of an element in row-major order."""
        if not subs:
            return "0"
        stride, total, texts = ONE, ZERO, []
        for axis in reversed(range(len(subs))):
            sub = subs[axis]
            base = place.base[axis] if place.base else ZERO
            if isinstance(sub, Poly):
                total = total + (self.target.poly(sub) - self.target.poly(base)) * stride
            else:
                less = f"({sub} - {self.poly(base)})" if base != ZERO else sub
                texts.append(less if stride == ONE else f"{less} * {self.poly(stride)}")
            stride = stride * self.target.poly(place.shape[axis])
        if total != ZERO or not texts:
            texts.append(self.poly(total))
        return " + ".join(texts)

    # -- accumulators -------------------------------------------------------------------------------------------------

    def combine(self, monoid: str, dtype: DType, left: str, right: str) -> str:
        """Two states joined, the left one holding the earlier elements. Both are evaluated, whatever they are."""
        if MONOIDS[monoid].positional:
            return f"lf_{monoid}({left}, {right})"
        if OPS[MONOIDS[monoid].op].lazy:  # C would leave out the right one: a shuffle then misses lanes
            return f"(({left}) {'|' if MONOIDS[monoid].op == 'or' else '&'} ({right}))"
        return OPS[MONOIDS[monoid].op].spell(dtype, "strict", dtype).format([left, right], dtype, dtype)

    def identity(self, monoid: str, dtype: DType) -> str:
        """The state at the start."""
        value = MONOIDS[monoid].identity(dtype)
        bits = int.from_bytes(value.tobytes(), "little")
        text = constant_text(Const(bits, dtype))
        return f"{state_type(monoid, dtype)}{{{text}, {NOWHERE}}}" if MONOIDS[monoid].positional else text


NOWHERE = "0x7fffffffffffffffll"


def state_type(monoid: str, dtype: DType) -> str:
    """The C type of the state of an accumulator."""
    return f"lf_best<{c_type(dtype)}>" if MONOIDS[monoid].positional else c_type(dtype)


def state_bytes(monoid: str, dtype: DType) -> int:
    """The size of that type in bytes."""
    if MONOIDS[monoid].positional:
        return 16
    return 4 if dtype in HALVES else dtype.itemsize


def constant_text(const: Const) -> str:
    """A constant in C, to the bit but for the payload of a NaN."""
    dtype = const.dtype
    if dtype.kind == "bool":
        return "true" if const.bits else "false"
    value = to_number(const.bits, dtype)
    if dtype.is_float:
        return _float_text(float(value), dtype)
    return _integer_text(int(value), dtype)


def _integer_text(value: int, dtype: DType) -> str:
    suffix: Literal["", "u", "ll", "ull"] = "ull" if dtype.name == "u64" else "ll" if dtype.bits == 64 else ""
    if dtype.name == "u32":
        suffix = "u"
    if value == dtype.least and dtype.kind == "int" and dtype.bits >= 32:
        return f"({-(value + 1)}{suffix} * -1 - 1)"
    text = f"{value}{suffix}"
    if dtype.bits < 32:
        return f"({C_TYPES[dtype.name]}){'(' + text + ')' if value < 0 else text}"
    return f"({text})" if value < 0 else text


def _float_text(value: float, dtype: DType) -> str:
    double = dtype.name == "f64"
    if math.isnan(value):
        return "__longlong_as_double(0x7ff8000000000000ll)" if double else "__int_as_float(0x7fc00000)"
    if math.isinf(value):
        if double:
            return f"__longlong_as_double({'0xfff0000000000000' if value < 0 else '0x7ff0000000000000'}ull)"
        return f"__int_as_float({'0xff800000' if value < 0 else '0x7f800000'})"
    exact = float(repr(value))
    text = repr(exact) if double or value == 0 or abs(value) >= 1e-30 else value.hex()
    text = text if "." in text or "e" in text or "x" in text else f"{text}.0"
    text = text if double else f"{text}f"
    return f"({text})" if math.copysign(1.0, value) < 0 else text


def closes(text: str, start: int) -> bool:
    """Whether the parenthesis at `start` is closed by the last character of the text."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at == len(text) - 1
    return False
