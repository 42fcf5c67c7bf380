"""Every sample program at sizes drawn at random: a proof that is wrong would let an access out of its array.

The interpreter raises `CompilerError` for an access that is neither proved nor checked; a size that a requirement
refuses is no failure, and drawn again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from loopfuse.bind import Given
from loopfuse.diag import Source, UserError
from loopfuse.driver import bind_program, compile_source, execute, lower_program
from loopfuse.verify import violations

ROOT = Path(__file__).parent.parent
SCRIPTS = [p for d in ("tests/scripts", "examples") for p in sorted((ROOT / d).rglob("*.lf")) if p.stem != "nn"]
# Fixed sizes that make one trip or one row too dear for many runs.
SMALLER = {"mandelbrot": {"H": 5, "W": 7, "ITERS": 4}, "23_mandelbrot": {"H": 5, "W": 7, "ITERS": 4},
           "jacobi_2d": {"TSTEPS": 4}, "bilinear_resize": {"HO": 9, "WO": 6}, "gemm_groupnorm_min_bias": {"G": 6},
           "conv_groupnorm_maxpool": {"G": 2}, "int8_group_gemm": {"GS": 2},
           "pca_power": {"ITERS": 4}}  # fmt: skip
MEMORY = 1 << 26


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_random_sizes(path: Path) -> None:
    rng = random.Random(path.stem)
    checked = compile_source(
        Source(path.name, path.read_text("utf-8")), sizes=SMALLER.get(path.stem), search=path.parent
    )
    lowered = lower_program(checked.typed)
    names = [s.id for s in checked.typed.sizes if s.origin == "shape"]
    runs = 0
    for attempt in range(100):
        dims = {name: rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 16]) for name in names}
        try:
            bound = bind_program(checked.typed, Given({}, dims=dims, seed=attempt, fill=True, limit=MEMORY))
            execute(lowered, bound, backend="reference", limit=MEMORY)
        except UserError as refused:
            assert all(d.code.startswith(("LF05", "LF06", "LF0704")) for d in refused.diagnostics), refused
            continue
        runs += 1
        if runs == 5:
            break
    assert runs or not names


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_ranges_hold_in_the_loops_too(path: Path) -> None:
    """The verifier proves again, from the loops alone, what the checker proved from the script."""
    checked = compile_source(Source(path.name, path.read_text("utf-8")), search=path.parent)
    found = {v.invariant for v in violations(lower_program(checked.typed).program, ranges=True)}
    assert found <= ({"in_range"} if path.stem in UNPROVED else set())


# A reshape of one product of sizes into another (N, G, C // G * H * W), whose quotients the verifier cannot split.
UNPROVED = ("conv_groupnorm_residual_lse",)
