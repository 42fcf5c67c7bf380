"""The passes: from the lowered program to the fewest and best kernels, a step at a time."""

from __future__ import annotations

from loopfuse.passes.base import Options, Outcome, Pass, Remark, Steps
from loopfuse.passes.bodies import PASS as BODIES
from loopfuse.passes.cascade import PASS as CASCADE
from loopfuse.passes.constprop import PASS as CONSTPROP
from loopfuse.passes.contract import PASS as CONTRACT
from loopfuse.passes.cse import PASS as CSE
from loopfuse.passes.dce import PASS as DCE
from loopfuse.passes.distribute import PASS as DISTRIBUTE
from loopfuse.passes.fuse import PASS as FUSE
from loopfuse.passes.manager import Stage, insert, run_passes, select
from loopfuse.passes.peephole import PASS as PEEPHOLE
from loopfuse.passes.simplify import PASS as SIMPLIFY
from loopfuse.passes.widen import PASS as WIDEN

__all__ = ["PIPELINE", "Options", "Outcome", "Pass", "Remark", "Stage", "Steps", "pipeline", "register", "run_passes",
           "selection", "unregister"]  # fmt: skip

PIPELINE: tuple[Pass, ...] = (
    CONSTPROP,
    SIMPLIFY,
    DCE,
    CSE,
    DISTRIBUTE,
    FUSE,
    CASCADE,
    CONTRACT,
    BODIES,
    PEEPHOLE,
    WIDEN,
)

_registered: list[tuple[Pass, str | None]] = []


def register(added: Pass, after: str | None = None) -> None:
    """Add a pass of one's own to the default pipeline: after the named one, or at the end. It is verified like others.

    Raises `UserError` LF0821 for a name that no pass has, or that one has already.
    """
    insert(pipeline(), added, after)
    _registered.append((added, after))


def unregister(name: str) -> None:
    """Take a registered pass out again."""
    _registered[:] = [(p, after) for p, after in _registered if p.name != name]


def pipeline() -> tuple[Pass, ...]:
    """The default pipeline: `PIPELINE` with the registered passes."""
    found = PIPELINE
    for added, after in _registered:
        found = insert(found, added, after)
    return found


def selection(text: str = "default") -> tuple[Pass, ...]:
    """The passes that `--passes` names; see `manager.select`."""
    return select(text, pipeline())
