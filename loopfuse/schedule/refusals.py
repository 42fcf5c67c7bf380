"""Refusals that several schedules give, in the user's words."""

from __future__ import annotations

from loopfuse.analysis.sketch import Access, Level
from loopfuse.diag import Span
from loopfuse.schedule.base import Ask, refuse
from loopfuse.schedule.plan import Refusal


def span_of(level: Level) -> Span | None:
    """Where a loop comes from."""
    return level.loop.span if level.loop is not None else None


def subscript(access: Access) -> str:
    """An access as the program writes it."""
    return f"{access.buffer}[{', '.join('?' if p is None else str(p) for p in access.polys)}]"


def no_band(name: str, ask: Ask) -> Refusal:
    """No loop that encloses everything."""
    loops = ask.sketch.root.children
    if len(loops) > 1:
        return refuse(
            name, 0, "barrier", f"{ask.title}: {len(loops)} loops that follow one another share no outer parallel "
            "loop, so one part waits for all of another", ask, lift="a common outer index",
        )  # fmt: skip
    return refuse(name, 0, "grid", f"{ask.title}: the outermost loop is not parallel", ask)


def ordered(name: str, passed: int, ask: Ask, level: Level) -> Refusal:
    """A loop whose iterations follow one another."""
    index = next(iter(level.trips), "?")
    return refuse(
        name, passed, "recurrence", f"{ask.title}: the iterations of `{index}` follow one another", ask,
        span=span_of(level),
    )  # fmt: skip


def barrier(name: str, passed: int, ask: Ask, clash: tuple[str, Access, Access]) -> Refusal:
    """One block would read what another writes."""
    buffer, w, r = clash
    return refuse(
        name, passed, "barrier", f"`{buffer}` is read at elements that other blocks compute, and blocks do not wait "
        "for one another", ask, detail=f"written as {subscript(w)}, read as {subscript(r)}",
        lift="subscripts that agree in every parallel index, or a kernel of its own", span=r.span,
    )  # fmt: skip
