"""Cascades: dependent folds over one axis become one loop, with repairs derived by algebra."""

from __future__ import annotations

from dataclasses import replace

from loopfuse.analysis.env import environment
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel, Load, Program, Store
from loopfuse.passes.base import Options, Outcome, Pass, Remark, steps
from loopfuse.passes.cascade.kernel import cascade_kernel
from loopfuse.passes.contract import live_buffers
from loopfuse.passes.remat import rematerialise
from loopfuse.rewrite import exprs, subexprs, walk_program

__all__ = ["PASS", "cascade", "cascade_kernel"]


def cascade(program: Program, options: Options) -> Outcome:
    """Compute cheap values again where later loops of a kernel read them back, then join the folds of every kernel.

    Needs: kernels as fusion leaves them. Promises: folds over one axis of a block are one loop where the algebra allows
    it, those that read results of others repaired; temporaries that nothing reads are gone. Rounds as the remarks say;
    under `numerics strict` nothing rounds: a rescaled sum keeps its bits when a plan makes exact passes, which it must
    then do, and factors are not deferred, nor moments shifted. Note `causes`: why folds that depend on each other stay
    loops of their own.
    """
    env = environment(program, options.device, options.sizes)
    take = steps(options, "cascade").take
    live = live_buffers(program)
    kernels: list[Kernel] = []
    remarks: list[Remark] = []
    refused: list[Cause] = []
    for kernel in program.kernels:
        again = rematerialise(kernel, env, live)
        if again is not kernel and not take(f"values are computed again in `{kernel.id}`"):
            again = kernel
        made, said, causes = cascade_kernel(again, env, live, take)
        kernels.append(made)
        remarks += said
        refused += causes
        remarks += [Remark(c.message, c.spans[0] if c.spans else None, missed=True) for c in causes]
    notes = {"causes": tuple(refused)}
    if all(a is b for a, b in zip(program.kernels, kernels, strict=True)):
        return Outcome(program, tuple(remarks), notes=notes)
    made_program = replace(program, kernels=tuple(kernels))
    kept = {s.buffer for s in walk_program(made_program) if isinstance(s, Store)}
    kept |= {n.buffer for s in walk_program(made_program) for e in exprs(s) for n in subexprs(e) if isinstance(n, Load)}
    buffers = tuple(b for b in program.buffers if b.role != "temp" or b.id in kept)
    return Outcome(replace(made_program, buffers=buffers), tuple(remarks), notes=notes)


PASS = Pass("cascade", "Dependent reductions over one axis become one pass, with repairs.", cascade, rounds=True)
