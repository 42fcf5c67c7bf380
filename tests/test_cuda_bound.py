"""Bound calls without a GPU: graphs, what is replayed and released; and how the device ends."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDriver, floats
from fake_programs import (
    ONE_FLOAT,
    T,
    call,
    device,
    driver,
    expected,
    kernels,
    loaded,
    zero_code,
)

from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.bound import Bound, bind
from loopfuse.cuda.context import Device
from loopfuse.cuda.launch import MOST_LAUNCHES
from loopfuse.diag import CompilerError, LoopfuseError, MachineError, UserError
from loopfuse.emit.code import (
    ONE,
    ZERO,
    Code,
    Fill,
    Launch,
    Number,
    Pointer,
    Repeat,
    grid,
)

__all__ = ["device", "driver"]


# -- bound calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["graph", "direct"])
def test_a_bound_call_is_replayed_on_other_arrays(device: Device, driver: FakeDriver, how: Any) -> None:
    program = loaded(device)
    x, y = floats(6), floats(6, 3)
    bound = bind(program, {"x": x, "y": y}, {"s": 2.0}, {"N": 6}, how=how)
    assert isinstance(bound, Bound) and bound.kind == how
    z = bound.outputs["z"]
    assert bound()["z"] is z
    np.testing.assert_array_equal(z.numpy(), expected(x, y, 2))
    driver.log.clear()
    bound.rebind(x=y)
    assert driver.names("set") == ([0] if how == "graph" else [])  # the second launch does not read x
    np.testing.assert_array_equal(bound()["z"].numpy(), expected(y, y, 2))
    bound.rebind(params={"s": 1.0})
    np.testing.assert_array_equal(bound()["z"].numpy(), expected(y, y, 1))
    other = to_device(device, floats(6))
    assert bound.rebind(out={"z": other})["z"] is other
    bound()
    np.testing.assert_array_equal(other.numpy(), expected(y, y, 1))
    with pytest.raises(UserError, match="overlaps"):
        bound.rebind(x=other)
    with pytest.raises(CompilerError):
        bound.rebind(q=x)
    np.testing.assert_array_equal(bound()["z"].numpy(), expected(y, y, 1))


def test_one_launch_is_made_directly(device: Device) -> None:
    program = loaded(device, zero_code(), ONE_FLOAT)
    bound = bind(program, {})
    assert bound.kind == "direct"
    assert bound()["z"].numpy() == 0


def test_very_many_launches_go_in_portions(device: Device, driver: FakeDriver) -> None:
    body = (Launch("count_up", grid(1), (Pointer("z"), Number(ONE, 32))),)
    code = Code("r", "", kernels("count_up"), (Fill("z"), Repeat("i", ZERO, T, ONE, body)), (), (), (), ("z",), ("T",))
    program = loaded(device, code, ONE_FLOAT)
    times = MOST_LAUNCHES + 5
    bound = bind(program, {}, sizes={"T": times})
    assert bound.kind == "portions"
    assert bound()["z"].numpy() == times
    driver.log.clear()
    assert bind(program, {}, sizes={"T": 7})()["z"].numpy() == 7
    assert len(driver.names("launch")) == 7


def test_a_failure_of_a_replay_cleans_up(device: Device, driver: FakeDriver) -> None:
    bound = bind(loaded(device, zero_code(), ONE_FLOAT), {}, how="graph")
    bound()
    driver.fail["launch"] = "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(CompilerError):
        bound()
    assert bound()["z"].numpy() == 0
    assert len(driver.names("fill")) == 2


def test_outputs_on_the_host_cannot_be_bound(device: Device) -> None:
    with pytest.raises(UserError, match="on the device"):
        bind(loaded(device), {"x": floats(6), "y": floats(6)}, {"s": 1.0}, {"N": 6}, out={"z": floats(6)})


def test_closing_releases_modules_graphs_and_memory(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    bound = bind(program, {"x": floats(6), "y": floats(6)}, {"s": 1.0}, {"N": 6}, how="graph")
    bound()
    program.close()
    assert not driver.modules and not driver.graphs
    for use in (bound, partial(call, program, floats(6), floats(6))):
        with pytest.raises(MachineError, match="closed"):
            use()
    del use
    del bound, program
    gc.collect()
    device.trim()
    assert driver.used == 0


def test_dropping_a_program_is_closing_it(device: Device, driver: FakeDriver) -> None:
    call(loaded(device), floats(6), floats(6))
    gc.collect()
    device.trim()
    assert not driver.modules
    assert driver.used == 0


def test_a_failed_load_leaves_nothing(device: Device, driver: FakeDriver) -> None:
    driver.fail["function"] = "CUDA_ERROR_NOT_FOUND"
    with pytest.raises(CompilerError, match="loading `twice`"):
        loaded(device)
    assert not driver.modules


# -- the device --------------------------------------------------------------------------------------------------------


def test_a_lost_context_ends_the_use_of_the_device(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    driver.fail["launch"] = "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(CompilerError, match="`twice` stopped with CUDA_ERROR_ILLEGAL_ADDRESS"):
        call(program, floats(6), floats(6))
    with pytest.raises(MachineError, match="start the process anew"):
        call(program, floats(6), floats(6))
    program.close()
    device.close()


def test_after_a_fork_nothing_reaches_the_driver(device: Device) -> None:
    program = loaded(device)
    z = program.call({"x": floats(6), "y": floats(6)}, {"s": 1.0}, {"N": 6})["z"]
    bound = bind(program, {"x": floats(6), "y": floats(6)}, {"s": 1.0}, {"N": 6}, how="graph")
    device.end(MachineError("spawn"))
    for use in (z.numpy, bound, partial(call, program, floats(6), floats(6)), device.trim):
        with pytest.raises(LoopfuseError):
            use()
    del use
    del z, bound, program
    gc.collect()  # the fake fails on whatever reaches it


def test_closing_a_device_closes_its_programs(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    kept = program.call({"x": floats(6), "y": floats(6)}, {"s": 1.0}, {"N": 6})["z"]
    device.close()
    assert program.closed and not driver.modules and driver.used == 0
    with pytest.raises(MachineError):
        kept.numpy()
    device.close()


def test_a_device_describes_itself(device: Device) -> None:
    found = device.describe({"bandwidth": 4.2e12})
    assert (found.name, found.bandwidth, found.units, found.arch) == ("H200", 4.2e12, 132, "sm_90a")
    other = Device(FakeDriver(name="NVIDIA Something New")).describe()
    assert other.bandwidth == pytest.approx(0.85 * 2 * 3.201e9 * 6144 / 8)
