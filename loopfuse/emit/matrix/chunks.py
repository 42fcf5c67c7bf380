"""Operands on their way into the ring of a kernel by the threads themselves: text of a thread that copies or makes chunks of
16 bytes.

Elements that pass through registers are loaded one by one; of a computed operand whose main array lies along the chunk,
a whole chunk at once.
"""

from __future__ import annotations

from loopfuse.emit.code import ceil_div
from loopfuse.emit.matrix.shape import Axis, Contraction
from loopfuse.emit.matrix.warp_forms import CHUNK, TYPES, Operand, Piece
from loopfuse.emit.rows_vectors import used
from loopfuse.emit.writer import Place, Writer, storage
from loopfuse.ir import Affine, Load
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import subexprs

THREAD = "threadIdx.x"


def inside(w: Writer, whole: Contraction, axis: Axis, tile: int, text: str) -> str:
    """The condition that a position lies on an axis; empty where all of every tile does."""
    count = whole.job.target.number(axis.extent)
    return "" if count is not None and count % tile == 0 else f"{text} < {w.poly(axis.extent)}"


class Chunks:
    """What one of `threads` threads does to bring the operands of a stage; `thread`: its number, in C."""

    def __init__(self, w: Writer, whole: Contraction, operands: list[Operand], kind: str, threads: int,
                 thread: str = THREAD) -> None:  # fmt: skip
        self.w, self.whole, self.operands, self.kind, self.threads = w, whole, operands, kind, threads
        self.thread = thread
        self.depth = operands[0].depth
        self.loose: list[str] = []  # variables that may turn out not to be needed
        self.trips = ""  # name of the count of stages
        self.part = ""  # name of the first stage, where sums are cut
        self.row = self.col = ""  # names of the tile's coordinates
        self.points: list[str] = []
        self.vectors = [self.loads(o) for o in operands]  # of computed operands: what is loaded by chunks
        # names by operand: pointer to a thread's first chunk, its row, its element of the sum, its place and order
        self.sources: list[tuple[str, str, str, str, str]] = []

    def bind(self, axis: Axis, position: str, start: int) -> None:
        """The loop indices of an axis from a position on it, before the lines from `start` on, where those use them."""
        w, rest = self.w, position
        found: list[str] = []
        for number, (name, low, count) in reversed(list(enumerate(axis.indices))):
            low_, count_ = w.poly(low), w.poly(count)
            text = f"({rest}) % {count_}" if number else rest
            if used(w.names(name), w.lines[start:]):
                found.append(f"const {w.index} {w.names(name)} = {text if low_ == '0' else f'{low_} + {text}'};")
            rest = f"({rest}) / {count_}"
        w.lines[start:start] = ["  " * w.depth + text for text in found]

    # -- operands into the ring ---------------------------------------------------------------------------------------

    def source(self, operand: Operand) -> None:
        """What a thread's copies of an operand have in common."""
        w, side = self.w, operand.side
        n = w.names.fresh
        stem = side.buffer.id
        row, depth, to, turn = (n(f"{stem}.{x}") for x in ("row", "depth", "to", "turn"))
        texts = operand.first(f"(int){self.thread}", self.threads)
        w.line(f"const int {row} = {self.row if operand.left else self.col} + {texts[0]};")
        w.line(f"const int {depth} = {texts[1]};")
        w.line(f"const int {turn} = {texts[3]};")
        w.line(
            f"const int {to} = {operand.offset} + {texts[2]};" if operand.offset else f"const int {to} = {texts[2]};"
        )
        pointer = ""
        if side.value is None:
            kind = storage(side.buffer.dtype)
            terms = [(row, side.row), (depth, side.depth[-1]), *zip(self.points, side.batch, strict=True)]
            text = " + ".join(f"(long long){at} * {w.poly(step)}" for at, step in terms if w.poly(step) != "0")
            start = w.poly(side.start)
            pointer = n(f"{stem}.from")
            base = w.place(stem, False).pointer
            w.line(
                f"const {kind}* const {pointer} = {' + '.join(x for x in (base, '' if start == '0' else start, text) if x)};"
            )
        self.loose += [row, depth]
        self.sources.append((pointer, row, depth, to, turn))

    def pieces(self) -> list[tuple[Operand, Piece]]:
        """Everything that a thread copies of a stage."""
        return [(o, p) for o in self.operands for p in o.pieces(self.threads)]

    def ahead(self, stage: str) -> tuple[str, ...]:
        """Names for a stage that is copied: whether there is one, where it is along the innermost axis of the sum, and
        along the others."""
        w, whole = self.w, self.whole
        more, inner = w.names.fresh("more"), w.names.fresh("inner")
        self.loose += [more, inner]
        w.line(f"const bool {more} = {stage} < {self.trips};")
        stage = f"({self.part} + {stage})" if self.part else stage
        if len(whole.depth) == 1:
            w.line(f"const int {inner} = {stage} * {self.depth};")
            return more, inner
        each = w.poly(ceil_div(whole.depth[-1].extent, self.depth))
        w.line(f"const int {inner} = {stage} % {each} * {self.depth};")
        outer = []
        for number, axis in enumerate(whole.depth[:-1]):
            below = " * ".join([each, *(w.poly(a.extent) for a in whole.depth[number + 1 : -1])])
            outer.append(w.names.fresh("outer"))
            self.loose.append(outer[-1])
            w.line(f"const int {outer[-1]} = {stage} / ({below}){f' % {w.poly(axis.extent)}' if number else ''};")
        return more, inner, *outer

    def spot(self, operand: Operand, piece: Piece, to: str) -> str:
        """The place of a chunk in a stage."""
        _, _, _, at, turn = self.sources[self.operands.index(operand)]
        text = f"{to} + {at} + ({turn} ^ {piece.turn})" if piece.turn else f"{to} + {at} + {turn}"
        return f"{text} + {piece.more}" if piece.more else text

    def where(self, operand: Operand, piece: Piece, names: tuple[str, ...]) -> tuple[str, str, str]:
        """A chunk's row, its first element of the sum, and its address."""
        w, side = self.w, operand.side
        _, inner, *outer = names
        pointer, row, depth, _, _ = self.sources[self.operands.index(operand)]
        far = f"{row} + {piece.row}" if piece.row else row
        deep = f"{inner} + {depth} + {piece.depth}" if piece.depth else f"{inner} + {depth}"
        if side.value is not None:
            return far, deep, ""
        terms = [(inner, side.depth[-1]), *zip(outer, side.depth[:-1], strict=True)]
        moved = [x if w.poly(s) == "1" else f"(long long){x} * {w.poly(s)}" for x, s in terms if w.poly(s) != "0"]
        fixed = w.poly(side.row * piece.row + side.depth[-1] * piece.depth)
        return far, deep, " + ".join([pointer, *moved, *([fixed] if fixed != "0" else [])])

    def test(self, operand: Operand, more: str, far: str, deep: str, e: str) -> str:
        """The condition that element `e` of a chunk is one of the operand."""
        along_rows = operand.lies == "mn"
        axis = self.whole.rows if operand.left else self.whole.cols
        plus = "" if e == "0" else f" + {e}"
        found = [more, inside(self.w, self.whole, axis, operand.rows, far + (plus if along_rows else "")),
                 inside(self.w, self.whole, self.whole.depth[-1], self.depth, deep + ("" if along_rows else plus))]  # fmt: skip
        return " && ".join(t for t in found if t)

    def copy(self, operand: Operand, piece: Piece, to: str, names: tuple[str, ...]) -> None:
        """A chunk is copied without registers."""
        w = self.w
        far, deep, source = self.where(operand, piece, names)
        spot = self.spot(operand, piece, to)
        step = operand.side.row if operand.lies == "mn" else operand.side.depth[-1]
        for k in range(0, operand.each, operand.width // operand.item):
            from_ = f"{source} + {w.poly(step * k)}" if k else source
            to_ = f"{spot} + {k * operand.item}" if k else spot
            w.line(f"lf_stage{operand.width}_if({to_}, {from_}, {self.test(operand, names[0], far, deep, str(k))});")

    def cell(self, operand: Operand) -> str:
        """The C type of an element in shared memory."""
        return storage(operand.side.buffer.dtype if operand.side.value is None else TYPES[self.kind])

    def fetch(self, operand: Operand, piece: Piece, made: str, names: tuple[str, ...]) -> None:
        """A chunk into registers."""
        raw = self.raw(operand)
        self.load(operand, piece, raw, names)
        self.make(operand, piece, made, raw, names)

    def raw(self, operand: Operand) -> dict[Load, str]:
        """Names for what is loaded of a chunk at once."""
        return {x: self.w.names.fresh(f"{x.buffer}.raw") for x in self.vectors[self.operands.index(operand)]}

    def load(self, operand: Operand, piece: Piece, raw: dict[Load, str], names: tuple[str, ...]) -> None:
        """Into these, which are declared here."""
        for load, name in raw.items():
            self.declare(operand, load, name)
        self.again(operand, piece, raw, names)

    def again(self, operand: Operand, piece: Piece, raw: dict[Load, str], names: tuple[str, ...]) -> None:
        """Into these."""
        far, deep, _ = self.where(operand, piece, names)
        for load, name in raw.items():
            self.chunk(operand, load, name, names, (far, deep))

    def declare(self, operand: Operand, load: Load, name: str) -> None:
        """The variable of a chunk of a load."""
        self.w.line(f"lf_vec<{storage(self.w.place(load.buffer, False).dtype)}, {operand.each}> {name};")

    def make(self, operand: Operand, piece: Piece, made: str, raw: dict[Load, str], names: tuple[str, ...]) -> None:
        """A chunk from what was loaded, the rest element by element."""
        w, side = self.w, operand.side
        far, deep, source = self.where(operand, piece, names)
        e = w.names.fresh("e")
        test = self.test(operand, names[0], far, deep, e)
        if raw:
            w.hook = lambda x: w.fetched(f"{raw[x]}.v[{e}]", w.place(x.buffer, False)) if x in raw else None
        w.line("#pragma unroll")
        with w.block(f"for (int {e} = 0; {e} < {operand.each}; ++{e})"):
            if side.value is None:
                step = side.row if operand.lies == "mn" else side.depth[-1]
                one = e if w.poly(step) == "1" else f"(long long){e} * {w.poly(step)}"
                w.line(f"{made}.v[{e}] = {test} ? ({source})[{one}] : ({self.cell(operand)})0;")
            else:
                self.value(operand, f"{made}.v[{e}]", test, (far, deep, e), names[2:])
        w.hook = None
        w.names.free(e)

    def loads(self, operand: Operand) -> list[Load]:
        """The loads of a computed operand whose elements for a chunk lie side by side, all of them or none being there."""
        whole, value = self.whole, operand.side.value
        axis = whole.depth[-1] if operand.lies != "mn" else whole.rows if operand.left else whole.cols
        if value is None or len(axis.indices) != 1 or whole.divisor(axis.extent) % operand.each:
            return []
        ((name, low, _),) = axis.indices
        found: list[Load] = []
        for load in dict.fromkeys(e for e in subexprs(value) if isinstance(e, Load)):
            buffer, offset, stride = whole.job.buffers[load.buffer], ZERO, ONE
            for sub, extent in zip(reversed(load.subs), reversed(buffer.shape), strict=True):
                offset += (sub.poly if isinstance(sub, Affine) else Poly.of(name) * 2) * stride
                stride *= extent
            offset = whole.job.target.poly(offset)
            size = min(CHUNK, operand.each * buffer.dtype.itemsize)
            rest = offset - Poly.of(name) + low
            if any(load.modes) or offset.degree(name) != 1 or offset.coefficient(name) != ONE or size < 4:
                continue
            if whole.divisor(rest) * buffer.dtype.itemsize % size == 0:
                found.append(load)
        return found

    def chunk(self, operand: Operand, load: Load, raw: str, names: tuple[str, ...], at: tuple[str, str]) -> None:
        """The elements of a load for a chunk."""
        w = self.w
        place = w.place(load.buffer, False)
        item = place.dtype.itemsize
        with w.block(f"if ({self.test(operand, names[0], *at, '0')})"):
            start = len(w.lines)
            subs, _ = w.subscripts(load.subs, load.modes, place, load, load.buffer)
            size = min(CHUNK, operand.each * item)
            w.line(f"{raw} = lf_peek<{operand.each}, {size}>({place.pointer} + {w.flat(subs, place)});")
            self.indices(operand, f"({at[0]})", f"({at[1]})", names[2:], start)

    def tidy(self) -> None:
        """Take back what was declared and is never used."""
        lines = self.w.lines
        for name in reversed(self.loose):
            found = [at for at, line in enumerate(lines) if used(name, [line])]
            if len(found) == 1:
                del lines[found[0]]

    def named(self) -> None:
        """Names for the loop indices, before text uses them."""
        for axis in (self.whole.rows, self.whole.cols, *self.whole.depth, *self.whole.batch):
            for name in axis.names:
                self.w.names(name)

    def indices(self, operand: Operand, far: str, deep: str, outer: tuple[str, ...], start: int) -> None:
        """The loop indices that the lines from `start` on use, for an element of an operand."""
        whole = self.whole
        self.bind(whole.rows if operand.left else whole.cols, far, start)
        for axis, position in zip(whole.depth, (*outer, deep), strict=True):
            self.bind(axis, position, start)

    def fed(self) -> frozenset[str]:
        """Buffers that are read in vectors."""
        plain = {o.side.buffer.id for o in self.operands if o.width > o.item}
        return frozenset(plain | {load.buffer for loads in self.vectors for load in loads})

    def put(self, operand: Operand, piece: Piece, made: str, to: str) -> None:
        """A chunk from registers to its place."""
        self.w.line(f"lf_leave<16>(({self.cell(operand)}*)({self.spot(operand, piece, to)}), {made});")

    def value(self, operand: Operand, to: str, test: str, at: tuple[str, str, str], outer: tuple[str, ...]) -> None:
        """An element of a computed operand, rounded to the type of the products."""
        w = self.w
        far, deep, e = at
        assert operand.side.value is not None
        w.line(f"{to} = 0;")
        with w.block(f"if ({test})"):
            start = len(w.lines)
            text = w.kept(w.expr(operand.side.value), Place("", (), TYPES[self.kind]))
            w.line(f"{to} = {text};")
            place = (f"({far} + {e})", f"({deep})") if operand.lies == "mn" else (f"({far})", f"({deep} + {e})")
            self.indices(operand, *place, outer, start)
