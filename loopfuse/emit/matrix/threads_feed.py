"""An operand's way to shared memory in contractions on the ordinary units: what threads load for the next step of the sum
while they multiply for this one, and what they make of it.

A computed operand is made from its loads on the way. Where all of those may happen at every element, they are loaded
ahead as they lie in memory; otherwise (under a condition, past edges, gathered) the value is made when it is loaded.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import gcd

from loopfuse.dtypes import DType
from loopfuse.emit.matrix.epilogue import indices
from loopfuse.emit.matrix.shape import Axis, Contraction, Side
from loopfuse.emit.matrix.threads_form import THREADS, VECTOR, Form, kept, lay
from loopfuse.emit.writer import Place, Writer, storage
from loopfuse.ir import Affine, Buffer, Expr, Load
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import guarded, subexprs

INDICES = 16  # registers in which a value that is made as it is loaded finds out where it is


@dataclass(frozen=True, eq=False, slots=True)
class Stream:
    """A load by where its elements lie: from `start` on, in steps along the side's own axis, the depths, the batches."""

    load: Load | None
    buffer: Buffer
    start: Poly
    own: Poly
    depth: tuple[Poly, ...]
    batch: tuple[Poly, ...]

    def along(self, axis: str) -> Poly:
        """The step along the axis along which threads take several elements."""
        return self.depth[-1] if axis == "k" else self.own

    def divides(self, whole: Contraction, axis: str, width: int) -> bool:
        """Whether `width` elements along an axis are always side by side, at a multiple of their size."""
        others = (self.start, *self.batch, *self.depth[:-1], self.own if axis == "k" else self.depth[-1])
        return self.along(axis) == ONE and not any(whole.divisor(p) % width for p in others)


def streams(whole: Contraction, side: Side, own: Axis) -> list[Stream] | None:
    """The loads of an operand; None where some may not happen at every element, or lie irregularly."""
    if side.value is None:
        return [Stream(None, side.buffer, side.start, side.row, side.depth, side.batch)]
    found: dict[Load, Stream] = {}
    stack: list[tuple[Expr, bool]] = [(side.value, False)]
    while stack:
        expr, lazy = stack.pop()
        if isinstance(expr, Load) and whole.job.buffers[expr.buffer].role == "param" and not expr.subs:
            continue
        if isinstance(expr, Load):
            stream = _stream(whole, expr, own)
            if stream is None or (lazy and not _inside(whole, expr, own)):
                return None
            found[expr] = stream
            continue
        stack += [(child, lazy or under) for child, under in guarded(expr)]
    return list(found.values())


def _stream(whole: Contraction, load: Load, own: Axis) -> Stream | None:
    job = whole.job
    if any(m is not None for m in load.modes):
        return None
    offset, stride = ZERO, ONE
    for sub, extent in zip(reversed(load.subs), reversed(job.buffers[load.buffer].shape), strict=True):
        if not isinstance(sub, Affine):
            return None
        offset = offset + job.target.poly(sub.poly) * stride
        stride = stride * job.target.poly(extent)
    axes = (own, *whole.depth, *whole.batch)
    moving = {n for axis in axes for n in axis.names}
    steps: list[Poly] = []
    rest = offset
    for axis in axes:
        step, count = ZERO, ONE
        for position, (name, low, extent) in enumerate(reversed(axis.indices)):
            mine = offset.coefficient(name)
            if offset.degree(name) > 1 or mine.names & moving or (position and mine != step * count):
                return None
            step = step if position else mine
            count = count * extent
            rest = rest - Poly.of(name) * mine + low * mine
        steps.append(step)
    if not rest.names <= {s.id for s in job.ask.env.program.sizes}:
        return None
    end = 1 + len(whole.depth)
    return Stream(load, job.buffers[load.buffer], rest, steps[0], tuple(steps[1:end]), tuple(steps[end:]))


def _inside(whole: Contraction, load: Load, own: Axis) -> bool:
    """Whether a load lies within its array whatever the indices are, as far as numbers tell."""
    spans = {n: (low, low + count - 1) for a in (own, *whole.depth, *whole.batch) for n, low, count in a.indices}
    target = whole.job.target
    for sub, extent in zip(load.subs, whole.job.buffers[load.buffer].shape, strict=True):
        assert isinstance(sub, Affine)
        ends = [target.poly(sub.poly), target.poly(sub.poly)]
        for name in ends[0].names & spans.keys():
            factor = ends[0].coefficient(name)
            if not factor.is_const or ends[0].degree(name) != 1:
                return False
            low, high = spans[name]
            for k, up in enumerate((False, True)):
                ends[k] = ends[k].subs({name: target.poly(high if (factor.constant > 0) == up else low)})
        gap = target.poly(extent) - ends[1] - 1
        if not ends[0].is_const or ends[0].constant < 0 or not gap.is_const or gap.constant < 0:
            return False
    return True


class Feed:
    """Statements of the threads of a block for one operand: `fetch` what a step needs, then `put` it to shared memory.

    `offset`: where it is in a buffer of a step, in bytes.
    """

    def __init__(self, whole: Contraction, w: Writer, form: Form, side: Side, left: bool, offset: int,
                 acc: DType) -> None:  # fmt: skip
        self.whole, self.w, self.form, self.side, self.left, self.offset = whole, w, form, side, left, offset
        self.own = whole.rows if left else whole.cols
        self.kind, size = kept(side.dtype, acc)
        self.lay = lay(form, left, size)
        found = streams(whole, side, self.own)
        self.streams = found or []
        self.made = found is None
        self.axis, self.width = self._width()
        self.wide = {s: self._vector(s) for s in self.streams}
        across = self.form.depth if self.axis == "k" else self.lay.extent
        self.lanes = across // self.width  # threads side by side along the axis
        self.units = across * (self.lay.extent if self.axis == "k" else self.form.depth) // self.width
        self.count = max(1, self.units // THREADS)  # vectors of a thread
        self.jump = THREADS // self.lanes  # from one to the next, along the other axis
        self.spread = self.axis == "k" and (self.count == 1 or self.jump % self.lay.group == 0)

    @property
    def bytes(self) -> int:
        """Of a step in shared memory."""
        return self.form.depth * self.lay.pitch * self.lay.size

    @property
    def registers(self) -> int:
        """What is on its way, in registers, and addresses of what comes element by element."""
        if self.made:
            return self.count * self.width * self.lay.size // 4 + INDICES
        each = (
            -(-self.width * s.buffer.dtype.itemsize // 4) * self.count + 4 * (not self.wide[s]) for s in self.streams
        )
        return sum(each)

    @property
    def vectors(self) -> frozenset[str]:
        """The buffers that are read in vectors."""
        return frozenset(s.buffer.id for s, wide in self.wide.items() if wide)

    def _width(self) -> tuple[str, int]:
        """Along what threads take several elements at once, and how many."""
        if self.made or not self.streams:
            return ("mn" if self._neighbours() else "k"), 1
        main = max(self.streams, key=lambda s: (s.depth[-1] != ZERO) + (s.own != ZERO))
        axis = "k" if abs(_size(main.depth[-1])) == 1 or abs(_size(main.own)) != 1 else "mn"
        extent = self.whole.depth[-1].extent if axis == "k" else self.own.extent
        most = min(VECTOR // main.buffer.dtype.itemsize, self.form.depth if axis == "k" else self.lay.extent)
        most = min(most, max(1, self.form.depth * self.lay.extent // THREADS))
        most = gcd(most, self.whole.divisor(extent))
        while most > 1 and not main.divides(self.whole, axis, most):
            most //= 2
        return axis, most

    def _neighbours(self) -> bool:
        """Whether elements of a value that is made as it is loaded lie side by side along the side's own axis."""
        loads = [e for e in subexprs(self.side.value) if isinstance(e, Load) and e.subs] if self.side.value else []
        last = [e.subs[-1] for e in loads if e.buffer == self.side.buffer.id]
        return any(isinstance(s, Affine) and abs(_size(s.poly.coefficient(self.own.names[-1]))) == 1 for s in last)

    def _vector(self, stream: Stream) -> int:
        """The bytes of the pieces by which a vector of a stream is read; 0: element by element."""
        bytes_ = self.width * stream.buffer.dtype.itemsize
        if self.width == 1 or bytes_ < 4 or not stream.divides(self.whole, self.axis, self.width):
            return 0
        return min(VECTOR, bytes_)

    # -- text ---------------------------------------------------------------------------------------------------------

    def declare(self, origin: str, points: list[str]) -> None:
        """What does not change from step to step."""
        w, n = self.w, self.w.names.fresh
        self.origin = origin
        stem = self.side.buffer.id
        self.first, self.other = n(f"{stem}.first"), n(f"{stem}.other")
        lanes = f"(int)threadIdx.x % {self.lanes}"
        w.line(f"const int {self.first} = {lanes}{f' * {self.width}' if self.width > 1 else ''};")
        w.line(f"const int {self.other} = (int)threadIdx.x / {self.lanes};")
        self.pointers: dict[Stream, str] = {}
        self.raw: dict[Stream, str] = {}
        for s in self.streams:
            kind = storage(s.buffer.dtype)
            pointer = self.w.pointer(s.buffer.id, kind)
            row, k = self.at("0", "0")
            parts = [
                w.poly(s.start),
                *(f"{p} * {w.poly(b)}" for p, b in zip(points, s.batch, strict=True) if b != ZERO),
            ]
            parts += [f"({origin} + {row}) * {w.poly(s.own)}"] if s.own != ZERO else []
            parts += [f"({k}) * {w.poly(s.depth[-1])}"] if s.depth[-1] != ZERO else []
            self.pointers[s] = n(f"{s.buffer.id}.at")
            total = " + ".join(p for k, p in enumerate(parts) if k or p != "0" or len(parts) == 1)
            w.line(f"const {kind}* const {self.pointers[s]} = {pointer} + ({w.index})({total});")
            self.raw[s] = n(f"{s.buffer.id}.next")
            w.line(f"lf_vec<{kind}, {self.width}> {self.raw[s]}[{self.count}];")
        if self.made:
            self.values = n(f"{stem}.next")
            w.line(f"{self.kind} {self.values}[{self.count}];")

    def at(self, i: str, q: str) -> tuple[str, str]:
        """The row (or column) in the tile and the place in the step of the q-th element of a vector."""
        more = "" if i == "0" or self.count == 1 else f" + {i} * {self.jump}"
        less = "" if q == "0" or self.width == 1 else f" + {q}"
        other = f"({self.other}{more})" if more else self.other
        if self.axis == "mn":
            return f"{self.first}{less}", other
        if not self.spread:
            return other, f"{self.first}{less}"
        return f"({self.lay.whose(self.other)}{more})", f"{self.first}{less}"

    def tests(self, i: str, q: str, inner: str) -> str:
        """The condition that an element is one of the operand; empty where it must be."""
        row, k = self.at(i, q)
        whole = self.whole
        found = []
        if self.units < THREADS:
            found.append(f"threadIdx.x < {self.units}")
        if whole.divisor(self.own.extent) % self.lay.extent:
            found.append(f"{self.origin} + {row} < {self.w.poly(self.own.extent)}")
        if whole.divisor(whole.depth[-1].extent) % self.form.depth:
            found.append(f"{inner} + {k} < {self.w.poly(whole.depth[-1].extent)}")
        return " && ".join(found)

    def fetch(self, inner: str, outer: list[str]) -> None:
        """Loads for a step that starts at `inner` of the last depth, at `outer` of the others."""
        w = self.w
        i, q = w.names.fresh("i"), w.names.fresh("q")
        w.line("#pragma unroll")
        with w.block(f"for (int {i} = 0; {i} < {self.count}; ++{i})"):
            if self.made:
                start, depth = len(w.lines), w.depth
                row, k = self.at(i, "0")
                self.element(f"{self.values}[{i}]", self.tests(i, "0", inner), inner, outer, (row, k), start, depth)
            for s in self.streams:
                self._load(s, i, q, inner, outer)
        w.names.free(i)
        w.names.free(q)

    def _load(self, s: Stream, i: str, q: str, inner: str, outer: list[str]) -> None:
        w = self.w
        kind = storage(s.buffer.dtype)
        away = self.own_step(s)
        parts = [f"{inner} * {w.poly(s.depth[-1])}"] if s.depth[-1] != ZERO else []
        parts += [f"{o} * {w.poly(d)}" for o, d in zip(outer, s.depth[:-1], strict=True) if d != ZERO]
        parts += [f"{i} * {self.jump} * {w.poly(away)}"] if self.count > 1 and away != ZERO else []
        shift = " + ".join(f"({w.index}){p}" for p in parts) or "0"
        to = f"{self.raw[s]}[{i}]"
        if self.wide[s]:
            test = self.tests(i, "0", inner)
            w.line(f"{to} = lf_vec<{kind}, {self.width}>{{}};")
            text = f"{to} = lf_peek<{self.width}, {self.wide[s]}>({self.pointers[s]} + {shift});"
            w.line(f"if ({test}) {text}" if test else text)
            return
        step = s.along(self.axis)
        place = f"{shift} + {q} * {w.poly(step)}" if step != ZERO and self.width > 1 else shift
        test = self.tests(i, q, inner)
        text = f"{self.pointers[s]}[{place}]"
        w.line("#pragma unroll")
        w.line(
            f"for (int {q} = 0; {q} < {self.width}; ++{q}) {to}.v[{q}] = {f'{test} ? {text} : ({kind})0' if test else text};"
        )

    def own_step(self, s: Stream) -> Poly:
        """The step along the axis that a thread's vectors go along."""
        return s.own if self.axis == "k" else s.depth[-1]

    def put(self, to: str, inner: str, outer: list[str]) -> None:
        """What was fetched to shared memory, as it is multiplied."""
        w, lay_ = self.w, self.lay
        i, q = w.names.fresh("i"), w.names.fresh("q")
        with ExitStack() as stack:
            if self.units < THREADS:
                stack.enter_context(w.block(f"if (threadIdx.x < {self.units})"))
            w.line("#pragma unroll")
            stack.enter_context(w.block(f"for (int {i} = 0; {i} < {self.count}; ++{i})"))
            w.line("#pragma unroll")
            stack.enter_context(w.block(f"for (int {q} = 0; {q} < {self.width}; ++{q})"))
            start, depth = len(w.lines), w.depth
            row, k = self.at(i, q)
            if self.axis == "mn":
                place = lay_.place(lay_.order(self.first))
                place += f" + {lay_.next(q)}" if self.width > 1 else ""
            elif self.spread:
                place = lay_.place(f"({self.other} + {i} * {self.jump})" if self.count > 1 else self.other)
            else:
                place = lay_.place(f"({lay_.order(row)})")
            element = f"{to}[({k}) * {lay_.pitch} + {place}]"
            if self.made:
                w.line(f"{element} = {self.values}[{i}];")
            elif self.side.value is None:
                (s,) = self.streams
                text = w.fetched(f"{self.raw[s]}[{i}].v[{q}]", Place("", (), s.buffer.dtype))
                w.line(f"{element} = ({self.kind}){text};")
            else:
                self.element(element, self.tests(i, q, inner), inner, outer, (row, k), start, depth, (i, q))
        w.names.free(i)
        w.names.free(q)

    def element(self, to: str, test: str, inner: str, outer: list[str], place: tuple[str, str], start: int, depth: int,
                loaded: tuple[str, str] | None = None) -> None:  # fmt: skip
        """A computed element, from its loads or from what was loaded; zero outside the operand."""
        w = self.w
        value = self.side.value
        assert value is not None
        for axis in (self.own, *self.whole.depth):
            for name in axis.names:
                w.names(name)
        came = {s.load: f"{self.raw[s]}[{loaded[0]}].v[{loaded[1]}]" for s in self.streams} if loaded else {}

        def hook(load: Load) -> str | None:
            text = came.get(load)
            return None if text is None else w.fetched(text, Place("", (), self.whole.job.buffers[load.buffer].dtype))

        w.hook = hook
        text = f"({self.kind}){w.expr(value)}"
        w.hook = None
        w.line(f"{to} = {f'{test} ? {text} : ({self.kind})0' if test else text};")
        indices(w, self.own, f"{self.origin} + {place[0]}", start, depth)
        for axis, text in zip(self.whole.depth, [*outer, f"{inner} + {place[1]}"], strict=True):
            indices(w, axis, text, start, depth)


def _size(poly: Poly) -> int:
    return poly.constant if poly.is_const else 0
