"""Functions that NumPy lacks, on f64 arrays."""

from __future__ import annotations

import math

import numpy as np

from loopfuse.numerics import Array


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def erfc(x: Array) -> Array:
    """`1 - erf(x)`, accurate where that is small."""
    return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(x))


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))` without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))
