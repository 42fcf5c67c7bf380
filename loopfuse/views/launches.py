"""How the functions of emitted code are launched, in numbers: what `explain` shows of a kernel is what was written of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from loopfuse.emit.code import Code, Fill, KernelCode, Launch, Repeat, Step
from loopfuse.memory import show_bytes
from loopfuse.schedule.plan import Plan


@dataclass(frozen=True, slots=True)
class Launched:
    """A function of a kernel with its launch: the `grid` in blocks for the sizes that were asked about, `formula` the same
    for any sizes ("" where the code is for these alone), `threads` a block, `shared` bytes of dynamic shared memory a block,
    `cluster` blocks a cluster. `times`: how often it is launched in a call; the grid is then the largest."""

    function: str
    grid: tuple[int, ...]
    threads: int
    shared: int = 0
    cluster: int = 1
    times: int = 1
    formula: str = ""
    why: str = ""

    @property
    def blocks(self) -> int:
        """All blocks of a launch; 0 where it is left out."""
        return prod(self.grid)

    @property
    def shown(self) -> str:
        """`16 x 33 of 256 threads, 2.5 KiB shared`, with clusters, repetitions, and the grid for any sizes."""
        extents = [*map(str, self.grid)]
        while len(extents) > 1 and extents[-1] == "1":
            extents.pop()
        shared = f", {show_bytes(self.shared)} shared" if self.shared else ""
        cluster = f", clusters of {self.cluster}" if self.cluster > 1 else ""
        times = f", launched {self.times} times" if self.times != 1 else ""
        any_ = f"; for any sizes {self.formula} blocks" if self.formula else ""
        return f"{' x '.join(extents)} of {self.threads} threads{shared}{cluster}{times}{any_}"


def launches(code: Code, sizes: Mapping[str, int]) -> dict[str, tuple[Launched, ...]]:
    """By kernel of the IR its functions in the order of their launches. `sizes`: a number for each size that the code leaves
    open."""
    functions = {k.name: k for k in code.kernels}
    grids: dict[str, list[tuple[int, ...]]] = {}
    times: dict[str, int] = {}
    formulas: dict[str, str] = {}
    for launch, values, count in _walk(code.steps, dict(sizes), 1):
        grids.setdefault(launch.kernel, []).append(tuple(max(0, int(e.value(values))) for e in launch.grid))
        times[launch.kernel] = times.get(launch.kernel, 0) + count
        if any(e.names for e in launch.grid):
            formulas[launch.kernel] = grid_text(launch)
    found: dict[str, list[Launched]] = {k.kernel: [] for k in code.kernels}
    for name, all_ in grids.items():
        function: KernelCode = functions[name]
        found[function.kernel].append(Launched(
            name, max(all_, key=prod), function.threads, function.shared, function.cluster, times[name],
            formulas.get(name, ""), function.why,
        ))  # fmt: skip
    return {kernel: tuple(each) for kernel, each in found.items()}


def _walk(steps: Sequence[Step], values: dict[str, int], times: int) -> Iterator[tuple[Launch, dict[str, int], int]]:
    """Each launch with the numbers for its sizes and how often it runs with them; of a repetition the first step stands for
    all but the last, so that grids which grow or shrink along it are seen at both ends."""
    for step in steps:
        if isinstance(step, Launch):
            yield step, values, times
        elif not isinstance(step, Fill):
            yield from _repeated(step, values, times)


def _repeated(step: Repeat, values: dict[str, int], times: int) -> Iterator[tuple[Launch, dict[str, int], int]]:
    low, high, by = (int(p.value(values)) for p in (step.lo, step.hi, step.step))
    trips = max(0, -(-(high - low) // by)) if by > 0 else 0
    ends = [(low, max(0, trips - 1)), (low + (trips - 1) * by, min(1, trips))]
    for index, count in ends if trips != 1 else ends[1:]:
        yield from _walk(step.body, {**values, step.index: index}, times * count)


def grid_text(launch: Launch) -> str:
    """The blocks of a launch as the code has them: `132`, `((C + 63) // 64) x 33`."""
    extents = [str(e) for e in launch.grid]
    while len(extents) > 1 and extents[-1] == "1":
        extents.pop()
    return " x ".join(extents if len(extents) == 1 else (e if e.isdigit() else f"({e})" for e in extents))


def planned_launches(plan: Plan) -> tuple[Launched, ...]:
    """The launches that a plan is for, where no code was written of it, as for a CPU."""
    return tuple(
        Launched(step.what, (step.blocks,), step.threads, plan.cost.shared, 1, step.times) for step in plan.launches
    )


def idle(found: Sequence[Launched]) -> bool:
    """Whether nothing of a kernel is launched: it has no element for these sizes."""
    return not any(one.blocks and one.times for one in found)


def scratch(code: Code, kernel: str, buffers: frozenset[str], sizes: Mapping[str, int]) -> int:
    """Bytes of device memory that the launches of a kernel use beside the program's own arrays (`buffers`)."""
    functions = {k.name for k in code.kernels if k.kernel == kernel}
    named = {memory for step in code.launches() if step.kernel in functions for a in step.arguments
             if (memory := getattr(a, "memory", None)) is not None}  # fmt: skip
    return sum(int(m.bytes.value(sizes)) for m in code.memory if m.id in named - buffers)
