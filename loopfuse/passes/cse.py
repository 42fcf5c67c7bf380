"""Common subexpressions: values that are computed twice are computed once, across former operation boundaries."""

from __future__ import annotations

from dataclasses import replace

from loopfuse.analysis.env import environment
from loopfuse.ir import Program
from loopfuse.passes.base import Options, Outcome, Pass, Remark, steps
from loopfuse.passes.nests import merge_nests
from loopfuse.passes.sharing import share

__all__ = ["PASS", "cse"]


def cse(program: Program, options: Options) -> Outcome:
    """Merge equal nests, then equal values inside each kernel.

    Needs: any valid program; best before fusion, where a kernel is one nest.
    Promises: no temporary is a second, dear computation of what another buffer holds (`nests.py` says what is dear), no
    two equal values are computed in one kernel where one dominates the other (`sharing` says what is equal, and what
    laziness forbids), and a value with two uses has a let. No bit changes; two buffers are never merged unless both
    are wholly defined once and equal in every element.
    """
    limit = steps(options, PASS.name)
    merged, remarks = merge_nests(program, limit)
    env = environment(merged, options.device, options.sizes)
    kernels = []
    for kernel in merged.kernels:
        made, said = share(kernel, env, limit)
        kernels.append(made)
        remarks += said
    if all(a is b for a, b in zip(kernels, merged.kernels, strict=True)):
        return Outcome(merged, _unique(remarks))
    return Outcome(replace(merged, kernels=tuple(kernels)), _unique(remarks))


def _unique(remarks: list[Remark]) -> tuple[Remark, ...]:
    return tuple(dict.fromkeys(remarks))


PASS = Pass("cse", "Compute equal values, and equal arrays, once.", cse)
