"""Arrays on a device without one: capsules, interfaces, streams of other libraries."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_gpu import FakeDriver, Interface, floats

from loopfuse.cuda import dlpack
from loopfuse.cuda.arrays import to_device, view
from loopfuse.cuda.context import Device
from loopfuse.cuda.helpers import merged
from loopfuse.cuda.streams import stream_handle
from loopfuse.dtypes import BF16, DTYPES


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def device(driver: FakeDriver) -> Device:
    return Device(driver)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_capsules_go_round(device: Device, dtype: Any) -> None:
    array = np.ones((3, 4), dtype.numpy)
    made = to_device(device, array)
    assert made.__dlpack_device__() == (2, 0)
    pointer = made.pointer
    taken = dlpack.take(made.__dlpack__(stream=1))
    assert (taken.pointer, taken.shape, taken.dtype, taken.strides, taken.kind) == (pointer, (3, 4), dtype, None, 2)
    del made
    used = device.pool.used
    del taken
    device.pool.take(0, 0)
    device.trim()
    assert device.pool.used < used


def test_a_capsule_that_nobody_takes_lets_go(device: Device, driver: FakeDriver) -> None:
    capsule = to_device(device, floats(4)).__dlpack__()
    device.trim()
    assert driver.used
    del capsule
    device.trim()
    assert not driver.used


def test_a_capsule_is_used_once(device: Device) -> None:
    capsule = to_device(device, floats(4)).__dlpack__()
    taken = dlpack.take(capsule)
    with pytest.raises(TypeError, match="used before"):
        dlpack.take(capsule)
    assert taken.shape == (4,)


def test_numpy_capsules_tell_strides() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    taken = dlpack.take(array.T.__dlpack__())
    assert (taken.shape, taken.strides, taken.kind) == ((4, 3), (4, 16), dlpack.CPU)


def test_a_consumer_on_another_stream_waits(device: Device, driver: FakeDriver) -> None:
    made = to_device(device, floats(4), stream=50)
    made.__dlpack__(stream=60)
    assert driver.names("wait") == [60]
    assert made.block.shared
    assert made.__cuda_array_interface__["stream"] == 50
    assert to_device(device, floats(4)).__cuda_array_interface__["stream"] == 1


def test_arrays_come_back_through_dlpack_on_the_host(device: Device) -> None:
    made = to_device(device, floats(4))
    np.testing.assert_array_equal(np.from_dlpack(made, device="cpu"), floats(4))


def test_bf16_has_no_interface_but_a_capsule(device: Device) -> None:
    made = to_device(device, np.ones(3, ml_dtypes.bfloat16))
    assert not hasattr(made, "__cuda_array_interface__")
    seen = view(made, 0)
    assert not isinstance(seen, np.ndarray) and seen.dtype == BF16


def test_views_of_foreign_arrays() -> None:
    array = np.zeros((4, 6), np.float32)
    for part, strides in (
        (array, None),
        (array[:1], None),
        (array[:, ::2], (24, 8)),
        (array.T, (4, 24)),
        (array[:0], None),
    ):
        seen = view(Interface(part), 0)
        assert not isinstance(seen, np.ndarray)
        assert seen.strides == strides
    with pytest.raises(TypeError, match="mask"):
        view(Interface(array, mask=object()), 0)


def test_axes_that_follow_each_other_are_one() -> None:
    assert merged((2, 3, 4), (48, 16, 4)) == ([24], [4])
    assert merged((2, 1, 4), (100, 7, 4)) == ([2, 4], [100, 4])
    assert merged((1, 1), (8, 8)) == ([], [])


class Torch:
    cuda_stream = 33


class CuPy:
    ptr = 44


class PyCuda:
    handle = 55


class Standard:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 66


@pytest.mark.parametrize(("stream", "handle"), [(None, 0), (0, 0), (1, 0), (2, 2), (Torch(), 33), (CuPy(), 44),
                                                (PyCuda(), 55), (Standard(), 66)])  # fmt: skip
def test_streams_of_other_libraries(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [True, "0", 1.5, -3, object()])
def test_what_is_no_stream(stream: Any) -> None:
    with pytest.raises(TypeError):
        stream_handle(stream)
