"""The text of a row kernel: each thread takes vectors of its row, keeps them in registers, and goes through the loops over
the row one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from loopfuse.dtypes import F32
from loopfuse.emit.approx import Approximations
from loopfuse.emit.rows_fit import WARP
from loopfuse.emit.rows_packed import packed
from loopfuse.emit.rows_shape import Line
from loopfuse.emit.rows_vectors import At, Vectors, digits, used
from loopfuse.emit.slices import levels, prune
from loopfuse.emit.writer import c_type, storage
from loopfuse.ir import Acc, Const, Expr, Let, Loop, Op, Ref, Stmt, Store
from loopfuse.walking import own, walk

MANY = 32  # elements of an operand that a thread holds, from which on values made from them are made again
MOST_UNROLLED = 16  # iterations of a nested loop that are written out by the compiler


class Rows(Vectors):
    """Statements of a thread that shares a row with others, the row in registers."""

    def spelled(self, approximate: Approximations, kept: Collection[str] = ()) -> None:
        """Approximations to use, and lets whose values stay."""
        self.kept = dict.fromkeys(kept, "")

        def near(op: Op) -> tuple[str, tuple[Expr, ...]] | None:
            found = approximate(op)
            if found is not None and op.op == "div" and isinstance(op.args[1], Ref) and self.at is not None:
                inverse = self.inverse(op.args[1])
                return (f"({{0}} * {inverse[0]} * {inverse[1]})", op.args[:1]) if inverse else found
            return found

        self.w.near = near

    def inverse(self, divisor: Ref) -> tuple[str, str] | None:
        """Factors that together divide by a value of the row; the second one is for divisors near the ends of the range."""
        at = self.at
        assert at is not None
        inner = {s.id for s in walk(at.line.loop.body) if isinstance(s, Let)}
        inner |= {a.id for s in walk(at.line.loop.body) if isinstance(s, Loop) for a in s.accs}
        if divisor.dtype != F32 or divisor.id in inner or divisor.id in {a.id for a in at.line.loop.accs}:
            return None
        if divisor.id not in self.inverses:
            w, name = self.w, self.w.expr(divisor)
            scale, inverse = w.names.fresh(f"{divisor.id}.scale"), w.names.fresh(f"{divisor.id}.inverse")
            self.inverses[divisor.id] = inverse, scale
            self.before += [
                f"const float {scale} = fabsf({name}) > 0x1p126f ? 0x1p-64f : "
                f"{name} != 0.0f && fabsf({name}) < 0x1p-126f ? 0x1p64f : 1.0f;",
                f"const float {inverse} = 1.0f / ({name} * {scale});",
            ]
        return self.inverses[divisor.id]

    def write(self) -> None:
        """The whole body of the function."""
        for let in self.shape.tops:
            self.let(let)
        self.place_in_grid()
        for band in self.shape.bands[:-1]:
            self.serial([s for s in band.body if isinstance(s, Let)])
        self.ahead()
        self.begin()
        self.row(self.shape.body)

    def ahead(self) -> None:
        """The whole row into registers, what is needed first at first."""
        early = [s for s in self.shape.streams.values() if s.row and s.stored < 0]
        for stream in sorted(early, key=lambda s: s.first):
            self.fetch(stream)

    def place_in_grid(self) -> None:
        """Which row this thread works on, and at which place of it."""
        w, fit = self.w, self.fit
        self.lane = w.names.fresh("lane")
        wide = "(long long)" if w.wide else ""
        if fit.blocks > 1:
            self.rank = w.names.fresh("rank")
            w.line(f"const unsigned int {self.rank} = lf_cluster_rank();")
            w.line(f"const int {self.lane} = {self.rank} * {fit.threads} + threadIdx.x;")
            row = f"{wide}blockIdx.x / {fit.blocks}"
        elif fit.size == fit.threads:
            w.line(f"const int {self.lane} = threadIdx.x;")
            row = f"{wide}blockIdx.x"
        else:
            w.line(f"const int {self.lane} = threadIdx.x % {fit.threads};")
            row = f"{wide}blockIdx.x * {fit.together} + threadIdx.x / {fit.threads}"
        dims = self.shape.dims
        plain = len(dims) == 1 and w.target.poly(dims[0].lo[0]).terms == ()
        name = w.names(dims[0].id) if plain else w.names.fresh("row")
        rows, count = w.target.number(self.shape.rows), w.poly(self.shape.rows)
        tail = fit.together > 1 and (rows is None or rows % fit.together != 0)
        w.line(f"{'' if tail and fit.threads < WARP else 'const '}{w.index} {name} = {row};")
        if tail and fit.threads >= WARP:
            w.line(f"if ({name} >= {count}) return;")
        elif tail:
            self.live = w.names.fresh("live")
            w.comment("threads past the last row work on it too, and store nothing")
            w.line(f"const bool {self.live} = {name} < {count};")
            w.line(f"if (!{self.live}) {name} = {count} - 1;")
        if not plain:
            counts = [w.poly(d.hi[0] - d.lo[0]) for d in dims]
            for dim, text in zip(dims, digits(name, counts), strict=True):
                low = w.poly(dim.lo[0])
                w.line(f"const {w.index} {w.names(dim.id)} = {text if low == '0' else f'{low} + {text}'};")

    def row(self, body: Sequence[Stmt]) -> None:
        """The statements of a row."""
        for stmt in body:
            top = len(self.w.lines)
            if isinstance(stmt, Let):
                self.let(stmt)
            elif isinstance(stmt, Store):
                with self.w.block(f"if ({self.leader})"):
                    super().store(stmt)
            elif id(stmt) in self.shape.uniform:
                self.serial([stmt])
            elif stmt.accs:
                self.row_fold(stmt)
            else:
                self.loop_over(stmt)
            self.w.lines[top:top] = ["  " * self.w.depth + text for text in self.before]
            self.before.clear()

    def loop_over(self, loop: Loop) -> None:
        """A loop over the row without accumulators."""
        self.sweep(self.shape.lines[id(loop)], loop.body)

    def row_fold(self, loop: Loop) -> None:
        """A fold over the row, exactly: an accumulator that waits for another takes a pass of its own."""
        line = self.shape.lines[id(loop)]
        self.declare(loop.accs)
        counts = counted(line)
        self.totals(line, counts)
        level = levels(loop)
        for number in range(1 + max(level.values())):
            mine = [a for a in loop.accs if level[a.id] == number and a.id not in counts]
            body = prune(loop.body, {a.id for a in mine}, stores=number == 0)
            if body:
                moving = self.hoist(line, body)
                if not self.packed(line, mine, moving):
                    self.sweep(line, moving)
                self.join_exact(mine)

    def packed(self, line: Line, accs: Sequence[Acc], body: Sequence[Stmt]) -> bool:
        """A pass by pairs of elements, where it is one that can be."""
        return packed(self, line, accs, body)

    def join_exact(self, accs: Sequence[Acc]) -> None:
        """States that are of whole passes, so that no repair is needed."""
        self.join([replace(a, repair=None) for a in accs])

    def totals(self, line: Line, counts: Mapping[str, int]) -> None:
        """What accumulators come to that absorb a constant at every position."""
        for acc in line.loop.accs:
            if acc.id in counts:
                text = f"({c_type(acc.dtype)}){self.w.poly(line.run.length)}"
                text = text if counts[acc.id] == 1 else f"({c_type(acc.dtype)})({text} * {counts[acc.id]})"
                self.w.line(f"{self.w.names(acc.id)} = {text};")

    def hoist(self, line: Line, body: Sequence[Stmt]) -> list[Stmt]:
        """The body without the lets that are the same for the whole row, which are written here."""
        moving = {d.id for d in line.loop.dims}
        kept: list[Stmt] = []
        for stmt in body:
            names = own(stmt).names
            if isinstance(stmt, Let) and not names.loads and not names.values & moving:
                if stmt.id not in self.hoisted:
                    self.let(stmt)
                    self.hoisted.add(stmt.id)
                continue
            kept.append(stmt)
            moving |= {s.id for s in walk((stmt,)) if isinstance(s, Let)}
            moving |= {n for s in walk((stmt,)) if isinstance(s, Loop) for n in _binds(s)}
        return kept

    def sweep(self, line: Line, body: Sequence[Stmt]) -> None:
        """A loop's body at each of the thread's positions."""
        w, run = self.w, line.run
        if not self.part and self.fit.vectors[run] == 0:
            return
        for dim in line.loop.dims:
            w.names(dim.id)
        self.renew(line)
        stored = {self.shape.find(s, line) for s in body if isinstance(s, Store) and not s.absorb}
        for stream in self.shape.of(run):
            if stream in stored and self.keeps(stream):
                stream.name = w.names.fresh(f"{stream.buffer.id}.row")
                self.fetched.add(stream)
                kind, width = storage(stream.buffer.dtype), self.fit.width[run]
                count = self.part.count if self.part else self.fit.vectors[run]
                w.line(f"lf_vec<{kind}, {width}> {stream.name}[{count}];")
        for let in body:
            if isinstance(let, Let) and self.kept.get(let.id) == "":
                name = self.kept[let.id] = w.names.fresh(f"{let.id}.kept")
                w.line(f"lf_vec<{c_type(let.value.dtype)}, {self.fit.width[run]}> {name}[{self.fit.vectors[run]}];")
        stem = f"{line.loop.dims[-1].id}.at" if len(line.loop.dims) == 1 else "at"
        with self.vectors(run, stem) as (v, p):
            start, depth = len(w.lines), w.depth
            self.at = at = At(line, v, "0", p, {}, {})
            self.elements(line, body)
            ahead = [self.peek(s, name, p) for s, name in at.peeked.items()]
            ahead += [f"lf_vec<{self.held(s)}, {self.fit.width[run]}> {name};" for s, name in at.put.items()]
            w.lines[start:start] = ["  " * depth + text for text in ahead]
            for stream, name in at.put.items():
                self.put(stream, name)
            self.at = None

    def renew(self, line: Line) -> None:
        """Make the compiler forget what it computed from long operands in earlier loops: it would hold on to all of it.
        Rows that are read from memory are not held."""
        for stream in self.shape.of(line.run):
            many = self.fit.vectors.get(line.run, 0) * self.fit.width[line.run] >= MANY
            if many and stream in self.fetched and stream.row and stream.stored < 0 and len(stream.readers) > 1:
                if stream in self.used:
                    self.w.line(f"lf_again({stream.name});")
                self.used.add(stream)

    def elements(self, line: Line, body: Sequence[Stmt]) -> None:
        """A loop's body at each element of a vector."""
        w, at = self.w, self.at
        assert at is not None
        width = self.fit.width[line.run]
        with ExitStack() as stack:
            if width > 1:
                at.k = w.names.fresh("k")
                w.line("#pragma unroll")
                stack.enter_context(w.block(f"for (int {at.k} = 0; {at.k} < {width}; ++{at.k})"))
            start, depth = len(w.lines), w.depth
            with ExitStack() as guards:
                test = self.inside(line)
                if test:
                    guards.enter_context(w.block(f"if ({test})"))
                self.serial(body)
            self.indices(line, start, depth)
        w.names.free(at.k)

    def inside(self, line: Line) -> str:
        """The condition of an iteration, where not every position of the run is one."""
        w, tests = self.w, []
        for dim, low, count, tight in zip(line.loop.dims, line.run.lows, line.run.counts, line.tight, strict=True):
            if not tight:
                name = w.names(dim.id)
                tests += [f"{name} >= {w.poly(p)}" for p in dim.lo if w.target.poly(p) != low]
                tests += [f"{name} < {w.poly(p)}" for p in dim.hi if w.target.poly(p) != low + count]
        if line.loop.where is not None:
            tests.append(w.expr(line.loop.where))
        return " && ".join(tests)

    def indices(self, line: Line, start: int, depth: int) -> None:
        """The indices that the lines from `start` on use, put before them."""
        w, at = self.w, self.at
        assert at is not None
        p = at.p if at.k == "0" else f"{at.p} + {at.k}"
        dims, run = line.loop.dims, line.run
        whole = p if len(dims) == 1 else w.names.fresh("p")
        found: list[str] = []
        for n, text in enumerate(digits(whole, [w.poly(c) for c in run.counts])):
            if run.steps[n] != 1:
                text = f"({text}) * {run.steps[n]}"
            low = w.poly(run.lows[n])
            found.append(f"const {w.index} {w.names(dims[n].id)} = {text if low == '0' else f'{low} + {text}'};")
        if len(dims) > 1:
            found.insert(0, f"const {w.index} {whole} = {p};")
        for text in reversed(found):
            name = text.split(" = ")[0].split()[-1]
            if used(name, w.lines[start:]):
                w.lines.insert(start, "  " * depth + text)

    def loop(self, loop: Loop, body: Sequence[Stmt]) -> None:
        """A nested loop, or one that every thread goes through: serially."""
        counts = [self.w.target.number(d.hi[0] - d.lo[0]) if len(d.hi) == len(d.lo) == 1 else None for d in loop.dims]
        self.nested += 1
        if all(c is not None and c <= MOST_UNROLLED for c in counts):
            with ExitStack() as stack:
                for dim in loop.dims:
                    self.w.line("#pragma unroll")
                    stack.enter_context(self.w.block(self.header(dim), loop.span))
                if loop.where is not None:
                    stack.enter_context(self.w.block(f"if ({self.w.expr(loop.where)})"))
                self.serial(body)
        else:
            super().loop(loop, body)
        self.nested -= 1


def counted(line: Line) -> dict[str, int]:
    """Accumulators that absorb a constant integer at every position, and the constant."""
    found: dict[str, int] = {}
    if line.ragged:
        return found
    for acc in line.loop.accs:
        terms = [s for s in walk(line.loop.body) if isinstance(s, Store) and s.absorb and s.buffer == acc.id]
        if acc.monoid != "sum" or not acc.dtype.is_int or acc.shape or len(terms) != 1:
            continue
        value = terms[0].value
        if terms[0] in line.loop.body and isinstance(value, Const) and value.bits < 1 << 31:
            found[acc.id] = value.bits
    return found


def _binds(loop: Loop) -> list[str]:
    return [d.id for d in loop.dims] + [a.id for a in loop.accs]
