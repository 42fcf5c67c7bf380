"""Subscripts outside an axis: what each mode makes of them, for every integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loopfuse.ir import ModeKind

Inside = Any
Resolve = Callable[[Any, int], tuple[Any, Inside]]


def _clip(at: Any, extent: int) -> tuple[Any, Inside]:
    return np.clip(at, 0, extent - 1), None


def _wrap(at: Any, extent: int) -> tuple[Any, Inside]:
    return np.remainder(at, extent), None


def _reflect(at: Any, extent: int) -> tuple[Any, Inside]:
    if extent == 1:
        return np.zeros_like(at), None
    period = 2 * extent - 2
    place = np.remainder(at, period)
    return np.minimum(place, period - place), None


def _symmetric(at: Any, extent: int) -> tuple[Any, Inside]:
    period = 2 * extent
    place = np.remainder(at, period)
    return np.minimum(place, period - 1 - place), None


def _inside(at: Any, extent: int) -> tuple[Any, Inside]:
    inside = (at >= 0) & (at < extent)
    return np.where(inside, at, 0), inside


RESOLVE: dict[ModeKind, Resolve] = {
    "edge": _clip,
    "wrap": _wrap,
    "reflect": _reflect,
    "symmetric": _symmetric,
    "constant": _inside,
    "checked": _inside,
}
"""For each mode: the subscript to use, given any subscripts (i64) and an extent of at least 1 (any extent for
`constant` and `checked`), and where the element is really read (None: everywhere)."""
