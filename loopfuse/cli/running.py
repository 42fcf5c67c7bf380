"""What `loopfuse run` does beyond running: kernels for any size, a comparison with the reference, times."""

from __future__ import annotations

from loopfuse import driver
from loopfuse.bench.measuring import How, Subject, measured
from loopfuse.bench.rows import Row
from loopfuse.bind import Bound
from loopfuse.cli.frame import FAILED, OK, Context
from loopfuse.cuda import engine
from loopfuse.diag import UserError
from loopfuse.lock import Lock
from loopfuse.printer import print_program
from loopfuse.views.compared import bounded, compare, compared_table, mismatches, vague_note
from loopfuse.views.tables import amount, duration, significant

BRIEF = 0.1  # seconds of calls


def for_any_size(optimised: driver.Optimised, bound: Bound, clock: driver.Clock, lock: Lock | None) -> driver.Outcome:
    """Run on the GPU by kernels that serve all sizes. Raises as `driver.execute` does."""
    if unmet := optimised.unmet:
        raise UserError(unmet)
    program = optimised.program
    gpu = engine.open_engine()
    with driver.guard("cuda", lambda: print_program(program)):
        with clock.time("compile"):
            loaded = gpu.load(program, bound.sizes, dynamic=True, lock=lock)
        try:
            arrays, params = engine.split(program, driver.run_inputs(optimised, bound))
            with clock.time("cuda"):
                found = loaded.call(arrays, params, bound.sizes, to_host=True)
        finally:
            loaded.close()
    if hits := engine.hits(loaded.code, found.faults):
        raise UserError([driver.fault_message(*hit) for hit in hits])
    ends = [b.id for b in program.buffers if b.role == "out"]
    buffers = {root: found[end] for root, end in zip(optimised.roots, ends, strict=True)}
    return driver.Outcome({o.name: buffers[o.buffer] for o in optimised.typed.outputs}, buffers)


def check(context: Context, lowered: driver.Lowered, bound: Bound, outcome: driver.Outcome, limit: int | None) -> int:
    """Hold the results against the reference; returns the exit code."""
    found = compare(lowered, bounded(lowered, bound, limit), outcome.buffers)
    for line in (*compared_table(found), *mismatches(found)):
        context.terminal.result(line)
    if loose := sum(one.vague for one in found):
        context.terminal.note(vague_note(loose))
    for one in found:
        context.terminal.record({"kind": "compared", **one.as_record()})
    return FAILED if any(one.miss for one in found) else OK


def show_times(context: Context, clock: driver.Clock, gpu: Row | None) -> None:
    """The seconds of each stage, and what a call takes on the GPU once it is compiled."""
    stages = dict(clock.stages)
    if "cuda" in stages:  # what emission and compilation took is a part of it
        inside = sum(stages.get(name, 0.0) for name in ("emit", "compile"))
        stages["cuda"] = max(0.0, stages["cuda"] - inside) if "emit" in stages else stages["cuda"]
    for stage, seconds in stages.items():
        context.terminal.say(f"{stage:<8}{seconds * 1e3:10.2f} ms")
    context.terminal.say(f"{'total':<8}{sum(stages.values()) * 1e3:10.2f} ms")
    context.terminal.record({"kind": "times", "seconds": stages})
    if gpu is not None and gpu.median is not None:
        told = [f"{gpu.samples} calls"]
        told += [f"{significant(gpu.rate / 1e9)} GB/s"] if gpu.rate else []
        told += [f"{amount(gpu.speed)}FLOP/s"] if gpu.speed else []
        told += [f"{gpu.share:.0%} of the {gpu.bound} roof"] if gpu.share else []
        told += [f"{duration(gpu.predicted)} predicted"] if gpu.predicted else []
        told += [f"the host {duration(gpu.host)}"] if gpu.host else []
        context.terminal.say(f"a call takes {duration(gpu.median)} on {gpu.device} ({', '.join(told)})")
        context.terminal.record({"kind": "gpu", **gpu.as_record()})


def gpu_time(subject: Subject) -> Row:
    """What a call takes on the GPU, measured briefly."""
    return measured(subject, "cuda", How(BRIEF, energy=False))
