"""Indices that take one value, as that value: an axis of one element is read and written at 0 by everyone alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopfuse.ir import Dim, Loop, Program, Stmt
from loopfuse.rewrite import Substitution
from loopfuse.sizes import ONE

Take = Callable[[str], bool]


def single_trips(program: Program, take: Take) -> Program:
    """The program without the loop indices that take one value whatever the sizes; the same object without any.

    Loops in order stay as they are, and so does an index that a window names; a fold keeps one index: its
    accumulators need a loop.
    """
    held = {n for b in program.buffers for low, high in b.window or () for p in (*low, *high) for n in p.names}

    def wanted(name: str) -> bool:
        return name not in held and take(f"`{name}` takes one value")

    kernels = tuple(
        kernel if (body := _block(kernel.body, wanted)) is kernel.body else replace(kernel, body=body)
        for kernel in program.kernels
    )
    same = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if same else replace(program, kernels=kernels)


def _block(body: tuple[Stmt, ...], take: Take) -> tuple[Stmt, ...]:
    made: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            made += _loop(stmt, take)
        else:
            made.append(stmt)
    return body if len(made) == len(body) and all(a is b for a, b in zip(made, body, strict=True)) else tuple(made)


def _loop(loop: Loop, take: Take) -> tuple[Stmt, ...]:
    body = _block(loop.body, take)
    if body is not loop.body:
        loop = replace(loop, body=body)
    once = [d for d in loop.dims if _once(d)] if loop.order == "par" else []
    if len(once) == len(loop.dims) and (loop.accs or loop.where is not None):
        once = once[1:]
    once = [d for d in once if take(d.id)]
    if not once:
        return (loop,)
    gone = {d.id: d.lo[0] for d in once}
    kept = tuple(d for d in loop.dims if d.id not in gone)
    at = Substitution(indices=gone)
    if not kept:
        return at.body(loop.body)
    inner = replace(loop, dims=kept)
    return at.body((inner,))


def _once(dim: Dim) -> bool:
    """Whether the index is its lower bound, whatever the sizes and the indices around."""
    return len(dim.lo) == len(dim.hi) == 1 and dim.step == ONE and dim.hi[0] - dim.lo[0] == ONE
