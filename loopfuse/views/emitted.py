"""A program as CUDA C, PTX or machine code: what was emitted for each kernel, why, and how it is launched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loopfuse import driver
from loopfuse.cuda import engine
from loopfuse.cuda.binary import Binary, Options
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.compile import compile_ptx
from loopfuse.cuda.sass import disassemble
from loopfuse.devices import DEFAULT, PRESETS, Device
from loopfuse.diag import CompilerError, MachineError
from loopfuse.emit.code import FAULTS, Argument, Code, Fill, KernelCode, Launch, Number, Pointer, Step, TileMap
from loopfuse.emit.program import emit
from loopfuse.ir import Program
from loopfuse.lock import Lock
from loopfuse.memory import show_bytes
from loopfuse.printer import print_program
from loopfuse.views import reasons, tilings
from loopfuse.views.estimates import Reckoned
from loopfuse.views.launches import grid_text, scratch
from loopfuse.views.lines import defined

Kind = Literal["cuda", "ptx", "sass"]
LAST = "general: "  # how the refusal of what is taken by nothing else begins: of a kernel that something took it says nothing
_LISTED = 8  # functions of the prelude that are named


@dataclass(frozen=True, slots=True)
class Built:
    """Emitted code, for a device's model and an architecture. `binaries` is empty where nothing was compiled, and `why`
    is the error that says why; one is None where only that kernel was not. `remarks` are what was planned again, and why."""

    program: Program
    code: Code
    device: Device
    arch: str
    known: Mapping[str, int]
    binaries: tuple[Binary | None, ...] = ()
    why: MachineError | CompilerError | None = None
    remarks: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why nothing was compiled; "" where everything was."""
        return str(self.why) if self.why is not None else ""

    def chosen(self, kernel: str | None) -> list[tuple[KernelCode, Binary | None]]:
        """The functions that come from a kernel of the IR (None: all), each with its binary."""
        pairs = zip(self.code.kernels, self.binaries or [None] * len(self.code.kernels), strict=True)
        return [(k, b) for k, b in pairs if kernel is None or k.kernel == kernel]


def number_of(arch: str) -> int:
    """The number in the name of an architecture: 90 of `sm_90a`; 0 where there is none."""
    digits = re.sub(r"\D", "", arch)
    return int(digits) if digits else 0


def model_for(arch: str) -> str:
    """The key of the preset that stands for an architecture: one with its shared memory and its instructions."""
    number = number_of(arch)
    if number == 80:
        return "a100"
    return DEFAULT if number >= 90 and number // 10 != 12 else "rtx4090"


def emitted(program: Program, known: Mapping[str, int], device: Device, dynamic: bool, lock: Lock | None = None,
            ) -> Code:  # fmt: skip
    """The CUDA C of a program after passes, without compiling it. `lock`: the tiles to take, and who is told of those that
    do not fit."""
    with driver.guard("emit", lambda: print_program(program)):
        code = emit(program, known, device, dynamic=dynamic, tiles=_tiles(lock, device))
    if lock is not None:
        lock.tell(code.chosen, device.name, device.arch)
    return code


def kept(program: Program, known: Mapping[str, int], device: Device, dynamic: bool, cache: Cache | None = None,
         lock: Lock | None = None) -> Built:  # fmt: skip
    """Emit, and find in a cache what was compiled of it before: nothing is compiled. What was planned again when it was
    compiled is planned again here too; a kernel has no binary that was not compiled."""
    code, arch = emitted(program, known, device, dynamic, lock), device.arch or PRESETS[DEFAULT].arch
    if cache is None:
        return Built(program, code, device, arch, known)
    options, budgets, remarks = Options(code.contract, program.numerics == "fast"), dict[str, int](), list[str]()
    for attempt in range(engine.TRIES):
        binaries = [cache.kernel(code.source(kernel), arch, options) for kernel in code.kernels]
        said = engine.again(code, binaries, budgets, attempt)
        if not said:
            break
        remarks += said
        with driver.guard("emit", lambda: print_program(program)):
            code = emit(program, known, device, dynamic=dynamic, budgets=budgets, tiles=_tiles(lock, device))
    return Built(program, code, device, arch, known, tuple(binaries), remarks=tuple(remarks))


def _tiles(lock: Lock | None, device: Device) -> dict[str, str]:
    return lock.tiles(device.name, device.arch) if lock is not None else {}


def build(program: Program, known: Mapping[str, int], device: Device, *, arch: str = "", dynamic: bool = False,
          cache: Cache | None = None, lock: Lock | None = None) -> Built:  # fmt: skip
    """Emit and compile as for a run. Where there is no compiler, or it refuses the text, the code alone with why. `lock` as
    of `emitted`."""
    arch = arch or device.arch or PRESETS[DEFAULT].arch
    try:
        with driver.guard("emit", lambda: print_program(program)):
            made = engine.make(program, known, device, arch, dynamic=dynamic, cache=cache, tiles=_tiles(lock, device))
        if lock is not None:
            lock.tell(made.code.chosen, device.name, device.arch)
        return Built(program, made.code, device, arch, known, made.binaries, None, made.remarks)
    except (MachineError, CompilerError) as why:
        code = emitted(program, known, device, dynamic, lock)
        return Built(program, code, device, arch, known, why=why)


# -- text -------------------------------------------------------------------------------------------------------------


def text(built: Built, kind: Kind, kernel: str | None = None, whole: bool = False, more: str = "--all") -> str:
    """The program as text, or the functions of one kernel of the IR. `whole`: the prelude too, of CUDA C, which else
    `more` is said to show.

    Raises `MachineError` where the text needs what the machine lacks.
    """
    parts = ["\n".join(f"// {line}" for line in head(built, kind))]
    if kind == "cuda" and built.code.prelude:
        parts.append(built.code.prelude.rstrip("\n") if whole else f"// {_folded(built.code.prelude, more)}")
    for function, binary in built.chosen(kernel):
        lines = [f"-- {function.name} --", *about(built, function, binary)]
        parts.append("\n".join(f"// {line}" for line in lines) + "\n" + body(built, kind, function, binary))
    return "\n\n".join(parts) + "\n"


def body(built: Built, kind: Kind, function: KernelCode, binary: Binary | None) -> str:
    """A function in one of the three languages."""
    if kind == "cuda":
        lines = function.text.strip("\n").split("\n")
        while lines and lines[0].startswith("//"):  # it says what `about` says
            del lines[0]
        return "\n".join(lines)
    if kind == "ptx":
        code, fast = built.code, built.program.numerics == "fast"
        source = code.source(function)
        return compile_ptx(source, function.name, built.arch, contract=code.contract, fast=fast).strip("\n")
    if binary is None:
        raise built.why or MachineError("nothing was compiled")
    if binary.ptx:
        raise MachineError(f"{binary.compiler} does not know {built.arch}, so there is PTX and no machine code: "
                           "`--emit ptx`, or a newer compiler")  # fmt: skip
    return disassemble(binary.cubin).strip("\n")


def head(built: Built, kind: Kind) -> list[str]:
    """What the program is: for which sizes and device, its memory, its steps."""
    code = built.code
    count = len(code.kernels)
    sizes = ", ".join(f"{n} = {v}" for n, v in built.known.items() if n not in code.sizes)
    shapes = [f"any {', '.join(code.sizes)}"] * bool(code.sizes) + [sizes] * bool(sizes)
    planned = "".join(f", {n} = {v}" for n, v in built.known.items() if n in code.sizes)
    target = f" for {built.arch}" if kind != "cuda" else ""
    lines = [f"{code.name}{target}: {count} kernel{'s' * (count != 1)} for {'; '.join(shapes) or 'its one shape'}",
             f"planned for {built.device.name}{planned}, numerics {built.program.numerics}"]  # fmt: skip
    held = ", ".join(f"{m.id} {_bytes(m.bytes)}{' zeroed' * m.zeroed}" for m in code.memory)
    lines += [f"memory {held}"] * bool(held)
    if len(code.steps) > 1 or any(not isinstance(s, Launch) for s in code.steps):
        lines += ["steps", *(f"  {line}" for line in steps(code.steps))]
    lines += [f"planned again: {remark}" for remark in built.remarks]
    return [safe(line) for line in lines]


def steps(found: Sequence[Step]) -> Iterator[str]:
    """The steps of a program, a line each."""
    for step in found:
        if isinstance(step, Launch):
            yield f"{step.kernel} {grid_text(step)}"
        elif isinstance(step, Fill):
            yield f"set the bytes of {step.memory} to {step.byte}"
        else:
            by = "" if str(step.step) == "1" else f" by {step.step}"
            yield f"for {step.index} from {step.lo} to below {step.hi}{by}"
            yield from (f"  {line}" for line in steps(step.body))


def about(built: Built, function: KernelCode, binary: Binary | None) -> list[str]:
    """What a function is: who wrote it and why, what it computes, launches, arguments, and what it takes."""
    launches = [step for step in built.code.launches() if step.kernel == function.name]
    kernel = next((k for k in built.program.kernels if k.id == function.kernel), None)
    lines = [f"by        {function.schedule or 'general'}" + (f": {function.why}" if function.why else "")]
    if kernel is not None:
        at = sorted({s.line for s in function.spans})
        where = f" (line{'s' * (len(at) > 1)} {', '.join(map(str, at))})" if at else ""
        lines.append(f"of        {kernel.id}: {', '.join(defined(kernel))}{where}")
    shared = f", {show_bytes(function.shared)} shared" if function.shared else ""
    cluster = f", clusters of {function.cluster}" if function.cluster > 1 else ""
    for launch in launches[:1]:
        again = f", {len(launches)} launches" if len(launches) > 1 else ""
        lines.append(
            f"launch    {grid_text(launch)} block{'s' * (grid_text(launch) != '1')} of {function.threads} threads{shared}{cluster}{again}"
        )
        lines.append(f"arguments {', '.join(map(argument, launch.arguments)) or 'none'}")
    if binary is not None and not binary.ptx:
        spills = f"{binary.spills} bytes of spills" if binary.spills else "no spills"
        stack = f", {binary.stack} bytes of stack" if binary.stack else ""
        lines.append(f"takes     {binary.registers} registers, {spills}{stack} ({binary.arch}, {binary.compiler})")
        lines += [f"warning   {w}" for w in binary.warnings]
    return [safe(line) for line in lines]


def argument(found: Argument) -> str:
    """An argument as a reader names it."""
    if isinstance(found, Pointer):
        return found.memory
    if isinstance(found, TileMap):
        return f"{found.memory} (tiles {' x '.join(str(e) for e in reversed(found.box))})"
    return str(found.value) if isinstance(found, Number) else found.buffer


def _bytes(count: object) -> str:
    return show_bytes(int(str(count))) if str(count).isdigit() else f"{count} B"


def _folded(prelude: str, how: str) -> str:
    defining = [line for line in prelude.splitlines() if line[:1] not in ("", " ", "}", "#")]
    names = list(dict.fromkeys(n for line in defining for n in re.findall(r"\b(lf_\w+)\s*\(", line)[:1]))
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"what the kernels call, shown by {how}: {', '.join(names[:_LISTED])}{more}" if names else "(prelude)"


def safe(line: str) -> str:
    """A line that can stand in a comment of C: whatever names a program has, it ends where it ends."""
    return "".join(c if c.isprintable() else " " for c in line).replace("\\", "/").replace("??", "? ?")


# -- records, and who wrote what --------------------------------------------------------------------------------------


def records(built: Built, kind: Kind, kernel: str | None = None) -> Iterator[dict[str, Any]]:
    """The JSON form of the functions."""
    for function, binary in built.chosen(kernel):
        launch = next((step for step in built.code.launches() if step.kernel == function.name), None)
        yield {
            "name": function.name, "kernel": function.kernel, "schedule": function.schedule, "why": function.why,
            "arch": built.arch, "threads": function.threads, "shared": function.shared, "cluster": function.cluster,
            "grid": [str(e) for e in launch.grid] if launch else [],
            "arguments": [argument(a) for a in launch.arguments] if launch else [],
            "registers": binary.registers if binary else None, "spills": binary.spills if binary else None,
            "sizes": list(built.code.sizes), "text": body(built, kind, function, binary),
        }  # fmt: skip


def emitters(built: Built, found: Reckoned, kernel: str | None = None, measured: float | None = None) -> list[str]:
    """For each kernel of the IR the emitter that took it; of one (`found` has its estimate) also how it is launched, how it
    computes products, what it took when its tiles were timed (`measured`, in seconds), and why no other did."""
    code = built.code
    lines: list[str] = []
    for id in code.refusals:
        if kernel is None:
            by = ", ".join(dict.fromkeys(t.path for t in tilings.found(code, id)))
            count = len(declined(built, found, id))
            lines.append(f"{id} is written by {_writers(code, id)}" + f", by {by}" * bool(by)
                         + f"; {count} declined" * bool(count))  # fmt: skip
        elif kernel == id and id in found.each:
            lines += _written(built, found, id, measured)
    return [safe(line) for line in lines]


def declined(built: Built, found: Reckoned, kernel: str) -> list[str]:
    """The ways that a kernel of the IR was not written, each with why: one for each `not` of the view of the kernel."""
    code = built.code
    if kernel not in found.each or found.each[kernel].of == "nothing":
        return []
    return [*tilings.faster(code, kernel), *_others(code, kernel), *reasons.untried(code, built.known, found, kernel)]


def _others(code: Code, kernel: str) -> list[str]:
    """The refusals that are told behind the tables of the functions."""
    tiled = bool(tilings.found(code, kernel))
    return [why for why in code.refusals[kernel]
            if not (tiled and why.startswith(tilings.FASTER)) and not why.startswith(LAST)]  # fmt: skip


def _written(built: Built, found: Reckoned, kernel: str, measured: float | None) -> list[str]:
    code, estimate = built.code, found.each[kernel]
    lines = [f"written by {_writers(code, kernel)}"]
    if estimate.of == "nothing":
        return lines
    again = re.compile(rf"\w*_{re.escape(kernel)}(?:_\w*)?: ")  # the functions of the kernel as they were before, too
    lines += [f"  again      {remark}" for remark in built.remarks if again.match(remark)]
    lines += [f"  {line}" for line in tilings.lines(code, kernel, built.device, estimate.launches,
                                                    dict(_taken(built, kernel)), measured)]  # fmt: skip
    others = declined(built, found, kernel)[len(tilings.faster(code, kernel)) :]
    return [*lines, *(f"  not {why}" for why in others)]


def _taken(built: Built, kernel: str) -> Iterator[tuple[str, Binary]]:
    """The binaries of the functions of a kernel of the IR, by their names."""
    yield from ((function.name, binary) for function, binary in built.chosen(kernel) if binary is not None)


def _writers(code: Code, kernel: str) -> str:
    found: dict[str, int] = {}
    for function in code.kernels:
        if function.kernel == kernel:
            found[function.schedule or "general"] = found.get(function.schedule or "general", 0) + 1
    return (
        ", ".join(f"{name} ({count} kernel{'s' * (count > 1)})" for name, count in found.items())
        or "nothing: there is no element"
    )


def written(built: Built, found: Reckoned, kernel: str, measured: float | None = None) -> dict[str, Any]:
    """The JSON form of who wrote a kernel of the IR; `found` and `measured` as above."""
    code = built.code
    functions = [k for k in code.kernels if k.kernel == kernel]
    taken = dict(_taken(built, kernel))
    registers = {name: None if binary.ptx else binary.registers for name, binary in taken.items()}
    return {"emitter": functions[0].schedule if functions else None, "functions": [k.name for k in functions],
            "registers": {k.name: registers.get(k.name) for k in functions}, "workspace": workspace(built, found, kernel),
            "refused": list(code.refusals.get(kernel, ())), "declined": declined(built, found, kernel),
            **tilings.as_record(code, kernel, built.device, taken, measured)}  # fmt: skip


def workspace(built: Built | None, found: Reckoned, kernel: str) -> int | None:
    """Bytes of scratch that the launches of a kernel use, beside arrays of the program; None where nothing was written."""
    if built is None:
        return None
    own = frozenset(b.id for b in built.program.buffers) | {FAULTS}
    return scratch(built.code, kernel, own, found.planned.numbers)
