"""Bodies of fused kernels: each value once, as far out as it may stand; what nothing uses goes."""

from __future__ import annotations

from dataclasses import replace

from loopfuse.analysis.env import environment
from loopfuse.ir import Kernel, Loop, Program, Stmt, Store
from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps, steps
from loopfuse.passes.patterns import faults
from loopfuse.passes.sharing import share
from loopfuse.passes.simplify import propagate
from loopfuse.rewrite import Mapper, exprs, own, walk_program

__all__ = ["PASS", "bodies"]


def bodies(program: Program, options: Options) -> Outcome:
    """Share the values of every kernel and move them out of the loops on which they do not depend.

    Needs: any valid program; runs after `cascade`, because moved parts of a term would hide its algebra, and after
    `contract`, which makes the lets.
    Promises: each value is computed once where one occurrence dominates another, at the outermost depth that is legal
    and worth it (`sharing.share`); no let is unused, none names another name or a constant, and no local buffer is stored to and never read. No bit changes.
    """
    limit = steps(options, PASS.name)
    program, _ = propagate(program, limit)
    env = environment(program, options.device, options.sizes)
    remarks: list[Remark] = []
    while True:
        clean = _without_dead_stores(program, limit, remarks)
        kernels: list[Kernel] = []
        for kernel in clean.kernels:
            made, said = share(kernel, env, limit, hoist=True, prune=True)
            kernels.append(made)
            remarks += said
        if all(a is b for a, b in zip(kernels, clean.kernels, strict=True)):
            return Outcome(clean, tuple(dict.fromkeys(remarks)))
        program = replace(clean, kernels=tuple(kernels))
        if not any(b.scope == "local" for b in program.buffers):
            return Outcome(program, tuple(dict.fromkeys(remarks)))


def _without_dead_stores(program: Program, limit: Steps, remarks: list[Remark]) -> Program:
    """The program without local buffers that nothing reads, and without what only they needed."""
    read: set[str] = set()
    checked: set[str] = set()
    for stmt in walk_program(program):
        read |= own(stmt).names.loads
        if isinstance(stmt, Store) and (any(stmt.modes) or any(map(faults, exprs(stmt)))):
            checked.add(stmt.buffer)
    dead = {
        b.id: b
        for b in program.buffers
        if b.role == "temp" and b.scope == "local" and b.id not in read | checked
        if limit.take(f"leave out `{b.id}`, which nothing reads")
    }
    if not dead:
        return program
    remarks += [Remark(f"`{b.id}` is not stored: nothing reads it", b.span) for b in dead.values()]

    def drop(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(stmt, Store) and not stmt.absorb and stmt.buffer in dead:
            return ()
        return () if isinstance(stmt, Loop) and not stmt.body and not stmt.accs else stmt

    kernels = tuple(k for k in map(Mapper(stmt=drop).on_kernel, program.kernels) if k.body)
    return replace(program, buffers=tuple(b for b in program.buffers if b.id not in dead), kernels=kernels)


PASS = Pass("bodies", "Compute each value once, outside the loops on which it does not depend.", bodies)
