"""Programs by hand for the fake GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDriver, cells

from loopfuse.cuda.context import Device
from loopfuse.cuda.program import Loaded, Results
from loopfuse.dtypes import F32
from loopfuse.emit.code import (
    ONE,
    Code,
    KernelCode,
    Launch,
    Memory,
    Number,
    Param,
    Pointer,
    grid,
)
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly

N, T = Poly.of("N"), Poly.of("T")


class Cubin:
    """A binary of the fake compiler."""

    def __init__(self, cubin: bytes) -> None:
        self.cubin = cubin


# -- programs by hand: z = s * x + y, twice, through a temporary -------------------------------------------------------


def axpy(_: Any, to: int, x: int, y: int, n: int, scale: int) -> None:
    factor = np.asarray([scale], np.uint64).view(np.float32)[0]
    cells(to, n, np.float32)[:] = factor * cells(x, n, np.float32) + cells(y, n, np.float32)


def count_up(_: Any, to: int, n: int) -> None:
    """Adds one, and needs the counter behind to be zero before and leaves it zero."""
    data = cells(to, n, np.float32)
    data += 1


def fail_zero(_: Any, scratch: int, to: int) -> None:
    """Gives what the zeroed memory holds, and leaves it zero."""
    cells(to, 1, np.float32)[:] = cells(scratch, 1, np.uint32)[0]


def faulty(_: Any, counters: int, to: int, n: int) -> None:
    cells(counters, 2, np.uint32)[:] += np.asarray([1, 3], np.uint32)
    cells(to, n, np.float32)[:] = 5


KERNELS = {"axpy": axpy, "count_up": count_up, "fail_zero": fail_zero, "faulty": faulty}


def kernels(*names: str, **changes: Any) -> tuple[KernelCode, ...]:
    return tuple(KernelCode(name, f"// {name}", 256, **changes) for name in names)


def two_steps() -> Code:
    first = Launch("axpy", grid(N), (Pointer("t"), Pointer("x"), Pointer("y"), Number(N, 32), Param("s", F32)))
    second = Launch("axpy", grid(N), (Pointer("z"), Pointer("t"), Pointer("y"), Number(N, 32), Param("s", F32)))
    return Code(
        "twice", "", kernels("axpy"), (first, second), (Memory("t", N * 4),), ("x", "y"), ("s",), ("z",), ("N",)
    )


def vector(id: str, dtype: Any = F32) -> Buffer:
    return Buffer(id, dtype, (N,))


BUFFERS = (vector("x"), vector("y"), vector("z"))


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(KERNELS)


@pytest.fixture
def device(driver: FakeDriver) -> Device:
    return Device(driver)


def loaded(device: Device, code: Code | None = None, buffers: tuple[Buffer, ...] = BUFFERS) -> Loaded:
    code = code or two_steps()
    return Loaded(device, code, [Cubin(k.text.encode()) for k in code.kernels], buffers)


def expected(x: Any, y: Any, s: float) -> Any:
    return np.float32(s) * (np.float32(s) * x + y) + y


def call(program: Loaded, x: Any, y: Any, z: Any = None) -> Results:
    return program.call({"x": x, "y": y}, {"s": 1.0}, {"N": 6}, out=None if z is None else {"z": z}, to_host=z is None)


def zero_code() -> Code:
    steps = (Launch("fail_zero", grid(1), (Pointer("c"), Pointer("z"))),)
    return Code("zero", "", kernels("fail_zero"), steps, (Memory("c", Poly.of(4), zeroed=True),), (), (), ("z",))


ONE_FLOAT = (Buffer("z", F32, (ONE,)),)
