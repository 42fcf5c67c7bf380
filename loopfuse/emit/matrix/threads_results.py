"""What becomes of the results of a tile on the ordinary units: elements, and folds over rows or columns that ride along."""

from __future__ import annotations

from loopfuse.emit.code import ceil_div
from loopfuse.emit.matrix.epilogue import Block, Epilogue
from loopfuse.emit.matrix.finish import Parts
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.shape import Contraction
from loopfuse.emit.matrix.threads_form import THREADS, Form, summed
from loopfuse.emit.writer import Writer, c_type, state_bytes, state_type
from loopfuse.ir import Acc


class Results:
    """Statements of the threads of a block for the results of their tile."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form) -> None:
        self.whole, self.leaves, self.form = whole, leaves, form
        self.w: Writer = whole.job.writer()
        self.parts: Parts | None = None
        if whole.ride is not None:
            folded, tile = (whole.rows, form.rows) if whole.ride.along == "rows" else (whole.cols, form.columns)
            self.parts = Parts(whole, ceil_div(folded.extent, tile))
        # names of the kernel, set as it is written
        self.row = self.col = self.warp_down = self.warp_across = self.lane_row = self.lane_pair = ""
        self.points: list[str] = []
        self.acc: dict[str, str] = {}
        self.epilogue: Epilogue

    def joining_bytes(self) -> int:
        """Shared memory in which warps join the states of a fold."""
        ride, form = self.whole.ride, self.form
        if ride is None:
            return 0
        places = form.down * form.columns if ride.along == "rows" else form.across * form.rows
        return places * max(state_bytes(a.monoid, a.dtype) for a in ride.loop.accs)

    def results_out(self) -> None:
        """The results of the tile, two groups of rows after two."""
        w, form, whole = self.w, self.form, self.whole
        h = w.names.fresh("h")
        for unit in whole.units:
            text = f"{self.acc[unit.acc.id]}[2 * {h} + {{e}} / 2][2 * {{j}} + {{e}} % 2]"
            kind = c_type(unit.acc.dtype)
            self.epilogue.sums[unit.acc.id] = text if summed(unit.acc.dtype)[0] == kind else f"({kind}){text}"
        riding = self._start(h)
        row, col = self.warp_down, self.warp_across
        first = (
            f"{row} * {8 * form.groups} + {self.lane_row} + {h} * 16"
            if form.down > 1
            else f"{self.lane_row} + {h} * 16"
        )
        across = f"{col} * {8 * form.pairs} + {self.lane_pair}" if form.across > 1 else self.lane_pair
        w.line("#pragma unroll")
        with w.block(f"for (int {h} = 0; {h} < {form.groups // 2}; ++{h})"):
            self.epilogue.block(Block(first, across, 8 * form.pairs))
        w.names.free(h)
        if whole.ride is not None:
            for acc in whole.ride.loop.accs:
                self._end(acc, riding[acc.id])

    # -- folds that ride along ----------------------------------------------------------------------------------------

    def _start(self, h: str) -> dict[str, str]:
        """States of a thread: of its columns, or of its rows."""
        ride, w, form = self.whole.ride, self.w, self.form
        names: dict[str, str] = {}
        for acc in ride.loop.accs if ride is not None else ():
            assert ride is not None
            name = names[acc.id] = w.names.fresh(acc.id)
            count = 2 * form.pairs if ride.along == "rows" else form.groups
            w.line(f"{state_type(acc.monoid, acc.dtype)} {name}[{count}];")
            w.line("#pragma unroll")
            w.line(f"for (int q = 0; q < {count}; ++q) {name}[q] = {w.identity(acc.monoid, acc.dtype)};")
            at = "2 * {j} + {e} % 2" if ride.along == "rows" else f"2 * {h} + {{e}} / 2"
            self.epilogue.states[acc.id] = f"{name}[{at}]"
        return names

    def _end(self, acc: Acc, name: str) -> None:
        """The states joined over the lanes and the warps that share them, to memory."""
        ride, w, form = self.whole.ride, self.w, self.form
        assert ride is not None and self.parts is not None
        kind = state_type(acc.monoid, acc.dtype)
        rows = ride.along == "rows"
        count, extent = (2 * form.pairs, form.columns) if rows else (form.groups, form.rows)
        warps, mine, other = (form.down, self.warp_down, self.warp_across) if rows else \
            (form.across, self.warp_across, self.warp_down)  # fmt: skip
        q, places, state = w.names.fresh("q"), w.names.fresh("places"), w.names.fresh("state")
        w.line("#pragma unroll")
        with w.block(f"for (int {q} = 0; {q} < {count}; ++{q})"):
            for lane in (2, 4, 8) if rows else (1, 16):
                joined = w.combine(acc.monoid, acc.dtype, f"{name}[{q}]", f"lf_shfl_xor({name}[{q}], {lane})")
                w.line(f"{name}[{q}] = {joined};")
        with w.block(""):
            w.line(f"{kind}* const {places} = ({kind}*)lf_shared;")
            w.line("lf_sync();")
            with w.block(f"if ((threadIdx.x & {14 if rows else 17}) == 0)"):
                w.line("#pragma unroll")
                at = f"{8 * form.pairs} + {self.lane_pair} + {q} / 2 * 8 + {q} % 2" if rows else \
                    f"{8 * form.groups} + {self.lane_row} + {q} * 8"  # fmt: skip
                w.line(f"for (int {q} = 0; {q} < {count}; ++{q}) "
                       f"{places}[{mine} * {extent} + {other} * {at}] = {name}[{q}];")  # fmt: skip
            w.line("lf_sync();")
            origin, axis = (self.col, self.whole.cols) if rows else (self.row, self.whole.rows)
            with w.block(f"if (threadIdx.x < {extent} && {origin} + (int)threadIdx.x < {w.poly(axis.extent)})"):
                w.line(f"{kind} {state} = {places}[threadIdx.x];")
                for warp in range(1, warps):
                    more = w.combine(acc.monoid, acc.dtype, state, f"{places}[{warp * extent} + threadIdx.x]")
                    w.line(f"{state} = {more};")
                memory = w.pointer(self.parts.memory(acc).id, kind, write=True)
                part = f"{self.row} / {form.rows}" if rows else f"{self.col} / {form.columns}"
                w.line(f"{memory}[{self._place(part, f'{origin} + (int)threadIdx.x')}] = {state};")
        for text in (q, places, state):
            w.names.free(text)

    def _place(self, part: str, at: str) -> str:
        """Where the state of a remaining index is in memory."""
        assert self.parts is not None and self.form.rows <= THREADS >= self.form.columns
        w = self.w
        batch = ""
        for axis, point in zip(self.whole.batch, self.points, strict=True):
            batch = f"({batch} * {w.poly(axis.extent)} + {point})" if batch else point
        whole = f"({batch} * {w.poly(self.parts.parts)} + {part})" if batch else part
        return f"({w.index})({whole}) * {w.poly(self.parts.axis.extent)} + {at}"
