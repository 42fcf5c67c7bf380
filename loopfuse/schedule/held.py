"""Whole rows of a product on chip, for what follows them: which products kernels hold so."""

from __future__ import annotations

from collections.abc import Sequence

from loopfuse.schedule.base import Ask
from loopfuse.schedule.products import Product, loads_in
from loopfuse.schedule.tiles import Path

COPIED = 16  # bytes that the rows of an operand must be a multiple of, so that tiles of it can be copied


def unheld(ask: Ask, segments: Sequence[Sequence[Product]], how: Path) -> str | None:
    """Why no cluster of blocks holds whole rows of products, or None: results stay in the registers of warpgroups."""
    if ask.device.kind == "cpu":
        return None
    if not how.name.startswith("wgmma"):
        return "only products by warpgroups, of operands as they lie in memory, hold rows on chip"
    if len(segments) > 1:
        return "rows of several products, one after another, are not held on chip together"
    for u in segments[0]:
        for access in loads_in(ask.sketch, u.owner):
            if access.buffer not in u.a.buffers | u.b.buffers:
                continue
            last = access.polys[-1] if access.polys else None
            if last is None or ask.sketch.shape(access.buffer)[-1] * ask.size(access.buffer) % COPIED:
                return f"the rows of `{access.buffer}` are no multiple of {COPIED} bytes, so that its tiles cannot be copied"
            if how.dtype == "tf32" and not last.names & set(u.k):
                return f"`{access.buffer}` does not lie along the sum, as products of 32 bits that hold rows need it"
    return None
