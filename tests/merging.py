"""Kernels joined without any cost model, to test that joining alone keeps a program's meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from loopfuse.analysis.env import Env, environment
from loopfuse.decisions import Cause
from loopfuse.ir import Kernel, Program
from loopfuse.passes.merge import Merged, abreast, inline, merge
from loopfuse.rewrite import free_names

Way = Callable[[Kernel, Kernel, Env, frozenset[str]], Merged | Cause]


def feeds(first: Kernel, second: Kernel) -> bool:
    """Whether the second kernel reads what the first stores."""
    return not free_names(first.body).stores.isdisjoint(free_names(second.body).loads)


def adjacent(kernels: list[Kernel], siblings: bool) -> Iterator[tuple[int, int]]:
    """The pairs that may be joined: no path leads from one to the other through a third."""
    for a, first in enumerate(kernels):
        for b in range(a + 1, len(kernels)):
            second, between = kernels[b], kernels[a + 1 : b]
            if not any(feeds(k, second) for k in between) and (siblings or feeds(first, second)):
                yield a, b


def join_all(program: Program, siblings: bool = False, sequences: bool = False) -> Program:
    """Every pair of kernels joined that can be; with `sequences` also those that only stand one after the other."""
    env = environment(program)
    live = frozenset(b.id for b in program.buffers)
    kernels = list(program.kernels)
    while True:
        for a, b in adjacent(kernels, siblings):
            made = (abreast if siblings else merge)(kernels[a], kernels[b], env, live)
            if isinstance(made, Merged) and (sequences or made.kind != "block"):
                kernels[a] = made.kernel
                del kernels[b]
                break
        else:
            return replace(program, kernels=tuple(kernels))


def inline_all(program: Program, way: Way = inline) -> Program:
    """Every producer computed again in every reader where that is legal; the producers stay."""
    env: Env = environment(program)
    live = frozenset(b.id for b in program.buffers)
    kernels = list(program.kernels)
    for b, second in enumerate(kernels):
        for a in reversed(range(b)):
            made = way(kernels[a], second, env, live)
            if isinstance(made, Merged):
                second = made.kernel
        kernels[b] = second
    return replace(program, kernels=tuple(kernels))
