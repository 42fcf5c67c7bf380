"""Distribution of loops that run in order, and the widest bands around them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopfuse.analysis.env import Env, environment
from loopfuse.ir import Buffer, Dim, Kernel, Loop, Program, Stmt
from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps, steps
from loopfuse.passes.distribute.align import align, bound, renamed
from loopfuse.passes.distribute.bands import Class, Pairing, connected
from loopfuse.passes.distribute.units import Dependence, Scan, Unit, carried, dependences, plain, scan

__all__ = ["PASS", "distribute"]


def distribute(program: Program, options: Options) -> Outcome:
    """Take out of `seq` loops what does not have to run in order.

    Needs: any valid program; scans are kernels of one `seq` loop, perhaps inside `par` loops, as lowering makes them.
    Promises, for each such kernel, without changing a bit:
    - *distribution*: what no value of an earlier trip reaches, and folds (or feeds what does), is a kernel of its own
      before the loop, `par` over the trips; its buffers lose their windows. A cheap elementwise definition stays: it
      costs less than the array that it would need. What folds and feeds nothing in the loop is a kernel after it, if
      all that it reads is kept for all trips anyway. A loop without any value from an earlier trip is taken apart.
    - *interchange*: an index in which every dependence between the trips has distance 0 is a `par` loop around the
      `seq` loop, so that independent recurrences run side by side; recurrences that have nothing to do with one
      another become two kernels where that gives one of them such an index. Indices are paired through subscripts.
    - *alignment*: loops of the body that take values from one another at the same element are one loop.
    """
    limit = steps(options, PASS.name)
    env = environment(program, options.device, options.sizes)
    work = _Work(env, limit, dict(env.buffers), [])
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        kernels += work.kernel(kernel)
    if len(kernels) == len(program.kernels) and all(a is b for a, b in zip(kernels, program.kernels, strict=True)):
        return Outcome(program)
    buffers = tuple(work.buffers[b.id] for b in program.buffers)
    return Outcome(replace(program, buffers=buffers, kernels=tuple(kernels)), tuple(work.remarks))


@dataclass
class _Work:
    env: Env
    limit: Steps
    buffers: dict[str, Buffer]
    remarks: list[Remark]

    def kernel(self, kernel: Kernel) -> list[Kernel]:
        """The kernels that a kernel becomes."""
        found = scan(kernel, self.env)
        if found is None:
            return [kernel]
        deps = dependences(found)
        early, late = self._split(found, deps)
        stay = [u for u in found.units if u not in early and u not in late]
        sides = ("before the loop over", "after the loop over") if stay else ("without a loop in order over",) * 2
        before = [self._apart(found, u, sides[0]) for u in early]
        after = [self._apart(found, u, sides[1]) for u in late]
        return [*before, *self._loops(found, stay, deps), *after]

    # -- distribution -------------------------------------------------------------------------------------------------

    def _split(self, found: Scan, deps: list[Dependence]) -> tuple[list[Unit], list[Unit]]:
        """The units that move before and after the loop."""
        ordered = carried(found.units, deps)
        free = [u for u in found.units if id(u) not in ordered and self._whole(u)]
        read = {id(d.writer) for d in deps if d.reader is not d.writer}
        early = _closed([u for u in free if u.heavy or not ordered or id(u) not in read], free, deps)
        early = [u for u in early if self._take(u, "before")]
        while lost := [u for u in early if any(d.reader is u and d.writer not in early for d in deps)]:
            early = [u for u in early if u not in lost]
        late: list[Unit] = []
        made = {b: self.buffers[b] for u in found.units for b in u.writes}
        for u in reversed(found.units):
            if u in early or not u.heavy or not u.writes or any(d.reader not in late for d in deps if d.writer is u):
                continue
            if all(made[b].window is None for b in u.reads if b in made) and self._take(u, "after"):
                late.insert(0, u)
        return early, late

    def _whole(self, unit: Unit) -> bool:
        """Whether a unit's buffers may be kept for all trips."""
        return bool(unit.writes) and all(self.buffers[b].scope == "device" for b in unit.writes)

    def _take(self, unit: Unit, side: str) -> bool:
        return self.limit.take(f"compute {_named(unit)} {side} the loop")

    def _apart(self, found: Scan, unit: Unit, side: str) -> Kernel:
        """A unit as a kernel of its own, `par` over the trips."""
        for b in unit.writes:
            self.buffers[b] = replace(self.buffers[b], window=None)
        trip = found.trip.id
        text = f"{_named(unit)} is computed {side} `{trip}`, for every `{trip}` at once"
        self.remarks.append(Remark(text, unit.stmts[0].span))
        loops = (*found.around, Loop(found.loop.dims, (), span=found.loop.span))
        return Kernel(self.env.fresh(found.kernel.id), _nested(loops, unit.stmts), span=unit.stmts[0].span)

    # -- interchange and alignment ------------------------------------------------------------------------------------

    def _loops(self, found: Scan, units: list[Unit], deps: list[Dependence]) -> list[Kernel]:
        """The units that stay, as one `seq` loop, or one for each independent recurrence."""
        if not units:
            return []
        parts = connected(units, deps)
        pairings = [Pairing(found, self.env, part, deps) for part in parts]
        bands = [p.bands() for p in pairings]
        if len(parts) > 1 and (not any(bands) or not self.limit.take("split independent recurrences")):
            pairings, bands = [Pairing(found, self.env, units, deps)], [[]]
        made = [self._loop(found, p, b) for p, b in zip(pairings, bands, strict=True)]
        if len(made) == 1:
            return [found.kernel if made[0] is found.kernel.body else replace(found.kernel, body=made[0])]
        self.remarks.append(Remark("recurrences that are independent of one another are apart", found.loop.span))
        rest = [Kernel(self.env.fresh(found.kernel.id), body, span=found.kernel.span) for body in made[1:]]
        return [replace(found.kernel, body=made[0]), *rest]

    def _loop(self, found: Scan, pairing: Pairing, bands: list[Class]) -> tuple[Stmt, ...]:
        """A recurrence with its bands around it and its loops aligned; the same object where nothing changed."""
        names = [self._name(pairing, band) for band in bands]
        text = f"run the trips of `{found.trip.id}` for every {_list(names)} apart"
        if bands and not self.limit.take(text):
            bands, names = [], []
        body = self._aligned(found, pairing, bands, names)
        if not bands and _same(body, found.loop.body):
            return found.kernel.body
        loop = replace(found.loop, body=body)
        if not bands:
            return _around(found.around, loop)
        first = pairing.units[0]
        dims = {d.id: d for d in first.dims}
        outer = tuple(replace(dims[band[id(first)]], id=name) for band, name in zip(bands, names, strict=True))
        text = f"the loop over `{found.trip.id}` runs apart for every {_list(names)}: no trip needs another's"
        self.remarks.append(Remark(text, found.loop.span))
        return _nested((*found.around, Loop(outer, (), span=first.stmts[0].span)), (loop,))

    def _name(self, pairing: Pairing, band: Class) -> str:
        """The id of a band: that of the first unit's index, where nothing else has it."""
        first = band[id(pairing.units[0])]
        for unit in pairing.units:
            inner = unit.loop.body if unit.loop is not None else unit.stmts
            if first in bound(inner) or any(d.id == first != band[id(unit)] for d in unit.dims):
                return self.env.fresh(first)
        return first

    def _aligned(self, found: Scan, pairing: Pairing, bands: list[Class], names: list[str]) -> tuple[Stmt, ...]:
        """The body of the `seq` loop, without the bands."""
        units: list[Unit] = []
        inner: dict[int, Unit] = {}
        for unit in pairing.units:
            table = {band[id(unit)]: name for band, name in zip(bands, names, strict=True)}
            inner[id(unit)] = _without(unit, table)
            units.append(inner[id(unit)])

        deps = [
            replace(
                d,
                writer=inner[id(d.writer)],
                reader=inner[id(d.reader)],
                pairs=tuple(
                    (p, q) for p, q in d.pairs
                    if not any(band[id(d.writer)] == p and band[id(d.reader)] == q for band in bands)
                ),
            )
            for d in pairing.deps
            if id(d.writer) in inner and id(d.reader) in inner
        ]  # fmt: skip

        blocks = align(Pairing(found, self.env, units, deps))
        if len(blocks) < len(units):
            if not self.limit.take("join the loops of a trip"):
                return tuple(s for u in units for s in u.stmts)
            text = f"{len(units)} definitions of a trip of `{found.trip.id}` are computed in {_loops(len(blocks))}"
            self.remarks.append(Remark(text, found.loop.span))
        return tuple(stmt for block in blocks for stmt in block)


def _without(unit: Unit, names: dict[str, str]) -> Unit:
    """The unit without the indices that are bands, which have other names outside."""
    loop = unit.loop
    if loop is None or not names:
        return unit
    body = renamed(loop.body, {old: new for old, new in names.items() if old != new})
    dims = tuple(d for d in loop.dims if d.id not in names)
    return Unit((replace(loop, dims=dims, body=body),) if dims else body, unit.loads, unit.stores)


def _nested(loops: tuple[Loop, ...], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body inside loops; neighbouring `par` loops of which nothing is between are one."""
    for loop in reversed(loops):
        only = body[0] if len(body) == 1 else None
        if isinstance(only, Loop) and plain(only) and not _mention(only.dims, loop.dims):
            body = (replace(only, dims=(*loop.dims, *only.dims)),)
        else:
            body = (replace(loop, order="par", body=body),)
    return body


def _same(a: tuple[Stmt, ...], b: tuple[Stmt, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _around(loops: tuple[Loop, ...], inner: Loop) -> tuple[Stmt, ...]:
    """The loop inside the loops that were around it."""
    for loop in reversed(loops):
        inner = replace(loop, body=(inner,))
    return (inner,)


def _closed(units: list[Unit], free: list[Unit], deps: list[Dependence]) -> list[Unit]:
    """The units and all free ones that they need, each after what it needs."""
    sources: dict[int, list[Unit]] = {}
    for d in deps:
        if d.writer is not d.reader:
            sources.setdefault(id(d.reader), []).append(d.writer)
    done: dict[int, Unit] = {}
    known = {id(u) for u in free}
    stack = units[::-1]
    while stack:
        unit = stack[-1]
        waiting = [w for w in sources.get(id(unit), ()) if id(w) in known and id(w) not in done]
        if waiting:
            stack += waiting[::-1]
            continue
        done.setdefault(id(stack.pop()), unit)
    return list(done.values())


def _mention(dims: tuple[Dim, ...], outer: tuple[Dim, ...]) -> bool:
    names = {d.id for d in outer}
    return any(p.names & names for d in dims for p in (*d.lo, *d.hi, d.step))


def _named(unit: Unit) -> str:
    return _list(list(dict.fromkeys(a.buffer for a in unit.stores)))


def _list(names: list[str]) -> str:
    return " and ".join(f"`{n}`" for n in names)


def _loops(count: int) -> str:
    return "one loop" if count == 1 else f"{count} loops"


PASS = Pass("distribute", "Take out of loops that run in order what does not have to.", distribute)
