"""A plan as its kernel was written: roles, trees, operations and rounding of the code, and in words where the plan was another.

An emitter is given a plan and chooses again what depends on how the kernel is laid out: instructions that its operands allow,
tiles, how many parts a sum is cut into, how many threads share a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopfuse.emit.code import Chosen, Code, KernelCode, Tiling
from loopfuse.schedule.plan import Plan, Role

_ROWS = re.compile(r"rows by (?:(\d+) blocks of )?(\d+) threads each")  # as the emitter of rows says it
_TREE = re.compile(r"vector, lanes(?:, block)?(?:, cluster)?")
_TILES = "exact: tiles of "
_COPIES, _IN_MEMORY = "private copies, block, workspace", "updates in device memory"
_WARP = 32


def as_written(plan: Plan, functions: Sequence[KernelCode]) -> Plan:
    """The plan with what the functions of its kernel do in place of what was planned; the same one where they agree."""
    tilings = [f.tiling for f in functions if f.tiling is not None]
    if tilings:
        return _of_tiles(plan, tilings)
    if plan.schedule == "row" and (found := next((m for f in functions if (m := _ROWS.match(f.why))), None)):
        return _of_rows(plan, int(found[1] or 1), int(found[2]))
    if plan.schedule == "scatter" and functions:
        return _of_updates(plan, any("device memory" in f.why for f in functions))
    return plan


def planned(plan: Plan, code: Code, kernel: str) -> str:
    """What of a plan was not written so, and why; "" where the code follows it. `plan` is the schedule's."""
    functions = [f for f in code.kernels if f.kernel == kernel]
    tilings = [f.tiling for f in functions if f.tiling is not None]
    if tilings:
        chosen = next((c for c in code.chosen if c.kernel == kernel), None)
        return _other_tiles(plan, tilings, chosen)
    mine = as_written(plan, functions)
    if plan.schedule == "row" and (mine.roles, mine.folds) != (plan.roles, plan.folds):
        threads, blocks = plan.tiles.get("threads a row", _WARP), plan.tiles.get("cluster", 1)
        several = f"{blocks} blocks of " * (blocks > 1)
        return f"rows by {several}{threads} threads; the emitter reckons by elements"
    if plan.schedule == "scatter" and mine.folds != plan.folds:
        return f"{', '.join(dict.fromkeys(plan.folds.values()))}; the emitter knows of no room for that"
    return ""


def tiles_differ(plan: Plan, tilings: Sequence[Tiling]) -> bool:
    """Whether products are taken in other tiles than planned, so that the traffic of the plan is not theirs."""
    return any((t.rows, t.columns) != (plan.tiles.get("rows"), plan.tiles.get("columns")) for t in tilings)


# -- products ---------------------------------------------------------------------------------------------------------


def family(path: str) -> str:
    """The instructions of a path, in a plan's words or a tiling's: `wgmma tf32`, `mma.sync`, `fma`."""
    first = "fma" if path.startswith("multiply-adds") else path.split()[0]
    return f"{first} tf32" if "tf32" in path else first


def _of_tiles(plan: Plan, tilings: Sequence[Tiling]) -> Plan:
    cost = plan.cost
    products = sum(t.operations for t in tilings if t.matrix) if any(t.matrix for t in tilings) else 0
    matrix = min(cost.matrix_flops, products)
    cost = replace(cost, flops=cost.flops + cost.matrix_flops - matrix, matrix_flops=matrix)
    role: Role = "split" if any(t.split > 1 for t in tilings) else "serial"
    sums = {i: role if was in ("split", "serial") else was for i, was in plan.roles.items()}
    return replace(plan, cost=cost, roles=sums, folds=_of_sums(plan.folds, tilings), rounding=_rounding(plan, tilings))


def _of_sums(folds: Mapping[str, str], tilings: Sequence[Tiling]) -> dict[str, str]:
    depths = " or ".join(map(str, sorted({t.depth for t in tilings})))
    how = [("cluster" if t.path.startswith("wgmma") else "workspace") for t in tilings if t.split > 1]
    text = ", ".join([f"{_TILES}{depths}", *dict.fromkeys(how)])
    return {id: text if was.startswith(_TILES) else was for id, was in folds.items()}


def _rounding(plan: Plan, tilings: Sequence[Tiling]) -> tuple[str, ...]:
    """What of the plan's rounding the code does, with the parts that sums are really cut into."""
    said = []
    matrix = next((t for t in tilings if t.matrix), None)
    for what in plan.rounding:
        if what.startswith("sum cut into "):
            continue
        if what == "operands rounded to tf32" and not any("tf32" in t.path for t in tilings):
            continue
        if what.startswith("operands computed before the product rounded"):
            if matrix is None:
                continue
            what = f"operands computed before the product rounded to {matrix.dtype}"
        said.append(what)
    parts = sorted({t.split for t in tilings if t.split > 1})
    return (*said, f"sum cut into {' or '.join(map(str, parts))}") if parts else tuple(said)


def _other_tiles(plan: Plan, tilings: Sequence[Tiling], chosen: Chosen | None) -> str:
    tile = f"tiles of {plan.tiles.get('rows')} x {plan.tiles.get('columns')}"
    parts = plan.tiles.get("split", 1)
    ways = any(family(t.path) != family(plan.path) for t in tilings) if plan.path else False
    said = [plan.path] * ways + [tile] * tiles_differ(plan, tilings)
    said += [f"sums in {parts} parts" if parts > 1 else "sums in one part"] * any(t.split != parts for t in tilings)
    if not said:
        return ""
    if chosen is not None and chosen.wanted and not chosen.why:
        why = "the tile is the lock file's"
    elif ways:
        why = "below stands why not"
    else:
        why = "the emitter's are faster by its model"
    return f"{', '.join(said)}; {why}"


# -- rows and updates -------------------------------------------------------------------------------------------------


def _of_rows(plan: Plan, blocks: int, threads: int) -> Plan:
    warp = blocks == 1 and threads <= _WARP
    role: Role = "lane" if warp else "block"
    roles = {i: role if was in ("lane", "block") else was for i, was in plan.roles.items()}
    tree = "vector, lanes" + ", block" * (threads > _WARP) + ", cluster" * (blocks > 1)
    return replace(plan, roles=roles, folds={id: _TREE.sub(tree, was) for id, was in plan.folds.items()})


def _of_updates(plan: Plan, memory: bool) -> Plan:
    def how(was: str) -> str:
        if memory:
            return was if was == "atomics" else _IN_MEMORY
        return _COPIES

    return replace(plan, folds={id: how(was) for id, was in plan.folds.items()})
