"""What becomes of the results of a tile of warp products: elements, arrays that come and go by way of shared memory, folds
that ride along.

Results of 16 bits leave in rows of 16-byte chunks: every thread puts its pairs into the shared memory that the operands
have left, in the order of `chunk ^ row % 8`, and the block writes whole rows. Arrays of 16 bits that an element reads at
its own place come the same way, before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from loopfuse.emit.matrix.chunks import inside
from loopfuse.emit.matrix.epilogue import Block, Epilogue
from loopfuse.emit.matrix.finish import Parts
from loopfuse.emit.matrix.leaves import Flat, Leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.matrix.warp_forms import CHUNK, Form
from loopfuse.emit.rows_vectors import used
from loopfuse.emit.writer import HALVES, Writer, state_type
from loopfuse.ir import Acc, Load, Store


class Results:
    """Statements of a block for the results of its tile."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: int) -> None:
        self.whole, self.leaves, self.form, self.ring = whole, leaves, form, ring
        self.w: Writer = whole.job.writer()
        self.epilogue = Epilogue(self.w, leaves, {"rows": form.rows, "cols": form.columns})
        self.staged: list[tuple[Store, Flat]] = []
        self.coming: list[tuple[Load, Flat]] = []
        self.parts: Parts | None = None
        # names of the kernel, set as it is written
        self.row = self.col = self.warp = self.lane = self.warp_row = self.warp_col = ""
        self.points: list[str] = []
        self.acc: dict[str, str] = {}
        self.riding: dict[str, str] = {}

    @property
    def slot(self) -> int:
        """Bytes of a tile of 16-bit results."""
        return self.form.rows * self.form.columns * 2

    def choose(self) -> None:
        """Which outputs and loads go by way of shared memory."""
        written = Counter(s.buffer for s in self.leaves.stores)
        for store in self.leaves.stores:
            flat = self._flat(store, written[store.buffer] == 1)
            if flat is not None and (len(self.staged) + 1) * self.slot <= self.ring:
                self.staged.append((store, flat))
        for load in self.leaves.loads():
            flat = self._flat(load, True)
            if flat is not None and (len(self.coming) + 1) * self.slot <= self.ring:
                self.coming.append((load, flat))

    def _flat(self, access: Load | Store, once: bool) -> Flat | None:
        flat = self.leaves.flat(access)
        if flat is None or not once or self.whole.job.buffers[access.buffer].dtype not in HALVES:
            return None
        return flat if flat.tiled(self.whole, 2) and self.whole.divisor(self.whole.cols.extent) % 8 == 0 else None

    def fold_parts(self) -> None:
        """How many parts a fold over rows or columns has: one of each warp."""
        form, whole = self.form, self.whole
        if whole.ride is None:
            return
        folded, tile, warps = (whole.cols, form.columns, form.across) if whole.ride.along == "cols" else \
            (whole.rows, form.rows, form.down)  # fmt: skip
        self.parts = Parts(whole, (folded.extent + (tile - 1)) // tile * warps)

    # -- tiles on their way -------------------------------------------------------------------------------------------

    def _chunks(self, place: str, flat: Flat, pointer: str, move: Callable[[str, str, str], str]) -> None:
        """Every chunk of a tile, row by row over the threads: `move` says how, of its place in shared memory, its address
        and the condition that it is one of the result."""
        w, form, whole = self.w, self.form, self.whole
        across = form.columns * 2 // CHUNK
        q, row, chunk = (w.names.fresh(x) for x in ("q", "row", "chunk"))
        w.line("#pragma unroll 4")
        with w.block(f"for (int {q} = threadIdx.x; {q} < {form.rows * across}; {q} += {form.threads})"):
            w.line(f"const int {row} = {q} / {across}, {chunk} = {q} % {across};")
            spot = f"{place} + {row} * {form.columns * 2} + (({chunk} ^ {row} % 8) << 4)"
            tests = [inside(w, whole, whole.rows, form.rows, f"{self.row} + {row}"),
                     inside(w, whole, whole.cols, form.columns, f"{self.col} + {chunk} * 8")]  # fmt: skip
            terms = [f"(long long)({self.row} + {row}) * {w.poly(flat.row)}", f"{self.col} + {chunk} * 8"]
            terms += [f"(long long){p} * {w.poly(s)}" for p, s in zip(self.points, flat.batch, strict=True)]
            start = w.poly(flat.start)
            terms += [] if start == "0" else [start]
            w.line(move(spot, f"{pointer} + ({' + '.join(terms)})", " && ".join(t for t in tests if t)))
        for name in (q, row, chunk):
            w.names.free(name)

    def come(self, base: str) -> None:
        """Arrays that elements read, into the shared memory that the operands have left."""
        for k, (load, flat) in enumerate(self.coming):
            pointer = self.w.place(load.buffer, False).pointer
            self._chunks(f"{base} + {k * self.slot}", flat, pointer,
                         lambda to, at, test: f"lf_stage16_if({to}, {at}, {test or 'true'});")  # fmt: skip
        self.w.line("lf_stage_end();")

    def go(self, base: str) -> None:
        """Results from shared memory to memory."""
        self.w.line("lf_sync();")
        for k, (store, flat) in enumerate(self.staged):
            pointer = self.w.place(store.buffer, True).pointer
            self._chunks(f"{base} + {k * self.slot}", flat, pointer, lambda to, at, test:
                         f"{f'if ({test}) ' if test else ''}lf_leave<16>({at}, *(lf_vec<unsigned short, 8>*)({to}));")  # fmt: skip

    def pair(self, base: str, k: int, row: str) -> str:
        """Where a thread's pair of columns `{j}` and row `{h}` is in the k-th tile."""
        wide = self.form.columns * 2
        return (f"*(unsigned int*)({base} + {k * self.slot} + ({row} + {{h}} * 8) * {wide} + "
                f"((({self.warp_col} / 8 + {{j}}) ^ {self.lane} / 4) << 4) + {self.lane} % 4 * 4)")  # fmt: skip

    # -- results ------------------------------------------------------------------------------------------------------

    def results_out(self, base: str) -> None:
        """The results of a tile, by 16 rows of a warp."""
        w, form, whole, epilogue = self.w, self.form, self.whole, self.epilogue
        w.line("lf_stage_wait<0>();")
        w.line("lf_sync();")
        if self.coming:
            self.come(base)
            w.line("lf_stage_wait<0>();")
            w.line("lf_sync();")
        ride = whole.ride
        if ride is not None and ride.along == "rows":
            self.start(form.wide // 4, "2 * {j} + {e} % 2")
        m, row, col = w.names.fresh("m"), w.names.fresh("row"), w.names.fresh("col")
        epilogue.sums = {u.acc.id: f"{self.acc[u.acc.id]}[{m}][{{j}}][{{e}}]" for u in whole.units}
        w.line("#pragma unroll")
        with w.block(f"for (int {m} = 0; {m} < {form.high // 16}; ++{m})"):
            w.line(f"[[maybe_unused]] const int {row} = {self.warp_row} + {m} * 16 + {self.lane} / 4;")
            at, depth = len(w.lines), w.depth
            epilogue.tiles = {load: self.pair(base, k, row) for k, (load, _) in enumerate(self.coming)}
            epilogue.packed = {store.buffer: self.pair(base, k, row) for k, (store, _) in enumerate(self.staged)}
            if ride is not None and ride.along == "cols":
                self.start(2, "{e} / 2")
            epilogue.block(Block(row, col, form.wide))
            if ride is not None and ride.along == "cols":
                self._rows(row)
            if used(col, w.lines[at:]):
                w.lines.insert(at, "  " * depth + f"const int {col} = {self.warp_col} + {self.lane} % 4 * 2;")
        if ride is not None and ride.along == "rows":
            self._columns()
        if self.staged:
            self.go(base)
        for name in (m, row, col):
            w.names.free(name)

    # -- folds that ride along ----------------------------------------------------------------------------------------

    def start(self, count: int, at: str) -> None:
        """States at the first of what they fold."""
        ride, w = self.whole.ride, self.w
        assert ride is not None
        for acc in ride.loop.accs:
            name = self.riding[acc.id] = w.names.fresh(acc.id)
            q = w.names.fresh("q")
            w.line(f"{state_type(acc.monoid, acc.dtype)} {name}[{count}];")
            w.line("#pragma unroll")
            w.line(f"for (int {q} = 0; {q} < {count}; ++{q}) {name}[{q}] = {w.identity(acc.monoid, acc.dtype)};")
            w.names.free(q)
            self.epilogue.states[acc.id] = f"{name}[{at}]"

    def _place(self, part: str, at: str) -> str:
        """Where the state of a remaining index is in memory."""
        assert self.parts is not None
        w = self.w
        count, parts = w.poly(self.parts.axis.extent), w.poly(self.parts.parts)
        batch = ""
        for axis, point in zip(self.whole.batch, self.points, strict=True):
            batch = f"({batch} * {w.poly(axis.extent)} + {point})" if batch else point
        whole = f"({batch} * {parts} + {part})" if batch else part
        return f"({w.index})({whole}) * {count} + {at}"

    def _join(self, acc: Acc, name: str, count: int, lanes: tuple[int, ...]) -> None:
        w = self.w
        q = w.names.fresh("q")
        w.line("#pragma unroll")
        with w.block(f"for (int {q} = 0; {q} < {count}; ++{q})"):
            for lane in lanes:
                other = f"lf_shfl_xor({name}[{q}], {lane})"
                w.line(f"{name}[{q}] = {w.combine(acc.monoid, acc.dtype, f'{name}[{q}]', other)};")
        w.names.free(q)

    def _columns(self) -> None:
        """Columns of a warp's part of the rows."""
        ride, w, form = self.whole.ride, self.w, self.form
        assert ride is not None and self.parts is not None
        part = f"{self.row} / {form.rows} * {form.down} + {self.warp} / {form.across}"
        for acc in ride.loop.accs:
            name = self.riding[acc.id]
            self._join(acc, name, form.wide // 4, (4, 8, 16))
            memory = w.pointer(self.parts.memory(acc).id, state_type(acc.monoid, acc.dtype), write=True)
            q, col = w.names.fresh("q"), w.names.fresh("col")
            w.line("#pragma unroll")
            with w.block(f"for (int {q} = 0; {q} < {form.wide // 4}; ++{q})"):
                w.line(f"const int {col} = {self.col} + {self.warp_col} + {q} / 2 * 8 + {self.lane} % 4 * 2 + {q} % 2;")
                test = f"{self.lane} < 4 && {col} < {w.poly(self.whole.cols.extent)}"
                w.line(f"if ({test}) {memory}[{self._place(part, col)}] = {name}[{q}];")
            for text in (q, col, name):
                w.names.free(text)

    def _rows(self, row: str) -> None:
        """Rows of a warp's part of the columns."""
        ride, w, form = self.whole.ride, self.w, self.form
        assert ride is not None and self.parts is not None
        part = f"{self.col} / {form.columns} * {form.across} + {self.warp} % {form.across}"
        for acc in ride.loop.accs:
            name = self.riding[acc.id]
            self._join(acc, name, 2, (1, 2))
            memory = w.pointer(self.parts.memory(acc).id, state_type(acc.monoid, acc.dtype), write=True)
            for h in range(2):
                at = f"{self.row} + {row}{' + 8' if h else ''}"
                test = f"{self.lane} % 4 == 0 && {at} < {w.poly(self.whole.rows.extent)}"
                w.line(f"if ({test}) {memory}[{self._place(part, f'({at})')}] = {name}[{h}];")
            w.names.free(name)

    def aligned(self) -> frozenset[str]:
        """Buffers that are read or written in vectors here."""
        return frozenset([*(s.buffer for s, _ in self.staged), *(x.buffer for x, _ in self.coming)])
