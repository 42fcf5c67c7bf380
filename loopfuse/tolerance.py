"""How far results may be from those expected, where the caller says so in place of the derived bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.dtypes import of_numpy
from loopfuse.generate import Array
from loopfuse.oprow import spacing


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`|found - expected| <= atol + rtol * |expected| + ulp * (distance of neighbouring numbers there)`, as far as given.

    Integers and bools must be equal, an infinity the same one; all NaNs are one.
    """

    rtol: float | None = None
    atol: float | None = None
    ulp: float | None = None

    @property
    def given(self) -> bool:
        """Whether anything is said."""
        return self.rtol is not None or self.atol is not None or self.ulp is not None

    def allowed(self, expected: Array) -> Array:
        """The distance that each element may have, as f64."""
        wide = np.abs(np.asarray(expected, dtype=np.float64))
        dtype = of_numpy(expected.dtype)
        assert dtype is not None
        steps = (self.ulp or 0.0) * spacing(wide, dtype) if self.ulp else 0.0
        return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * wide + steps)

    def wrong(self, found: Array, expected: Array) -> Array:
        """Where an element is too far off."""
        dtype = of_numpy(expected.dtype)
        with np.errstate(all="ignore"):
            same: Any = (found == expected) | ((found != found) & (expected != expected))
            if dtype is None or not dtype.is_float:
                return np.asarray(~same)
            gap = np.abs(np.asarray(found, dtype=np.float64) - np.asarray(expected, dtype=np.float64))
            near = np.isfinite(gap) & (gap <= self.allowed(expected))
        return np.asarray(~(same | near))
