"""The same bits in each of a hundred calls: no result depends on which block or thread comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from gpu_cases import Suite, suites
from test_emit_contractions import SCRIPTS
from test_emit_segments import IN_TURN, wide
from test_gpu_contractions import ARCHES, written_for

from loopfuse import driver
from loopfuse.bind import Bound, Given
from loopfuse.cuda import engine
from loopfuse.cuda.engine import split
from loopfuse.diag import Source
from loopfuse.driver import Lowered, Optimised
from loopfuse.emit.program import EMITTERS
from loopfuse.passes import Options

pytestmark = pytest.mark.gpu
TIMES = 100
SUITES = {s.id: s for s in suites()}
# Together they have a kernel of every emitter.
ALL_EMITTERS = ("tasks/features", "tasks/crc16", "tasks/conv_groupnorm_maxpool", "examples/14_resnet_block")


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


def repeated(optimised: Optimised, bound: Bound) -> set[str]:
    """Call a program a hundred times and compare; the emitters of its kernels."""
    program = optimised.program
    inputs: Mapping[str, Any] = {
        b.id: bound.inputs[b.id] for b in program.buffers if b.role in ("in", "param", "frozen")
    }
    loaded = engine.open_engine().load(program, bound.sizes)
    try:
        arrays, params = split(program, inputs)
        first = {
            name: array.tobytes() for name, array in loaded.call(arrays, params, bound.sizes, to_host=True).items()
        }
        for time in range(2, TIMES + 1):
            again = loaded.call(arrays, params, bound.sizes, to_host=True)
            for name, array in again.items():
                assert array.tobytes() == first[name], f"`{name}` has other bits in call {time}"
        return {kernel.schedule for kernel in loaded.code.kernels}
    finally:
        loaded.close()


def lowered_of(text: str) -> Lowered:
    return driver.lower_program(driver.compile_source(Source("product", text)).typed)


def of_suite(suite: Suite) -> set[str]:
    """The last set of data of a suite, which is the largest."""
    if suite.lowered.program.numerics == "fast":
        pytest.skip("fast numerics may add in any order")
    data = suite.sets(large=True)[-1]
    return repeated(suite.optimised(data.bound), data.bound)


@pytest.mark.parametrize("id", SUITES)
def test_programs(id: str) -> None:
    of_suite(SUITES[id])


def test_every_emitter_is_among_them() -> None:
    seen = {schedule for id in ALL_EMITTERS for schedule in of_suite(SUITES[id])}
    assert seen >= {emitter.__module__.rsplit(".", 1)[-1].rstrip("s") for emitter in EMITTERS.values()} | {"general"}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", [*SCRIPTS, *IN_TURN])
def test_contractions(name: str, arch: str) -> None:
    text, sizes = (SCRIPTS | IN_TURN)[name]
    lowered = lowered_of(text)
    large = {n: 3 * size + 8 if n in "MNK" and size > 8 else size for n, size in sizes.items()}
    fused = wide(sizes) if name in IN_TURN else large
    with written_for(arch):
        bound = driver.bind_program(lowered.typed, Given({}, dims=large, fill=True))
        assert repeated(driver.optimise(lowered, Options(sizes=fused)), bound)
