"""The main loop of a warpgroup kernel: the products of a tile, stage by stage (PTX ISA, wgmma).

Products of a tile that share their rows, by right operands whose tiles follow each other in a stage, are one instruction as
wide as all of them: the rows are read once.
"""

from __future__ import annotations

from contextlib import ExitStack

from loopfuse.emit.matrix.forms import ROW, Form, Operand, steps
from loopfuse.emit.matrix.leaves import Leaves
from loopfuse.emit.matrix.places import Places
from loopfuse.emit.matrix.results import FIRST_GROUP
from loopfuse.emit.matrix.shape import Contraction

LAG = 2  # stages by which the second of two consumers of a tile starts later, so that one multiplies while one writes
WIDEST = 256  # columns of a product of a warpgroup
MANY = 512  # threads of a launch, which has too few registers for more than `HALVED` columns at once
HALVED = 128


class Products(Places):
    """Statements of a consumer for the products of its tile."""

    def __init__(self, whole: Contraction, leaves: Leaves, form: Form, ring: list[Operand],
                 pairs: list[tuple[int, int]]) -> None:  # fmt: skip
        super().__init__(whole, leaves, form)
        self.ring, self.pairs = ring, pairs
        self.stage = sum(o.bytes for o in ring)
        self.runs = self.side_by_side()
        # names of the kernel, set as it is written
        self.base = self.full = self.empty = self.slot = self.phase = self.turn = ""

    def release(self, slot: str, when: str = "") -> None:
        """Tell the producer that a place of the ring has been read, where there is one (`when`)."""
        self.w.line(f"if ({when}{self.thread} == 0) lf_bar_arrive({self.empty} + {slot});")

    def one_sided(self) -> None:
        """Values of one side, once nobody reads those of the tile before."""
        if self.sides():
            self.w.line(self.sync())
            self.epilogue.one_sided(self.thread, 128, self.sides())

    def late(self) -> bool:
        """Whether values of one side are fetched while the first products run: nothing else would hide that where
        consumers share a tile."""
        return not self.form.pingpong and self.form.split == 1 and bool(self.known_trips())

    def known_trips(self) -> int:
        """How many stages a tile takes, where that is known; else 0."""
        return self.whole.job.target.number(steps(self.whole, self.form)) or 0

    def products(self) -> None:
        """The main loop: the products of a stage, those of the stage before being waited for meanwhile."""
        w, form, whole = self.w, self.form, self.whole
        n = w.names.fresh
        kind = "int" if form.kind == "i8" else "float"
        self.acc: dict[str, str] = {}
        self.declared = []
        for run in self.runs:
            ids = [whole.units[k].acc.id for k in run]
            name = n(f"{ids[0]}.sums")
            self.declared.append(name)
            if len(ids) == 1:
                w.line(f"{kind} {name}[{form.blocks}][{form.columns // 2}];")
                self.acc[ids[0]] = name
                continue
            w.line(f"{kind} {name}[{len(ids)}][{form.blocks}][{form.columns // 2}];")
            self.acc |= {acc: f"{name}[{k}]" for k, acc in enumerate(ids)}
        if form.pingpong:
            w.line(f"lf_group_sync({FIRST_GROUP + 2} + {self.mine}, 256);")
        none = self.whole.job.target.number(steps(whole, form)) if form.split == 1 else None
        # with fewer stages the first could come to the barrier twice before the second
        lag = LAG if not form.pingpong and form.consumers == 2 and (none or 0) >= form.stages else 0
        if lag:
            w.line(f"if ({self.mine} == 1) lf_group_sync({FIRST_GROUP + 2}, 256);")
        if none is None or none == 0:
            with ExitStack() as stack:
                if none is None:
                    stack.enter_context(w.block(f"if ({self.trips} == 0)"))
                for name in self.acc.values():
                    w.line(f"for (int q = 0; q < {form.blocks * form.columns // 2}; ++q) (&{name}[0][0])[q] = 0;")
        self.loop(lag)

    def side_by_side(self) -> list[list[int]]:
        """The products of a tile by number, in runs that one instruction makes: of the same rows, by operands whose tiles
        follow each other, so that the rows are read once. Their results follow each other too."""
        form, ring = self.form, self.ring
        runs: list[list[int]] = []
        for number, (a, b) in enumerate(self.pairs):
            if runs:
                left, last = self.pairs[runs[-1][-1]]
                total = form.columns * (len(runs[-1]) + 1)
                same = left == a and ring[last].major == ring[b].major and ring[last].rows == form.columns
                if (same and ring[b].offset == ring[last].offset + ring[last].bytes and form.blocks == 1
                        and total <= self.widest and not (form.kind == "i8" and total % 16)):  # fmt: skip
                    runs[-1].append(number)
                    continue
            runs.append([number])
        return runs

    def named(self) -> list[int]:
        """The operands by which a run is told: the left one and the first of the right ones."""
        return sorted({number for run in self.runs for number in self.pairs[run[0]]})

    @property
    def widest(self) -> int:
        """Columns that one instruction may make."""
        return HALVED if self.form.threads >= MANY else WIDEST

    def lead(self, lag: int, step: str) -> None:
        """Let the second consumer begin, once the first is `lag` stages ahead."""
        if lag:
            self.w.line(f"if ({self.mine} == 0 && {step} == {lag - 1}) lf_group_arrive({FIRST_GROUP + 2}, 256);")

    def loop(self, lag: int) -> None:
        """The loop over the stages of a tile. `lag`: stages by which the second consumer starts later."""
        w, form = self.w, self.form
        n = w.names.fresh
        step, before = n("step"), n("before")
        w.line(f"int {before} = 0;")
        w.line("#pragma unroll 1")
        with w.block(f"for (int {step} = 0; {step} < {self.trips}; ++{step})"):
            w.line(f"lf_bar_wait({self.full} + {self.slot}, {self.phase});")
            self.descs = {number: n("at") for number in self.first}
            for number, name in self.descs.items():
                w.line(f"const unsigned long long {name} = {self.first[number]} + {self.slot} * {self.stage >> 4};")
            w.line("lf_mma_fence();")
            for kk in range(4):
                for run in self.runs:
                    for m in range(form.blocks):
                        self.product(run, m, kk, step)
            w.line("lf_mma_end();")
            if self.late() and self.sides():
                with w.block(f"if ({step} == 0)"):
                    self.one_sided()
            self.lead(lag, step)
            w.line("lf_mma_wait<1>();")
            self.release(before, f"{step} > 0 && ")
            w.line(f"{before} = {self.slot};")
            w.line(f"if (++{self.slot} == {form.stages}) {{ {self.slot} = 0; {self.phase} ^= 1; }}")
            for name in self.descs.values():
                w.names.free(name)
        if form.pingpong:
            w.line(f"lf_group_arrive({FIRST_GROUP + 3} - {self.mine}, 256);")
        w.line("lf_mma_wait<0>();")
        self.release(before, f"{self.trips} > 0 && ")
        for name in (step, before):
            w.names.free(name)

    def results_of(self, run: list[int], m: int, first: int = 0, columns: int = 0) -> tuple[str, int]:
        """The results of `columns` columns of a run, all of them where 0, from the first one on; how many there are."""
        form = self.form
        acc, count = f"{self.acc[self.whole.units[run[0]].acc.id]}[{m}]", columns or len(run) * form.columns
        if count == form.columns:
            return acc, count
        kind = "int" if form.kind == "i8" else "float"
        return f"*({kind}(*)[{count // 2}])&{acc}[{first // 2}]", count

    def product(self, run: list[int], m: int, kk: int, step: str) -> None:
        """A product of 64 rows, the columns of a run and 32 bytes of the sum."""
        form, pair = self.form, self.pairs[run[0]]
        texts: list[str] = []
        for number in pair:
            operand = self.ring[number]
            offset = kk * (32 if operand.major == "k" else 16 * ROW)
            if number == pair[0]:
                offset += m * (64 * ROW if operand.major == "k" else form.depth * ROW)
            texts.append(f"{self.descs[number]} + {offset >> 4}" if offset else self.descs[number])
        turn = "".join(str(int(self.ring[number].major == "mn")) for number in pair)
        keep = "true" if kk else f"{step} > 0"
        columns = len(run) * form.columns
        for first in range(0, columns, self.widest):
            results, width = self.results_of(run, m, first, min(self.widest, columns - first))
            right = texts[1] + (f" + {first * ROW >> 4}" if first else "")
            self.w.line(f"lf_mma_64x{width}_{form.kind}_{turn}({results}, {texts[0]}, {right}, {keep});")

    def descriptors(self) -> None:
        """Of each operand that an instruction names the descriptor of what a consumer takes of it in the first stage."""
        w, form = self.w, self.form
        self.first: dict[int, str] = {}
        lefts = {a for a, _ in self.pairs}
        for number in self.named():
            operand = self.ring[number]
            panel = form.depth * ROW
            lead = 16 if operand.major == "k" else panel
            name = w.names.fresh("desc")
            at = f"{self.base} + {operand.offset}" if operand.offset else self.base
            rows = self.inside_row(0)
            if number in lefts and rows:
                at += f" + ({rows}) * {ROW}" if operand.major == "k" else f" + ({rows}) / 64 * {panel}"
            w.line(f"const unsigned long long {name} = lf_mma_desc({at}, {lead}, 1024);")
            self.first[number] = name
