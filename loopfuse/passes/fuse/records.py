"""Decisions put in words: what was fused and what that saves, what stays apart and why."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause, Decision, Kind, Verdict
from loopfuse.diag import Span
from loopfuse.passes.fuse.candidates import Candidates
from loopfuse.passes.fuse.chains import Step
from loopfuse.passes.fuse.duplicate import Free, Spread
from loopfuse.passes.fuse.graph import Node
from loopfuse.passes.fuse.groups import Group
from loopfuse.passes.fuse.partition import bits
from loopfuse.schedule.plan import Plan

MICRO = 1e6
SHOWN = 3


def chained(step: Step, nodes: Sequence[Node], env: Env, size: int) -> Decision:
    """The record of an elementwise nest that moves in with its reader; `size` is the buffer's bytes."""
    a, b = nodes[step.producer], nodes[step.reader]
    gain = 2 * size / env.device.bandwidth + env.device.graph_launch
    who = "by readers that are one kernel" if step.shared else "by one reader"
    reason = f"`{step.buffer}` is used where it is computed, {who}, and need not go through memory"
    return Decision(0, a.writes, b.writes, "fused", "vertical", reason, gain * MICRO, 0.0, 2 * size, 1,
                    spans=_spans(a, b))  # fmt: skip


def freed(one: Free, env: Env, size: int) -> Decision:
    """The record of a definition that all its readers compute again, since it costs them nothing."""
    readers = tuple(dict.fromkeys(name for r in one.readers for name in r.writes))
    device, count = env.device, len(one.readers)
    narrow = sorted(one.node.reads)
    again = sum(env.buffers[b].dtype.itemsize * size // env.buffers[one.node.writes[0]].dtype.itemsize for b in narrow)
    saved = (1 + count) * size - (count - 1) * again
    many = "its reader computes" if count == 1 else f"each of its {count} readers computes"
    what = f"is `{narrow[0]}` in a wider type" if narrow else "takes a few operations and no memory"
    reason = f"`{one.node.writes[0]}` {what}, so {many} it again"
    return Decision(0, one.node.writes, readers, "fused", "duplicate", reason,
                    (saved / device.bandwidth + device.graph_launch) * MICRO, 0.0, saved, 1,
                    spans=_spans(one.node, *one.readers))  # fmt: skip


def copied(found: Candidates, one: Spread) -> Decision:
    """The record of a definition that stayed alone and is computed again by each group that reads it."""
    saved = found.border(one.group)
    readers = tuple(dict.fromkeys(name for r in one.readers for name in names(found, r)))
    reason = f"{listed(names(found, one.group))} is cheaper to compute again than to write and to read"
    return Decision(0, names(found, one.group), readers, "fused", "duplicate", reason, one.before * MICRO, one.after * MICRO,
                    saved, 1, one.recomputed, spans=spans(found, one.group, *one.readers))  # fmt: skip


def joined(found: Candidates, group: Group, forced: bool) -> Decision:
    """The record of two groups that become one."""
    (first, second), made = group.pair, group.made
    saved = found.border(first) + found.border(second) - found.border(group.mask)
    plan = found.plans.get(id(group))
    before, after = found.seconds(first) + found.seconds(second), found.seconds(group.mask)
    registers = plan.cost.registers if isinstance(plan, Plan) else None
    return Decision(
        0, names(found, first), names(found, second), "forced" if forced else "fused", made.kind,
        _gain(found, first, second, saved), before * MICRO, after * MICRO, saved, 1, made.recomputed, registers,
        spans=spans(found, first, second),
    )  # fmt: skip


def apart(found: Candidates, first: int, second: int, why: Cause | None) -> Decision:
    """The record of two final groups that stay two: `why`, or because one kernel would be slower."""
    before = found.seconds(first) + found.seconds(second)
    whole = first | second
    saved = found.border(first) + found.border(second) - found.border(whole)
    kind: Kind = "vertical" if found.depends(first, second) else "horizontal"
    group = found.group(whole) if why is None else None
    if isinstance(group, Group):
        kind = group.made.kind
    if why is None:
        after = found.seconds(whole)
        plan = found.known(whole)
        reason = f"one kernel would take {_number(after * MICRO)} us, the two take {_number(before * MICRO)} us"
        if isinstance(plan, Plan) and plan.burden:
            reason = f"{reason}: {plan.burden}"
        return Decision(
            0, names(found, first), names(found, second), "costly", kind, reason, before * MICRO, after * MICRO, saved,
            1, group.made.recomputed if isinstance(group, Group) else 0,
            plan.cost.registers if isinstance(plan, Plan) else None,
            Cause("slower", reason, spans=spans(found, first, second)), spans(found, first, second),
        )  # fmt: skip
    verdict: Verdict = "forbidden" if why.code == "nofuse" else "refused"
    return Decision(0, names(found, first), names(found, second), verdict, kind, why.message, before * MICRO, None, saved,
                    1, cause=why, spans=spans(found, first, second))  # fmt: skip


def names(found: Candidates, mask: int) -> tuple[str, ...]:
    """The definitions that a group computes, in an order that depends on structure alone."""
    members = sorted(bits(mask), key=found.order.__getitem__)
    return tuple(dict.fromkeys(name for n in members for name in found.nodes[n].writes))


def spans(found: Candidates, *masks: int) -> tuple[Span, ...]:
    """Where the members of groups come from."""
    return _spans(*(found.nodes[n] for mask in masks for n in sorted(bits(mask), key=found.order.__getitem__)))


def _spans(*nodes: Node) -> tuple[Span, ...]:
    return tuple(dict.fromkeys(n.kernel.span for n in nodes if n.kernel.span is not None))


def _number(value: float) -> str:
    """Three significant digits, whole where there are more before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _gain(found: Candidates, first: int, second: int, saved: int) -> str:
    """What two groups gain as one, in words."""
    between = found.between(first, second)
    if between:
        gone = [name for name in between if name not in found.live(first | second)]
        where = (
            f"{listed(gone)} stay{'s' * (len(gone) == 1)} on chip"
            if gone
            else f"{listed(between)} {'is' if len(between) == 1 else 'are'} read once less"
        )
    else:
        common = sorted(found.reads(first) & found.reads(second), key=lambda b: (-found.bytes(b), b))
        where = f"both read {listed(common)}" if common else "they run side by side"
    if saved > 0:
        return f"{where}, which saves memory traffic and a launch"
    return f"{where}, which saves a launch"


def listed(found: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(f"`{n}`" for n in found[:SHOWN])
    return shown + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
