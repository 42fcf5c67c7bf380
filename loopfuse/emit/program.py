"""A whole program to CUDA C: each kernel by the cheapest plan that an emitter takes, or by the general one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import cast

from loopfuse.analysis.env import Env, environment
from loopfuse.analysis.sketch import sketch
from loopfuse.devices import H200, Device
from loopfuse.emit import columns, contractions, general, maps, rows, scatters
from loopfuse.emit.base import Declined, Emitted, Emitter, Job, Tiles
from loopfuse.emit.code import FAULTS, Chosen, Code, Fill, Memory, Pointer, Repeat, Step, TileMap
from loopfuse.emit.digests import digest
from loopfuse.emit.prelude import functions
from loopfuse.emit.writer import Faults, Target
from loopfuse.ir import Buffer, Kernel, Program
from loopfuse.ops import Numerics
from loopfuse.schedule import answers, contraction
from loopfuse.schedule.base import Ask
from loopfuse.schedule.plan import Cost, Plan, Refusal
from loopfuse.sizes import ONE, Poly
from loopfuse.walking import free_names

TILE = 32  # what a size that a plan should choose is where none does

# By schedule; what is not here, and what these decline, is written by `general`.
EMITTERS: dict[str, Emitter] = {
    "column": columns.emit, "contraction": contractions.emit, "map": maps.emit, "row": rows.emit, "scan": maps.emit, "scatter": scatters.emit,
}  # fmt: skip

NO_TILE = "the kernel has no such tile"
NO_ROOM = "its operands, the shared memory or the registers have no room for that tile"
NO_COST = Cost(0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0.0, 0)


def emit(program: Program, sizes: Mapping[str, int] | None = None, device: Device = H200, *, dynamic: bool = False,
         only: str | None = None, budgets: Mapping[str, int] | None = None,
         tiles: Mapping[str, str] | None = None) -> Code:  # fmt: skip
    """The CUDA C of a program whose kernels are finished.

    `sizes` are the extents that plans are made for; unless `dynamic` they are also numbers in the code, which then is
    for these sizes alone. `only` names the one schedule that may be used (`general`: none of the fast ones). `budgets`:
    the most registers a thread of an IR kernel may take, after a spill; 0: the general kernels. `tiles`: by the digest of
    what a kernel computes, the tile to take in place of the model's, where it fits.
    """
    made = _made(program, sizes, device, dynamic, only, budgets, tiles)
    return made.code(made.open)


def offers(program: Program, sizes: Mapping[str, int] | None = None, device: Device = H200, *,
           dynamic: bool = False) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """By digest, the names of the tiles that each kernel with a choice may have: see `contractions.offers`. Some of them may
    not fit, which `emit` tells."""
    made = _made(program, sizes, device, dynamic, None, None, None)
    return {c.digest: tuple(contractions.offers(made.tiled[c.kernel])) for c in made.chosen}


def _made(program: Program, sizes: Mapping[str, int] | None, device: Device, dynamic: bool, only: str | None,
          budgets: Mapping[str, int] | None, tiles: Mapping[str, str] | None) -> _Made:  # fmt: skip
    env = environment(program, device, sizes)
    planned = {s.id: max(TILE, s.least or 1) for s in program.sizes if s.origin == "plan"}
    fixed = {s.id: s.value for s in program.sizes if s.value is not None}
    known = {n: v for n, v in (sizes or {}).items() if not dynamic} | fixed
    target = Target(device, cast(Numerics, program.numerics), planned | known)
    open_ = tuple(s.id for s in program.sizes if s.id not in planned | known)
    made = _Made(program, env, target, only, budgets or {}, tiles or {}, dict(sizes or {}) | fixed, open_)
    for number, kernel in enumerate(program.kernels):
        made.add(kernel, number)
    return made


class _Made:
    def __init__(self, program: Program, env: Env, target: Target, only: str | None, budgets: Mapping[str, int],
                 tiles: Mapping[str, str], sizes: Mapping[str, int], open_: tuple[str, ...]) -> None:  # fmt: skip
        self.program, self.env, self.target, self.only, self.budgets = program, env, target, only, budgets
        self.tiles, self.sizes, self.open = tiles, sizes, open_
        self.chosen: list[Chosen] = []
        self.tiled: dict[str, Job] = {}  # the kernels that have a choice
        self.buffers: dict[str, Buffer] = {b.id: b for b in program.buffers}
        self.faults = Faults()
        self.parts: list[Emitted] = []
        self.refusals: dict[str, tuple[str, ...]] = {}
        self.read: list[frozenset[str]] = [free_names(k.body).loads for k in program.kernels]
        self.outputs = frozenset(b.id for b in program.buffers if b.role == "out")

    def add(self, kernel: Kernel, number: int) -> None:
        """The kernel's part."""
        live = self.outputs.union(*self.read[number + 1 :])
        ask = Ask(kernel, self.buffers, self.env, live, sketch(kernel, self.buffers, self.env))
        found = answers(kernel, self.buffers, self.env, live)
        plans = sorted((p for p in found if isinstance(p, Plan)), key=lambda p: p.cost.seconds)
        why = [f"{r.schedule}: {_refused(r)}" for r in found if isinstance(r, Refusal)]
        name = f"{_word(self.program.name)}_{kernel.id}"
        for plan in plans:
            emitter = EMITTERS.get(plan.schedule)
            if emitter is None or self.only not in (None, plan.schedule) or self.budgets.get(kernel.id) == 0:
                why.append(f"{plan.schedule}: accepted, and nothing writes it yet" if emitter is None else "")
                continue
            got = self.tile(emitter, self.job(kernel, plan, ask, name))
            if isinstance(got, Emitted):
                self.parts.append(got)
                why += [f"faster {plan.schedule}: {note}" for note in got.notes]
                break
            why += [f"{plan.schedule}: {said}" for said in got.said]
        else:
            plan = plans[0] if plans else Plan(general.__name__, {}, (), NO_COST)
            last = general.emit(self.job(kernel, plan, ask, name))
            assert not isinstance(last, Declined)
            self.parts.append(last)
        self.refusals[kernel.id] = tuple(w for w in why if w)
        if self.tiles and kernel.id not in self.tiled and (wanted := self.tiles.get(key := self.digest(kernel))):
            self.chosen.append(
                Chosen(kernel.id, key, "", "", wanted, "the kernel is written in a way that has no tiles")
            )

    def tile(self, emitter: Emitter, job: Job) -> Emitted | Declined:
        """A kernel with the tile that is wanted for it, where it fits, else with that of the model."""
        wanted = self.tiles.get(self.digest(job.kernel), "") if self.tiles else ""
        if not wanted:
            got = emitter(job)
            if isinstance(got, Emitted) and got.tile:
                self.tiled[job.kernel.id] = job
                self.chosen.append(Chosen(job.kernel.id, self.digest(job.kernel), got.tile, got.tile))
            return got
        model = emitter(replace(job, faults=Faults(), tiles=Tiles()))  # for its name alone
        if isinstance(model, Declined) or not model.tile:
            return emitter(job)
        asked = replace(job, tiles=Tiles(wanted))
        got, why = emitter(asked), ""
        if isinstance(got, Declined) or got.tile != wanted:
            why = NO_ROOM if wanted in asked.tiles.offered else NO_TILE
            got = emitter(job)
        if isinstance(got, Emitted):
            self.tiled[job.kernel.id] = job
            offered = tuple(dict.fromkeys(asked.tiles.offered)) if why else ()
            self.chosen.append(
                Chosen(job.kernel.id, self.digest(job.kernel), got.tile, model.tile, wanted, why, offered)
            )
        return got

    def digest(self, kernel: Kernel) -> str:
        """What names a kernel; see `digests`."""
        return digest(self.program, kernel, self.sizes, frozenset(self.open))

    def job(self, kernel: Kernel, plan: Plan, ask: Ask, name: str) -> Job:
        """What an emitter is given; the plan settles the sizes that it chose."""
        tiles = {s.id: plan.tiles[s.id] for s in self.program.sizes if s.origin == "plan" and s.id in plan.tiles}
        target = replace(self.target, sizes={**self.target.sizes, **tiles})
        return Job(kernel, plan, ask, target, self.faults, name, self.budgets.get(kernel.id, 255), self.buffers)

    def code(self, open_: tuple[str, ...]) -> Code:
        """All parts together."""
        kernels = tuple(k for part in self.parts for k in part.kernels)
        steps: tuple[Step, ...] = tuple(s for part in self.parts for s in part.steps)
        memory = {m.id: m for part in self.parts for m in part.memory}
        used = _pointed(steps)
        for id in sorted(used - memory.keys()):
            buffer = self.buffers.get(id)
            if buffer is not None and buffer.role == "temp":
                count = prod(buffer.shape, start=ONE) * buffer.dtype.itemsize
                memory[id] = Memory(id, self.target.poly(count))
        if self.faults.sites:
            memory[FAULTS] = Memory(FAULTS, Poly.of(4 * len(self.faults.sites)))
            steps = (Fill(FAULTS), *steps)
        roles = {role: tuple(b.id for b in self.program.buffers if b.role in role.split())
                 for role in ("in frozen", "param", "out")}  # fmt: skip
        prelude = "\n".join(functions("\n".join(k.text for k in kernels)))
        kept = tuple(m for m in memory.values() if m.id in used or m.id == FAULTS)
        return Code(
            self.program.name, prelude, kernels, steps, kept, roles["in frozen"], roles["param"], roles["out"], open_,
            frozenset(b for part in self.parts for b in part.aligned), tuple(self.faults.sites),
            self.target.numerics != "strict", self.refusals, tuple(self.chosen),
        )  # fmt: skip


def _refused(refusal: Refusal) -> str:
    """Why, and of products what would lift it: a reader of these asks for a faster way."""
    cause = refusal.cause
    lift = cause.lift if refusal.schedule == contraction.NAME else ""
    return f"{cause.message}; what would lift it: {lift}" if lift else cause.message


def _pointed(steps: tuple[Step, ...]) -> set[str]:
    """The memory that launches point to."""
    found: set[str] = set()
    pending = list(steps)
    while pending:
        step = pending.pop()
        if isinstance(step, Repeat):
            pending += step.body
        elif not isinstance(step, Fill):
            found |= {a.memory for a in step.arguments if isinstance(a, Pointer | TileMap)}
    return found


def _word(name: str) -> str:
    """A program's name as the start of an identifier."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text and not text[0].isdigit() else f"p_{text}"
