"""All cases in one list."""

from __future__ import annotations

from tests.oracles import (
    builtins,
    images,
    library,
    matrices,
    more_builtins,
    networks,
    polybench,
    rows,
    sequences,
    shown,
    signals,
    tables,
)
from tests.oracles.core import Case

SCRIPTS: list[Case] = [
    *rows.CASES, *images.CASES, *matrices.CASES, *sequences.CASES, *tables.CASES
]  # fmt: skip
LIBRARY: list[Case] = library.CASES
EXAMPLES: list[Case] = shown.CASES
BUILTINS: list[Case] = [*builtins.CASES, *more_builtins.CASES]
POLYBENCH: list[Case] = polybench.CASES
OUTSIDE: list[Case] = [*signals.CASES, *networks.CASES]
CASES: list[Case] = [*SCRIPTS, *LIBRARY, *EXAMPLES, *BUILTINS, *POLYBENCH, *OUTSIDE]
