"""What a program consists of, and what it moves: counts from the IR alone, with numbers for its sizes.

The bytes are those of the loop IR as it stands: each kernel reads each element that it needs once and writes what it
stores to device memory. What a schedule reads twice, or a cache spares, is the cost model's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loopfuse.analysis.cost import memory
from loopfuse.analysis.env import assume, environment
from loopfuse.ir import Load, Loop, Op, Program, Store
from loopfuse.memory import show_bytes
from loopfuse.rewrite import nodes, walk_program
from loopfuse.views.tables import amount, table


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of each there is. `bytes` go between the kernels and device memory; `peak` are allocated at once."""

    kernels: int
    loops: int
    folds: int
    operations: int
    loads: int
    stores: int
    lets: int
    buffers: int
    bytes: int
    peak: int


def count(program: Program, sizes: Mapping[str, int]) -> Counts:
    """The counts of a program, with a number for every size."""
    loops = folds = stores = lets = 0
    for stmt in walk_program(program):
        if isinstance(stmt, Loop):
            loops += 1
            folds += bool(stmt.accs)
        elif isinstance(stmt, Store):
            stores += not stmt.absorb
        else:
            lets += 1
    operations = loads = 0
    for node in nodes(program):
        operations += isinstance(node, Op)
        loads += isinstance(node, Load)
    held = memory(program, environment(program, sizes=sizes))
    return Counts(len(program.kernels), loops, folds, operations, loads, stores, lets, len(program.buffers),
                  held.traffic, held.fixed + held.peak)  # fmt: skip


def numbers(program: Program, known: Mapping[str, int]) -> tuple[dict[str, int], frozenset[str]]:
    """A number for every size, in the order of their declaration, and the names of those that are stand-ins."""
    found, assumed = assume(program, known)
    return {s.id: found[s.id] for s in program.sizes if s.id in found}, assumed


# -- text -------------------------------------------------------------------------------------------------------------

_ROWS = (
    ("kernels", "kernels"), ("loops", "loops"), ("folds", "folds"), ("operations", "operations"), ("loads", "loads"),
    ("stores", "stores"), ("lets", "lets"), ("buffers", "buffers"), ("bytes", "bytes moved"), ("peak", "peak memory"),
)  # fmt: skip


def stats(before: Counts, after: Counts) -> list[str]:
    """A table of two counts and their difference."""
    rows = []
    for key, label in _ROWS:
        old, new = getattr(before, key), getattr(after, key)
        show: Callable[[int], str] = show_bytes if key in ("bytes", "peak") else amount
        rows.append((label, show(old), show(new), _change(old, new, show)))
    return table(("", "before", "after", "change"), rows, "lrr")


def _change(old: int, new: int, show: Callable[[int], str]) -> str:
    """`-75%`; where the share says little, the amount."""
    if old == new:
        return "="
    share = abs(new - old) / old if old else 0
    return ("+" if new > old else "-") + (f"{share:.0%}" if share >= 0.005 else show(abs(new - old)))
