"""The runtime on a GPU: calls, replays, arrays of other libraries, failures, threads, and that nothing is left behind.

The kernels are written by hand, so that nothing here depends on what the compiler emits.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_programs import (
    CLUSTER,
    COUNT,
    EDGES,
    FAULTY,
    MANY,
    SCALE,
    SHARED,
    SUM,
    TWICE,
    load,
)

from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.bound import bind
from loopfuse.cuda.calls import DriverError
from loopfuse.cuda.commands import commands
from loopfuse.cuda.context import Device, open_device
from loopfuse.cuda.measure import load_calibration, measure, store_calibration
from loopfuse.cuda.nvml import Meter
from loopfuse.cuda.timing import energy
from loopfuse.diag import CompilerError, MachineError, UserError

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # what other libraries warn of is theirs
SLACK = 4 << 20  # what the driver may keep for itself


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


def settled(device: Device) -> int:
    """Bytes that are free once all that is unused was given back."""
    gc.collect()
    device.trim()
    return device.free_memory()


def floats(n: int, start: float = 0.0) -> Any:
    return (np.arange(n, dtype=np.float32) % 1000) + np.float32(start)


def twice(x: Any, y: Any, s: float) -> Any:
    return np.float32(s) * (np.float32(s) * x + y) + y


@pytest.fixture
def streams(device: Device) -> Any:
    """Streams that do not wait for the default one."""
    from cuda.bindings import driver as cu

    with device.active():
        made = [cu.cuStreamCreate(1)[1] for _ in range(4)]
    yield [int(s) for s in made]
    with device.active():
        for stream in made:
            cu.cuStreamSynchronize(stream)
            cu.cuStreamDestroy(stream)


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 1000, 1 << 20])
def test_numpy_goes_in_and_comes_out(device: Device, n: int) -> None:
    program = load(device, TWICE)
    x, y = floats(n), floats(n, 3)
    found = program.call({"x": x, "y": y}, {"s": np.float32(2)}, {"N": n}, to_host=True)
    np.testing.assert_array_equal(found["z"], twice(x, y, 2))


@pytest.mark.parametrize("how", ["graph", "direct"])
def test_replays_follow_pointers_and_params(device: Device, how: Any) -> None:
    n = 4097
    program = load(device, TWICE)
    x, y = floats(n), floats(n, 3)
    bound = bind(program, {"x": x, "y": y}, {"s": 2.0}, {"N": n}, how=how)
    assert bound.kind == how
    np.testing.assert_array_equal(bound()["z"].numpy(), twice(x, y, 2))
    other = to_device(device, floats(n, 7))
    bound.rebind(x=other, params={"s": 3.0})
    z = bound()["z"]
    np.testing.assert_array_equal(z.numpy(), twice(floats(n, 7), y, 3))
    target = to_device(device, np.zeros(n, np.float32))
    before = z.numpy()
    bound.rebind(out={"z": target}, params={"s": 1.0})
    for _ in range(20):
        bound()
    np.testing.assert_array_equal(target.numpy(), twice(floats(n, 7), y, 1))
    np.testing.assert_array_equal(z.numpy(), before)


def test_a_replay_costs_the_host_little(device: Device) -> None:
    program = load(device, TWICE)
    x = to_device(device, floats(64 * 256))
    for how in ("graph", "direct"):
        bound = bind(program, {"x": x, "y": x}, {"s": 1.0}, {"N": 64 * 256}, how=how)
        timing = bound.time()
        print(f"{how}: submit {timing.submit * 1e6:.2f} us, host {timing.host * 1e6:.2f} us, "
              f"GPU {timing.median * 1e6:.2f} us")  # fmt: skip
        assert timing.submit < 30e-6
        assert 0 < timing.median < 1e-3


def test_one_launch_and_very_many(device: Device) -> None:
    assert bind(load(device, SCALE), {"x": floats(10)}, sizes={"N": 10}).kind == "direct"
    program = load(device, MANY)
    for times, kind in ((3, "graph"), (20_003, "portions")):
        bound = bind(program, {}, sizes={"T": times})
        assert bound.kind == kind
        assert bound()["z"].numpy()[0] == times
        assert program.call({}, sizes={"T": times}, to_host=True)["z"][0] == times


def test_params_of_every_width_and_many_arguments(device: Device) -> None:
    params = {"h": np.float16(1.5), "b": ml_dtypes.bfloat16(2.5), "d": np.float64(-3.25), "q": np.int64(-(1 << 40)),
              "c": np.int8(-7), "t": np.bool_(True)}  # fmt: skip
    found = load(device, EDGES).call({}, params, to_host=True)["z"]
    np.testing.assert_array_equal(found, [1.5, 2.5, -3.25, -float(1 << 40), -7, 1, -1, -2])


def test_much_shared_memory(device: Device) -> None:
    for how in ("graph", "direct"):
        bound = bind(load(device, SHARED), {}, how=how)
        assert bound()["z"].numpy()[0] == 50_000


@pytest.mark.parametrize("blocks", [4, 16])
@pytest.mark.parametrize("how", ["graph", "direct"])
def test_clusters(device: Device, blocks: int, how: Any) -> None:
    if device.capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    bound = bind(load(device, CLUSTER[blocks]), {}, how=how)
    np.testing.assert_array_equal(bound()["z"].numpy(), np.tile(np.arange(blocks), 2))


def test_faults_are_counted_for_each_call(device: Device) -> None:
    program = load(device, FAULTY)
    for n in (5, 300):
        assert program.call({}, sizes={"N": n}).faults == (n, 0, 2 * n)
    bound = bind(program, {}, sizes={"N": 9})
    for _ in range(3):
        bound()
    assert bound.faults() == (9, 0, 18)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(device: Device) -> None:
    def use() -> None:
        program = load(device, TWICE)
        x = floats(1 << 16)
        for how in ("graph", "direct"):
            bound = bind(program, {"x": x, "y": x}, {"s": 1.0}, {"N": 1 << 16}, how=how)
            for _ in range(50):
                bound()
                program.call({"x": x, "y": x}, {"s": 1.0}, {"N": 1 << 16})
        for n in range(1000, 1100):
            program.call({"x": x[:n], "y": x[:n]}, {"s": 1.0}, {"N": n}, to_host=True)

    use()
    before, modules = settled(device), len(device.owned)
    for _ in range(3):
        use()
    assert settled(device) >= before - SLACK
    assert len(device.owned) <= modules
    assert device.pool.used < SLACK


def test_too_large_is_told_and_leaves_nothing(device: Device) -> None:
    program = load(device, TWICE)
    before = settled(device)
    n = device.memory  # temporaries four times as large as the memory
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            program.call({"x": floats(4), "y": floats(4)}, {"s": 1.0}, {"N": n})
        assert caught.value.diagnostics[0].code == "LF0509"
        assert "GiB" in str(caught.value)
    half = device.free_memory() * 5 // 8
    first = taken(device, half, 0)
    del first  # unused now, and in the way
    second = taken(device, half, 99)
    assert second.pointer
    del second, caught
    assert settled(device) >= before - SLACK
    found = program.call({"x": floats(4), "y": floats(4)}, {"s": 1.0}, {"N": 4}, to_host=True)
    np.testing.assert_array_equal(found["z"], twice(floats(4), floats(4), 1))


def taken(device: Device, count: int, stream: int) -> Any:
    with device.active():
        return device.take(count, stream)


def test_an_exception_in_the_midst_is_cleaned_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(device, COUNT)
    assert program.call({}, to_host=True)["z"][0] == 1
    before = settled(device)
    real = device.driver.launcher

    def broken(function: Any, *rest: Any) -> Any:
        run = real(function, *rest)

        def once() -> None:
            run()
            raise DriverError("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")

        return once

    monkeypatch.setattr(device.driver, "launcher", broken)
    failing = load(device, COUNT)
    with pytest.raises(CompilerError, match="OUT_OF_RESOURCES"):
        failing.call({})  # the counter is left at one: the kernel that sets it back was not launched
    monkeypatch.undo()
    lane = failing._lanes[(), 0]
    lane.commands = commands(lane.target, lane.plan)
    for _ in range(3):
        assert failing.call({}, to_host=True)["z"][0] == 1
    del failing
    assert settled(device) >= before - SLACK


# -- threads and streams -----------------------------------------------------------------------------------------------


def test_threads_on_one_stream_and_on_several(device: Device, streams: list[int]) -> None:
    program = load(device, TWICE)
    n = 1 << 18
    wrong: list[str] = []

    def work(seed: int) -> None:
        x, y = floats(n, seed), floats(n, seed + 1)
        stream = [0, *streams][seed % 3]
        try:
            bound = bind(program, {"x": x, "y": y}, {"s": 2.0}, {"N": n}, stream=stream)
            for k in range(10):
                bound()
                found = program.call({"x": y, "y": x}, {"s": float(k)}, {"N": n}, stream=stream, to_host=True)["z"]
                if not np.array_equal(found, twice(y, x, k)):
                    wrong.append(f"call {seed} {k}")
            if not np.array_equal(bound.outputs["z"].numpy(), twice(x, y, 2)):
                wrong.append(f"bound {seed}")
        except Exception as why:
            wrong.append(repr(why))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_result_of_one_stream_is_an_input_of_another(device: Device, streams: list[int]) -> None:
    program = load(device, TWICE)
    n = 1 << 22
    x = to_device(device, floats(n), streams[0])
    for _ in range(5):
        z = program.call({"x": x, "y": x}, {"s": 1.0}, {"N": n}, stream=streams[0])["z"]
        w = program.call({"x": z, "y": z}, {"s": 1.0}, {"N": n}, stream=streams[1], to_host=True)["z"]
        z1 = twice(floats(n), floats(n), 1)
        np.testing.assert_array_equal(w, twice(z1, z1, 1))


# -- other libraries ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_arrays_are_used_where_they_lie(device: Device, torch: Any) -> None:
    n = 1 << 16
    program = load(device, TWICE)
    x, y = torch.arange(n, device="cuda", dtype=torch.float32), torch.ones(n, device="cuda")
    z = torch.empty_like(x)
    found = program.call({"x": x, "y": y}, {"s": 2.0}, {"N": n}, out={"z": z}, stream=torch.cuda.current_stream())
    assert found["z"] is z and found.remarks == ()
    expected = 2 * (2 * x + y) + y
    assert torch.equal(z, expected)
    made = program.call({"x": x, "y": y}, {"s": 2.0}, {"N": n})["z"]
    seen = torch.from_dlpack(made)
    assert seen.data_ptr() == made.pointer
    assert torch.equal(seen, expected)
    assert torch.equal(torch.as_tensor(made, device="cuda"), expected)
    with pytest.raises(UserError, match="overlaps"):
        program.call({"x": x, "y": y}, {"s": 2.0}, {"N": n}, out={"z": x})
    with pytest.raises(UserError, match="LF0503"):
        program.call({"x": x.requires_grad_(), "y": y}, {"s": 2.0}, {"N": n})


def test_torch_streams(device: Device, torch: Any) -> None:
    n = 1 << 22
    program = load(device, TWICE)
    side = torch.cuda.Stream()
    for stream in (side, None, torch.cuda.current_stream()):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x = torch.arange(n, device="cuda", dtype=torch.float32)
            made = program.call({"x": x, "y": x}, {"s": 1.0}, {"N": n}, stream=stream)["z"]
            assert torch.equal(torch.from_dlpack(made), x + x + x)
    torch.cuda.synchronize()


def test_strided_and_misaligned_torch_arrays(device: Device, torch: Any) -> None:
    program = load(device, SUM)
    base = torch.arange(7 * 33 * 5, device="cuda", dtype=torch.float32).to(torch.bfloat16).reshape(7, 33, 5)
    for x in (base.permute(2, 0, 1), base[::2, :, 1:4], base[:, ::3], base.flip(1)[:, 5:20], base.expand(7, 33, 5)):
        sizes = dict(zip("ABC", x.shape, strict=True))
        found = program.call({"x": x}, {}, sizes, to_host=True)
        np.testing.assert_array_equal(found["z"].astype(np.float32), x.float().cpu().numpy())
        assert bool(found.remarks) == (not x.is_contiguous())
    flat = torch.arange(101, device="cuda", dtype=torch.float32).to(torch.bfloat16)
    found = program.call({"x": flat[1:].reshape(1, 1, 100)}, {}, {"A": 1, "B": 1, "C": 100}, to_host=True)
    assert "multiple of 16" in found.remarks[0]
    np.testing.assert_array_equal(found["z"].astype(np.float32).ravel(), flat[1:].float().cpu().numpy())
    made = program.call({"x": flat[:100].reshape(1, 1, 100)}, {}, {"A": 1, "B": 1, "C": 100})["z"]
    assert torch.equal(torch.from_dlpack(made).ravel(), flat[:100])


def test_what_torch_holds_stays_while_it_is_held(device: Device, torch: Any) -> None:
    program = load(device, SCALE)
    kept = []
    for k in range(30):
        kept.append(torch.from_dlpack(program.call({"x": np.full(4096, k, np.float32)}, {}, {"N": 4096})["z"]))
    gc.collect()
    assert [float(t.sum()) for t in kept] == [2.0 * k * 4096 for k in range(30)]


def test_cupy_arrays(device: Device) -> None:
    cupy = pytest.importorskip("cupy")
    n = 1 << 12
    program = load(device, TWICE)
    x = cupy.arange(n, dtype=cupy.float32)
    out = cupy.zeros(n, dtype=cupy.float32)
    program.call({"x": x, "y": x}, {"s": 1.0}, {"N": n}, out={"z": out}, stream=cupy.cuda.get_current_stream())
    cupy.testing.assert_array_equal(out, x + x + x)
    stream = cupy.cuda.Stream(non_blocking=True)
    made = program.call({"x": x, "y": x}, {"s": 1.0}, {"N": n}, stream=stream)["z"]
    cupy.testing.assert_array_equal(cupy.asarray(made), x + x + x)
    cupy.testing.assert_array_equal(cupy.from_dlpack(made), x + x + x)


# -- time, energy, calibration -----------------------------------------------------------------------------------------


def test_a_device_is_measured(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path))
    found = measure(device)
    print({name: f"{value:.3g}" for name, value in found.items()})
    assert 1e11 < found["bandwidth"] < 1e13
    assert found["bandwidth"] < found["cache_bandwidth"] < 1e14
    assert 1e-7 < found["latency"] < 1e-5
    assert 1e12 < found["fp32"] < 1e15
    assert 1e11 < found["special"] < found["fp32"]
    assert found["graph_launch"] > 1e-7 and found["launch"] < 2e-5
    assert store_calibration(device, found)
    assert load_calibration(device) == found
    model = device.describe(load_calibration(device))
    assert model.bandwidth == found["bandwidth"]


def test_energy(device: Device) -> None:
    if Meter(device.uuid).energy() is None:
        pytest.skip("NVML does not count energy here")
    n = 1 << 24
    x = to_device(device, floats(n))
    bound = bind(load(device, TWICE), {"x": x, "y": x}, {"s": 1.0}, {"N": n})
    joules = energy(device, bound)
    assert joules is not None and 1e-6 < joules < 10


# -- the life of the context -------------------------------------------------------------------------------------------


def script(name: str) -> tuple[str, str]:
    """What a script of `gpu_lives` prints; it must end well and without a word of complaint."""
    path = Path(__file__).parent / "gpu_lives.py"
    done = subprocess.run([sys.executable, str(path), name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_process_ends_with_everything_alive() -> None:
    out, complaints = script("ends")
    assert out == "done\n"
    assert complaints == ""


def test_a_fork_is_told_to_spawn() -> None:
    out, complaints = script("forks")
    assert out.count("does not survive a fork") == 3
    assert "child ended 0" in out and "parent goes on 3.0" in out
    assert complaints == ""


def test_a_lost_context_is_told() -> None:
    out, _ = script("breaks")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in out
    assert "start the process anew" in out


def test_there_is_no_gpu_of_that_number() -> None:
    with pytest.raises(MachineError, match="no GPU 99"):
        open_device(99)
