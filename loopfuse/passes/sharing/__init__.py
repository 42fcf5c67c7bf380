"""Sharing of values inside a kernel: each one computed once, as a let, and with `hoist` as far out as is legal."""

from __future__ import annotations

from loopfuse.analysis.env import Env
from loopfuse.ir import Kernel, Load
from loopfuse.passes.base import Remark, Steps
from loopfuse.passes.sharing.emit import Emit
from loopfuse.passes.sharing.place import Place, Sharing, shown
from loopfuse.passes.sharing.values import Values

__all__ = ["share"]


def share(
    kernel: Kernel, env: Env, steps: Steps, hoist: bool = False, prune: bool = False
) -> tuple[Kernel, list[Remark]]:
    """A kernel in which no two equal values are computed where one dominates the other, and what to say of it.

    A value that occurs again becomes a let at its first occurrence. What is read under a guard (the arm of a select,
    the right side of `and` and `or`, a loop with `where`) is read outside only where all its loads are proved in range
    there; operations are total, so that those alone may always move. An access that may report a fault stays and
    is never shared. Floats from which an i64 is made stay written out: proofs about subscripts read them.

    With `hoist` a value that has an operation, or a load without subscripts, moves before the outermost loop that it
    does not depend on, where its loads are proved in range there, their buffers are not stored to in the loops that it
    leaves, and their windows do not move with them; nothing that depends on an accumulator in progress moves. With
    `prune` lets that nothing uses go.
    """
    values = Values(kernel)
    if not (values.repeats or (hoist and values.nested) or (prune and values.lets)):
        return kernel, []
    sharing = Sharing(values, env, steps, hoist)
    made = Emit(sharing, prune).kernel()
    if made is kernel:
        return kernel, []
    return made, [r for places in sharing.listed.values() for place in places for r in _remarks(place)]


def _remarks(place: Place) -> list[Remark]:
    found: list[Remark] = []
    if not place.uses or (place.times < 2 and place.moved is None):
        return found
    text, done = f"`{place.text or shown(place.node)}`", "read" if isinstance(place.node, Load) else "computed"
    if place.times > 1:
        times = "twice" if place.times == 2 else f"{place.times} times"
        found.append(Remark(f"{text} is {done} once instead of {times}", place.span))
    if place.moved is not None:
        names = ", ".join(f"`{d.id}`" for d in place.moved.dims)
        found.append(Remark(f"{text} is {done} before the loop over {names}, on which it does not depend", place.span))
    return found
