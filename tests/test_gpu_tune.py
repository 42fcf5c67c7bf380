"""Tuning on a GPU: a small product is tuned, its lock file written, and the next run uses it, within the bound and with the
same bits in every call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_shell import Shell
from test_cli_passes import shell as shell_fixture

import loopfuse as lf
from loopfuse import driver
from loopfuse.bench import tuning
from loopfuse.bench.measuring import Subject
from loopfuse.bind import Given
from loopfuse.cuda import engine
from loopfuse.diag import Source
from loopfuse.emit.program import emit, offers
from loopfuse.lock import Entry, Lock, lock_path, read_lock, section_name, write_lock
from loopfuse.passes import Options
from loopfuse.views.compared import bounded, compare, mismatches

pytestmark = pytest.mark.gpu
shell = shell_fixture
TEXTS = {
    "bf16": "input a: bf16[M, K]\ninput b: bf16[K, N]\ninput c: bf16[N]\noutput y = maximum(a @ b + c, 0)\n",
    "tf32": "pragma tf32\ninput a: f32[M, K]\ninput b: f32[K, N]\ninput c: f32[N]\noutput y = a @ b + c\n",
    "f32": "input a: f32[M, K]\ninput b: f32[K, N]\ninput c: f32[N]\noutput y = a @ b + c\n",
}
SIZES = {"M": 520, "N": 392, "K": 264}
DATA = ("a=randn", "b=randn", "c=randn", "--dims", "M=520,N=392,K=264")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)
    yield


@pytest.mark.parametrize("name", TEXTS)
def test_a_product_is_tuned_and_its_lock_used(shell: Shell, name: str) -> None:
    shell.write("s.lf", TEXTS[name])
    assert shell("run", "s.lf", *DATA, "--tune", "--check", "--json", "--print", "none") == 0, shell.err
    (told,) = shell.records("tuned")
    assert len(told["tiles"]) >= 2 and not told["problem"]
    assert all(0 < t["seconds"] < 0.1 for t in told["tiles"])
    assert "differ" not in str(told["left"]), told["left"]
    device = engine.open_engine().device
    found = read_lock(shell.folder / "s.lf.lock", pytest.fail)
    assert found is not None and list(found.sections) == [section_name(device.name, device.arch)]
    assert found.tiles(device.name, device.arch) == {told["digest"]: told["best"]}
    assert shell("run", "s.lf", *DATA, "--print", "none") == 0 and "LF0521" not in shell.err
    assert shell("bench", "s.lf", "--dims", DATA[-1], "--min-time", "0.02") == 0 and "LF0521" not in shell.err


@pytest.mark.parametrize("name", TEXTS)
def test_every_tile_that_is_timed_is_within_the_bound(name: str, tmp_path: Path) -> None:
    """And gives the same bits in every call, through the lock file as it would be used."""
    lowered = driver.lower_program(driver.compile_source(Source("product", TEXTS[name])).typed)
    bound = driver.bind_program(lowered.typed, Given({}, dims=SIZES, seed=3, fill=True))
    (tuned,) = tuning.tune(Subject("product", lowered, bound))
    gpu = engine.open_engine()
    section = section_name(gpu.device.name, gpu.device.arch)
    expected = bounded(lowered, bound)
    optimised = driver.optimise(lowered, Options(sizes=SIZES, device=gpu.model))
    for timed in tuned.timed:
        lock = Lock(tmp_path, pytest.fail, {section: {tuned.digest: Entry(timed.tile, 1.0, "", 1.0)}})
        first, again = (driver.execute(optimised, bound, backend="cuda", lock=lock).buffers for _ in range(2))
        for id, array in first.items():
            assert np.array_equal(array.view(np.uint8), again[id].view(np.uint8)), (
                f"{timed.tile} differs from call to call"
            )
        wrong = mismatches(compare(lowered, expected, first))
        assert not wrong, f"{timed.tile}: {wrong[0]}"


def test_a_lock_of_this_device_directs_python(tmp_path: Path) -> None:
    path = tmp_path / "s.lf"
    path.write_text(TEXTS["bf16"])
    gpu = engine.open_engine()
    low = lf.parse(path).lower()
    program = low.optimise(dims=SIZES).after("last")
    model = emit(program, SIZES, gpu.model).chosen[0]
    other = next(
        name for name in offers(program, SIZES, gpu.model)[model.digest] if name != model.tile
        and emit(program, SIZES, gpu.model, tiles={model.digest: name}).chosen[0].tile == name
    )  # fmt: skip
    entry = Entry(other, 1.0, model.tile, 1.0)
    write_lock(lock_path(path), {section_name(gpu.device.name, gpu.device.arch): {model.digest: entry}})
    made = lf.compile(path)
    rng = np.random.default_rng(0)
    arrays = driver.bind_program(low._lowered.typed, Given({}, dims=SIZES, seed=int(rng.integers(9)), fill=True)).inputs
    made(*(arrays[i.name] for i in low.program.inputs), backend="cuda")
    ((loaded, _),) = made._accelerated._known.values()
    assert [c.tile for c in loaded.code.chosen] == [other]
