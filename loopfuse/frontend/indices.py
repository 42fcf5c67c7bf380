"""Short names for loop indices: the checker makes each index unique in the program, a reader wants `i` in every nest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from loopfuse.ir import Kernel, Let, Loop, Program, Stmt
from loopfuse.rewrite import rename, walk


def shorten(program: Program) -> Program:
    """The program with every index of a `par` or `prefix` loop under the shortest id that nothing around it has.

    Indices of loops that do not enclose one another may share an id. Those of `seq` loops keep theirs: windows of
    buffers mention them.
    """
    taken = {s.id for s in program.sizes} | {b.id for b in program.buffers}
    for kernel in program.kernels:
        for stmt in walk(kernel.body):
            if isinstance(stmt, Let):
                taken.add(stmt.id)
            elif isinstance(stmt, Loop):
                taken |= {a.id for a in stmt.accs}
                if stmt.order == "seq":
                    taken |= {d.id for d in stmt.dims}
    return replace(program, kernels=tuple(_kernel(k, taken) for k in program.kernels))


def _kernel(kernel: Kernel, taken: set[str]) -> Kernel:
    names: dict[str, str] = {}
    for old, new in _choices(kernel.body, taken):
        if names.setdefault(old, new) != new:
            return kernel  # one id in two loops, which would need two names
    names = {old: new for old, new in names.items() if old != new}
    return replace(kernel, body=rename(kernel.body, names)) if names else kernel


def _choices(body: tuple[Stmt, ...], taken: set[str]) -> Iterator[tuple[str, str]]:
    """The index of each loop and its new id, loops in order; the stack holds the ids of the loops around."""
    stack: list[tuple[tuple[Stmt, ...], frozenset[str]]] = [(body, frozenset())]
    while stack:
        block, around = stack.pop()
        for loop in block:
            if not isinstance(loop, Loop):
                continue
            inside = set(around)
            for dim in loop.dims if loop.order != "seq" else ():
                base, count = dim.id.split(".")[0], 0
                new = base
                while new in inside or new in taken:
                    count += 1
                    new = f"{base}.{count}"
                inside.add(new)
                yield dim.id, new
            stack.append((loop.body, frozenset(inside)))
