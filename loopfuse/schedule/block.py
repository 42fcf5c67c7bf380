"""Block: a small kernel in one block, with a barrier between its loops: whatever they pass to one another is seen."""

from __future__ import annotations

from loopfuse.schedule.base import FIXED_REGISTERS, MOST_THREAD_REGISTERS, Ask, out_of_registers, refuse, traffic
from loopfuse.schedule.model import Load, cost
from loopfuse.schedule.plan import Guard, Launch, Plan, Refusal, Role

NAME = "block"
THREADS = 512
MOST_WORK = 1 << 16  # iterations of the innermost loops
BARRIER = 4.0e-8


def accept(ask: Ask) -> Plan | Refusal:
    """A plan with one block, or why not."""
    found = ask.sketch
    leaves = [level for level in found.levels[1:] if not level.children]
    work = sum(level.times for level in leaves)
    if work > MOST_WORK:
        waits = "parts of this wait for whole other parts, which one block could do, but " * (
            len(found.root.children) > 1
        )
        return refuse(
            NAME, 1, "barrier", f"{ask.title}: {waits}it is {work} iterations; a block is given {MOST_WORK}", ask,
            needed=work, limit=MOST_WORK, unit="iterations", lift="kernels of their own",
        )  # fmt: skip
    if found.live + FIXED_REGISTERS > 128:
        return out_of_registers(NAME, 2, ask, found.live, MOST_THREAD_REGISTERS)
    moved = traffic(ask, {}, 1, [i for level in leaves for i in list(level.trips)[-1:]], ())
    steps = sum(level.times // max(1, level.size) if level.kind != "par" else 1 for level in found.levels[1:])
    serial = sum(level.times // max(1, level.size) for level in found.levels[1:] if level.kind == "seq")
    result = cost(ask.device, Load(
        moved.reads, moved.writes, moved.rereads, found.total, local=8.0 * work, blocks=1, threads=THREADS,
        registers=min(128, FIXED_REGISTERS + found.live),
        least=ask.device.latency * (1 + len(found.root.children)) + BARRIER * (steps + serial),
    ))  # fmt: skip
    roles: dict[str, Role] = {
        i: "serial" if level.kind in ("seq", "fold") and level.depth > 1 else "block"
        for level in found.levels[1:] for i in level.trips
    }  # fmt: skip
    return Plan(
        NAME, roles, (Launch("main", 1, THREADS),), result,
        folds={a.id: "exact: lanes, block" for level in found.levels for a in level.accs},
        place=dict.fromkeys(sorted(ask.local), "workspace"), guards=_guards(ask, work), assumed=ask.assumed,
    )  # fmt: skip


def _guards(ask: Ask, work: int) -> tuple[Guard, ...]:
    """Sizes that are stand-ins may grow so far by themselves."""
    return tuple(
        Guard(f"{name} <= {ask.env.sizes[name] * MOST_WORK // max(1, work)}", "its loops in kernels of their own")
        for name in (s.id for s in ask.env.program.sizes if s.id in ask.assumed)
    )
