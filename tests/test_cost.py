"""What kernels and programs do, in numbers."""

from __future__ import annotations

import pytest
from schedule_programs import program

from loopfuse.analysis.cost import counts, memory, peak_memory, traffic
from loopfuse.analysis.env import environment
from loopfuse.analysis.sketch import sketch
from loopfuse.reader import parse_program


def test_counts_of_a_chain() -> None:
    made = program("chain")
    found = counts(made.kernels[0], *_env(made, {"N": 1000}))
    assert found.loads == {"x": 4000} and found.stores == {"y": 4000}
    assert found.work.special >= 1000 and found.work.flops >= 3000
    assert found.iterations == 1000


def _env(made, sizes):  # type: ignore[no-untyped-def]
    env = environment(made, sizes=sizes)
    return env.buffers, env


def test_equal_reads_count_once_and_own_stores_are_not_read() -> None:
    made = program("layernorm")
    found = counts(made.kernels[0], *_env(made, {"M": 10, "D": 100}))
    assert found.loads == {"x": 4000, "r": 4000, "eps": 4, "g": 400, "b": 400}
    assert found.stores == {"h": 4000, "y": 4000}


def test_an_operation_counts_once_for_each_value_of_its_indices() -> None:
    made = program("softmax")
    found = counts(made.kernels[0], *_env(made, {"M": 8, "N": 100}))
    assert found.work.special == 800 + 800  # exp, and the reciprocal of the division
    assert found.loads == {"x": 3200}


@pytest.mark.parametrize(("sizes", "taps"), [({"H": 64, "W": 64}, 1.0), ({"H": 256, "W": 256}, 1.0)])
def test_taps_overlap(sizes: dict[str, int], taps: float) -> None:
    made = program("blur")
    found = counts(made.kernels[0], *_env(made, sizes))
    assert found.loads == {"img": round(4 * sizes["H"] * sizes["W"] * taps)}


def test_parts_that_do_not_overlap_add_up() -> None:
    made = program("lstm")
    found = counts(made.kernels[0], *_env(made, {"T": 4, "B": 8, "U": 16}))
    assert found.loads["gx"] == 4 * 4 * 8 * 3 * 16  # three of the four gates
    assert found.loads["wh"] == 4 * 16 * 3 * 16


@pytest.mark.parametrize("exponent", ["nan:f32", "inf:f32", "0.3f32", "5.0f32"])
def test_a_power_that_is_not_multiplied_out_is_a_function(exponent: str) -> None:
    made = parse_program(f"program p(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n"
                         f"    y[i] = x[i] ** {exponent}\n")  # fmt: skip
    env = environment(made, sizes={"N": 10})
    assert counts(made.kernels[0], env.buffers, env).work.special > 0


def test_a_triangle_counts_half() -> None:
    made = parse_program("""program tri(N)
buf x: f32[N, N] in
buf y: f32[N] out
kernel k1
  par i < N
    fold j < i + 1
      acc s: f32 sum
      s <- x[i, j] * 2.0f32
    y[i] = s
""")
    env = environment(made, sizes={"N": 1000})
    found = counts(made.kernels[0], env.buffers, env)
    assert found.work.flops == pytest.approx(2 * 1000 * 1000 / 2, rel=0.01)
    level = sketch(made.kernels[0], env.buffers, env).levels[2]
    assert level.trips == {"j": pytest.approx(500, abs=1)} and level.spans["j"] == 1000


TWO = """program two(N)
buf x: f32[N] in
buf t: f32[N]
buf u: f32[N]
buf v: f32[N]
buf y: f32[N] out
kernel k1
  par i < N
    t[i] = x[i] + 1.0f32
kernel k2
  par i < N
    u[i] = t[i] + 1.0f32
kernel k3
  par i < N
    v[i] = u[i] + 1.0f32
kernel k4
  par i < N
    y[i] = v[i] + 1.0f32
"""


def test_lifetimes_of_temporaries() -> None:
    made = parse_program(TWO)
    env = environment(made, sizes={"N": 100})
    found = memory(made, env)
    assert (found.peak, found.temporaries, found.fixed) == (800, 1200, 800)
    assert peak_memory(made, env) == 800
    assert traffic(made, env) == 8 * 400


def test_fusion_shows_in_the_traffic() -> None:
    fused = parse_program("""program one(N)
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par i < N
    y[i] = x[i] + 4.0f32
""")
    env = environment(fused, sizes={"N": 100})
    assert (traffic(fused, env), peak_memory(fused, env)) == (800, 0)


def test_live_values_end_with_their_last_use() -> None:
    lets = "    a0 = x[i]\n" + "".join(f"    a{k} = a{k - 1} + 1.0f32\n" for k in range(1, 200))
    made = parse_program(
        f"program chain(N)\nbuf x: f32[N] in\nbuf y: f32[N] out\nkernel k1\n  par i < N\n{lets}    y[i] = a199\n"
    )
    env = environment(made)
    assert counts(made.kernels[0], env.buffers, env).live <= 3


def test_a_tile_that_is_larger_than_the_array_still_covers_it() -> None:
    program = parse_program("""program p(N, T)
size T plan
buf x: f32[N] in
buf y: f32[N] out
kernel k1
  par i.1 < N step T
    par i in i.1 .. min(N, T + i.1)
      y[i] = x[i] + 1.0f32
""")
    env = environment(program, sizes={"N": 56})
    for tile in (8, 56, 128, 1024):
        assert sketch(program.kernels[0], env.buffers, env, {"T": tile}).total.flops == 56, tile
