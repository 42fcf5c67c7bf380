"""What generated programs reached: passes that changed something, rules, schedules, operations at each type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from loopfuse.dtypes import DTYPES
from loopfuse.ir import Loop, Op, Program
from loopfuse.ops import MONOIDS, OPS
from loopfuse.passes import Stage, Steps, pipeline
from loopfuse.passes.laws import LAWS
from loopfuse.passes.peephole import specs as strength
from loopfuse.passes.simplify import specs as simplifications
from loopfuse.rewrite import exprs, subexprs, walk_program
from loopfuse.schedule import SCHEDULES
from loopfuse.testing.unreachable import UNREACHABLE
from loopfuse.views.tables import table

KINDS = ("pass", "rule", "schedule", "op", "fold")
TITLES = {
    "pass": "passes that changed something", "rule": "rules applied", "schedule": "schedules used",
    "op": "operations at types", "fold": "reductions at types",
}  # fmt: skip
RULE_PASSES = ("simplify", "peephole")
SHOWN = 12  # of what was not reached


def of_program(program: Program) -> Counter[str]:
    """The operations and reductions of a program, each once."""
    found: set[str] = set()
    for stmt in walk_program(program):
        if isinstance(stmt, Loop):
            found.update(f"fold {a.monoid} {a.dtype}" for a in stmt.accs)
        for node in subexprs(*exprs(stmt)):
            if isinstance(node, Op):
                at = f"{node.args[0].dtype} {node.dtype}" if OPS[node.op].gives == "explicit" else _operand(node)
                found.add(f"op {node.op} {at}")
    return Counter(found)


def _operand(node: Op) -> str:
    return str(node.args[-1].dtype)


def of_stages(stages: Iterable[Stage], steps: Mapping[str, Steps]) -> Counter[str]:
    """The passes that changed something, the rules that they applied, and the schedules of the kernels."""
    found: Counter[str] = Counter()
    for stage in stages:
        if stage.changed:
            found[f"pass {stage.name}"] += 1
        for plan in stage.notes.get("plans", {}).values():
            found[f"schedule {plan.schedule}"] += 1
    known = universe()["rule"]
    for counter in steps.values():
        for line in counter.log:
            name = f"rule {line.partition(':')[0]}"
            if name in known:
                found[name] += 1
    return found


@cache
def universe() -> Mapping[str, frozenset[str]]:
    """All that there is to reach, by kind."""
    rules = (*(s.name for s in (*simplifications(), *strength())), *(r.name for r in LAWS))
    return {
        "pass": frozenset(f"pass {p.name}" for p in pipeline()),
        "rule": frozenset(f"rule {name}" for name in rules),
        "schedule": frozenset(f"schedule {name}" for name in SCHEDULES),
        "op": frozenset(_operations()),
        "fold": frozenset(
            f"fold {m.name} {d}"
            for m in MONOIDS.values()
            for d in DTYPES.values()
            if d.kind in m.kinds and d.kind in OPS[m.op].kinds
        ),
    }


def _operations() -> Iterable[str]:
    for row in OPS.values():
        for dtype in DTYPES.values():
            if dtype.kind not in row.kinds:
                continue
            if row.gives != "explicit":
                yield f"op {row.name} {dtype}"
                continue
            for to in DTYPES.values():
                if to != dtype and row.problem((dtype,), to) is None:
                    yield f"op {row.name} {dtype} {to}"


def reached(counts: Mapping[str, int], kind: str) -> tuple[int, int]:
    """How many of a kind were reached, and of how many that can be."""
    every = universe()[kind] - UNREACHABLE.keys()
    return sum(counts.get(name, 0) > 0 for name in every), len(every)


def missing(counts: Mapping[str, int], kind: str) -> list[str]:
    """What of a kind was not reached, and is not known to be unreachable."""
    return sorted(name.partition(" ")[2] for name in universe()[kind] - UNREACHABLE.keys() if not counts.get(name, 0))


def unreachable(kind: str) -> dict[str, str]:
    """What of a kind no script reaches, and why."""
    return {name.partition(" ")[2]: why for name, why in UNREACHABLE.items() if name.partition(" ")[0] == kind}


def coverage_table(counts: Mapping[str, int], whole: bool = False) -> list[str]:
    """A line a kind: how many were reached, and which were not (`whole`: all of them). What is unreachable is left out."""
    rows = []
    for kind in KINDS:
        some, every = reached(counts, kind)
        left = missing(counts, kind)
        shown = left if whole else left[:SHOWN]
        more = f", .. ({len(left) - len(shown)} more)" if len(left) > len(shown) else ""
        rows.append((TITLES[kind], f"{some} of {every}", ", ".join(shown) + more))
    return table(("coverage", "reached", "not reached"), rows, right=" r", width=110)
