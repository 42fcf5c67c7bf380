"""Names of scripts that emitted kernels use themselves: the results are those of the reference, on the CPU."""

from __future__ import annotations

import pytest
from compiled_checks import trouble
from emulator import available
from gpu_cases import Data, Suite
from test_emulated_programs import run, run_small

from loopfuse import driver
from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.driver import compile_source, lower_program
from loopfuse.emit.names import Names

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

# Beside loops over vectors (`u`) and their elements (`e`, `k`); vectors of a row (`w_part`, `y_made`).
SCRIPTS = {
    "map": "input u: f32[M, N]\ninput column: f32[N]\ninput e: f32[N]\noutput row[i, j] = u[i, j] * column[j] + e[j]",
    "map writes": "input x: f32[M, N]\ninput w: f32[N]\noutput u[i, j] = x[i, j] * w[j]",
    "tile": "input u: f32[M, N]\ninput k: f32[M]\noutput e[j, i] = u[i, j] * k[i]\noutput tile[j, i] = u[i, j] + 3",
    "row": "input x: f32[M, N]\ninput w: f32[N]\nlet s[b] = sum(x[b, j] for j)\n"
           "output w_part[b, j] = x[b, j] * w[j] - s[b]",
    "row reads": "input x: f32[M, N]\ninput w: f32[N]\ninput w_part: f32[N]\nlet s[b] = sum(x[b, j] for j)\n"
                 "output y[b, j] = x[b, j] * w[j] - s[b] * w_part[j]",
    "row writes": "input x: f32[M, N]\nlet s[b] = sum(x[b, j] for j)\n"
                  "output y[b, j] = x[b, j] - s[b]\noutput y_made[b, j] = x[b, j] * s[b]",
}  # fmt: skip


@pytest.mark.parametrize("extents", [(64, 1024), (33, 258), (9, 40)], ids=str)
@pytest.mark.parametrize("name", SCRIPTS)
def test_names_of_a_script_hide_nothing(name: str, extents: tuple[int, int]) -> None:
    lowered = lower_program(compile_source(Source("t.lf", SCRIPTS[name])).typed)
    given = Given({}, {}, dict(zip("MN", extents, strict=True)), fill=True)
    suite = Suite(name, lambda: lowered, lambda program, large: iter(()))
    data = Data("", driver.trial_data(lowered.typed, given)[0][0].bound)
    for device in (run, run_small):
        assert not trouble(suite, data, device, twice=False)


def test_what_lasts_has_no_name_of_a_local_variable() -> None:
    names = Names()
    local = names.fresh("x.part")
    names.free(local)
    assert names.fresh("x.part") == local
    names.free(local)
    assert names.lasting("x_part") != local
    assert names("x_part") not in (local, names.lasting("x_part"))
