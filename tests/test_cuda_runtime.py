"""The runtime without a GPU: packing, arguments, calls, lanes, arrays of other libraries; bound calls are test_cuda_bound."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDriver, Interface, cells, floats
from fake_programs import (
    BUFFERS,
    KERNELS,
    ONE_FLOAT,
    N,
    T,
    call,
    device,
    driver,
    expected,
    kernels,
    loaded,
    two_steps,
    vector,
    zero_code,
)
from hypothesis import given
from hypothesis import strategies as st

from loopfuse.cuda.arena import ALIGNMENT, Interval, aligned, arena, pack
from loopfuse.cuda.arrays import DeviceArray, to_device
from loopfuse.cuda.bound import bind
from loopfuse.cuda.context import Device
from loopfuse.cuda.launch import MOST_LAUNCHES, Set, Slots, Start, Value, make_plan, scalar_bits, wrapped
from loopfuse.cuda.program import Results
from loopfuse.diag import CompilerError, LoopfuseError, UserError
from loopfuse.dtypes import BF16, BOOL, F16, F32, F64, I32
from loopfuse.emit.code import (
    FAULTS,
    ONE,
    ZERO,
    Code,
    Fault,
    Fill,
    Launch,
    Memory,
    Number,
    Pointer,
    Repeat,
    grid,
)
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly

__all__ = ["device", "driver"]


# -- memory ------------------------------------------------------------------------------------------------------------

intervals = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 5)), max_size=14)


@given(intervals)
def test_what_lives_together_lies_apart(drawn: list[tuple[int, int, int]]) -> None:
    items = [Interval(str(k), size, first, first + length) for k, (size, first, length) in enumerate(drawn)]
    offsets, total = pack(items)
    for i in items:
        assert offsets[i.id] % ALIGNMENT == 0
        assert offsets[i.id] + i.bytes <= total
        for o in items:
            if i is not o and i.first <= o.last and o.first <= i.last and i.bytes and o.bytes:
                assert offsets[i.id] + i.bytes <= offsets[o.id] or offsets[o.id] + o.bytes <= offsets[i.id]
    moments = range(max((i.last for i in items), default=0) + 1)
    needed = max((sum(aligned(i.bytes) for i in items if i.first <= t <= i.last) for t in moments), default=0)
    assert needed <= total <= sum(aligned(i.bytes) for i in items)


def test_a_chain_of_temporaries_needs_two_places() -> None:
    ids = ["x", *(f"t{k}" for k in range(8)), "z"]
    steps = tuple(Launch("k", grid(1), (Pointer(a), Pointer(b))) for a, b in pairwise(ids))
    place = arena(steps, [Memory(f"t{k}", N) for k in range(8)], {"N": 1000})
    assert place.bytes == 2 * 1024
    assert place.zeroed == 0


def test_zeroed_memory_is_never_shared_and_stands_first() -> None:
    steps = tuple(Launch("k", grid(1), (Pointer(id),)) for id in ("a", "b", "c", "d"))
    memory = [Memory("a", Poly.of(600)), Memory("b", Poly.of(300), zeroed=True), Memory("c", Poly.of(500)),
              Memory("d", Poly.of(8), zeroed=True), Memory("unused", Poly.of(4000))]  # fmt: skip
    place = arena(steps, memory, {}, faults=8)
    assert place.offsets[FAULTS] == 0
    assert {place.offsets["b"], place.offsets["d"]} == {256, 768}
    assert place.zeroed == 1024
    assert place.offsets["a"] == place.offsets["c"] == 1024
    assert "unused" not in place.offsets


def test_what_a_repeat_touches_lives_through_it() -> None:
    body = tuple(Launch("k", grid(1), (Pointer(id),)) for id in ("a", "b"))
    inside = (Repeat("i", ZERO, T, ONE, body),)
    memory = [Memory("a", Poly.of(256)), Memory("b", Poly.of(256))]
    assert arena(inside, memory, {"T": 3}).bytes == 512
    assert arena(body, memory, {}).bytes == 256


def test_blocks_are_used_again_on_their_stream_alone(device: Device, driver: FakeDriver) -> None:
    first = device.take(1000, 0)
    pointer = first.pointer
    del first
    assert device.take(990, 7).pointer != pointer
    again = device.take(700, 0)
    assert again.pointer == pointer
    assert device.pool.used == 1024
    again.shared = True  # another library saw it
    del again
    assert device.take(700, 0).pointer != pointer
    device.trim()
    assert driver.used == 0
    assert driver.names("synchronize")


def test_memory_is_freed_before_there_is_none(device: Device, driver: FakeDriver) -> None:
    half = driver.memory // 2 + (2 << 20)
    device.take(half, 0)
    kept = device.take(half, 1)  # the first lies unused, for another stream
    with pytest.raises(UserError) as caught:
        device.take(half, 1)
    assert caught.value.diagnostics[0].code == "LF0509"
    assert "10 MiB" in str(caught.value)
    assert driver.used == half == device.pool.used
    del kept
    assert device.take(half, 5).pointer


def test_unused_memory_is_bounded(device: Device, driver: FakeDriver) -> None:
    for n in range(1, 200):
        device.take(n * 4096, 0)
    device.take(1, 0)
    assert device.pool.unused <= driver.memory // 4


# -- launches ----------------------------------------------------------------------------------------------------------


def test_arguments_share_slots(driver: FakeDriver) -> None:
    plan = make_plan(two_steps(), BUFFERS, {"N": 5})
    assert plan.actions is not None
    starts = [a for a in plan.actions if isinstance(a, Start)]
    assert [s.grid for s in starts] == [(5, 1, 1)] * 2
    slots = Slots(starts, driver)
    assert len(slots.values) == 6  # x, y, z, t, N, s
    assert slots.point("x", 1 << 40) and not slots.point("elsewhere", 1)
    slots.give({"s": np.float32(1.0)})
    first = [int(cells(int(a), 1, np.uint64)[0]) for a in cells(slots.addresses[0], 5, np.uint64)]
    assert first == [0, 1 << 40, 0, 5, 0x3F800000]


@pytest.mark.parametrize(("value", "dtype", "bits"), [
    (1.0, F32, 0x3F800000), (-2.0, F64, 0xC000000000000000), (1.5, F16, 0x3E00), (1.0, BF16, 0x3F80), (-1, I32, 0xFFFFFFFF),
    (True, BOOL, 1),
])  # fmt: skip
def test_params_are_bits_in_their_type(value: Any, dtype: Any, bits: int) -> None:
    assert scalar_bits(np.asarray(value, dtype.numpy), dtype) == bits


def test_numbers_keep_their_sign_and_fit_their_type() -> None:
    assert wrapped(-1, 64) == (1 << 64) - 1
    assert wrapped(-5, 32) & 0xFFFFFFFF == (1 << 32) - 5
    with pytest.raises(CompilerError, match="does not fit"):
        wrapped(1 << 31, 32)


def test_repeats_are_laid_out_unless_there_are_too_many() -> None:
    body = (Launch("count_up", grid(1), (Pointer("z"), Number(Poly.of("i") + Poly.of("j"), 32))), Fill("t", 3))
    inner = Repeat("j", Poly.of("i"), T, Poly.of(2), body)
    code = Code(
        "r", "", kernels("count_up"), (Repeat("i", ZERO, T, ONE, (inner,)),), (Memory("t", T),), (), (), ("z",), ("T",)
    )
    plan = make_plan(code, [Buffer("z", F32, (T,))], {"T": 4})
    assert plan.actions is not None
    numbers = [a.arguments[1] for a in plan.actions if isinstance(a, Start)]
    assert numbers == [Value(n) for n in (0, 2, 2, 4, 4, 6)]
    assert plan.actions.count(Set("t", 3, 4)) == 6
    assert make_plan(code, [Buffer("z", F32, (T,))], {"T": MOST_LAUNCHES}).actions is None


def test_a_launch_without_blocks_is_left_out() -> None:
    assert make_plan(two_steps(), BUFFERS, {"N": 0}).actions == ()


@pytest.mark.parametrize("extents", [grid(1 << 31), grid(1, 65536), grid(1, 1, 65536)])
def test_a_grid_that_no_gpu_has_is_our_mistake(extents: Any) -> None:
    code = Code("g", "", kernels("count_up"), (Launch("count_up", extents, ()),), (), (), (), ())
    with pytest.raises(CompilerError, match="count_up"):
        make_plan(code, [], {})


def test_blocks_come_in_whole_clusters() -> None:
    code = Code("g", "", kernels("count_up", cluster=4), (Launch("count_up", grid(6), ()),), (), (), (), ())
    with pytest.raises(CompilerError, match="clusters of 4"):
        make_plan(code, [], {})


# -- calls -------------------------------------------------------------------------------------------------------------


def test_numpy_goes_in_and_comes_out(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    x, y = floats(5), floats(5, 2)
    found = program.call({"x": x, "y": y}, {"s": np.float32(3)}, {"N": 5}, to_host=True)
    assert isinstance(found, Results) and found.remarks == found.faults == ()
    np.testing.assert_array_equal(found["z"], expected(x, y, 3))
    assert driver.names("load") == [b"// axpy"]
    again = program.call({"x": y, "y": x}, {"s": np.float32(2)}, {"N": 5})["z"]
    assert isinstance(again, DeviceArray)
    assert (again.shape, again.dtype, again.nbytes, again.ndim) == ((5,), F32, 20, 1)
    np.testing.assert_array_equal(np.asarray(again), expected(y, x, 2))
    assert program.memory({"N": 5}) == 256


def test_arrays_of_the_device_are_used_where_they_lie(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    x, y = to_device(device, floats(6)), to_device(device, floats(6, 1))
    z = to_device(device, floats(6))
    before = driver.names("upload")
    found = program.call({"x": x, "y": y}, {"s": 1.0}, {"N": 6}, out={"z": z})
    assert found["z"] is z
    assert driver.names("upload") == before
    np.testing.assert_array_equal(z.numpy(), expected(floats(6), floats(6, 1), 1))
    host = np.zeros(6, np.float32)
    assert program.call({"x": x, "y": y}, {"s": 1.0}, {"N": 6}, out={"z": host})["z"] is host
    np.testing.assert_array_equal(host, z.numpy())


def test_empty_arrays_launch_nothing(device: Device, driver: FakeDriver) -> None:
    found = loaded(device).call({"x": floats(0), "y": floats(0)}, {"s": 1.0}, {"N": 0}, to_host=True)
    assert found["z"].shape == (0,)
    assert driver.names("launch") == []


def test_other_libraries_are_waited_for(device: Device, driver: FakeDriver) -> None:
    x = Interface(floats(6), stream=77)
    call(loaded(device), x, floats(6))
    assert [entry[2:] for entry in driver.log if entry[0] == "record"] == [(77,)]
    assert driver.names("wait") == [0]
    driver.log.clear()
    for same in (None, 1, 0):
        call(loaded(device), Interface(floats(6), stream=same), floats(6))
    assert driver.names("wait") == []


def test_an_input_off_its_boundary_is_copied_with_a_remark(device: Device) -> None:
    code = two_steps()
    code = Code(**{**{f: getattr(code, f) for f in code.__slots__}, "aligned": frozenset({"x"})})
    data = np.zeros(9, np.float32)
    at = int(data.ctypes.data)
    off = data[1:7] if at % 16 == 0 else data[:6]
    off[:] = floats(6)
    found = call(loaded(device, code), Interface(off), Interface(off))
    np.testing.assert_array_equal(found["z"], expected(floats(6), floats(6), 1))
    assert [r.split(":")[0] for r in found.remarks] == ["the input `x` is not on a multiple of 16 bytes"]


def test_an_output_off_its_boundary_is_copied_too(device: Device) -> None:
    code = two_steps()
    code = Code(**{**{f: getattr(code, f) for f in code.__slots__}, "aligned": frozenset({"z"})})
    data = np.zeros(9, np.float32)
    off = data[1:7] if int(data.ctypes.data) % 16 == 0 else data[:6]
    found = call(loaded(device, code), floats(6), floats(6), Interface(off))
    np.testing.assert_array_equal(off, expected(floats(6), floats(6), 1))
    assert len(found.remarks) == 1


@pytest.mark.parametrize(("x", "code"), [
    (np.zeros(6), "LF0503"), (np.zeros((2, 3), np.float32), "LF0504"), (np.zeros(7, np.float32), "LF0517"),
    (np.zeros(6, ">f4"), "LF0503"), (object(), "LF0503"), (Interface(np.zeros(6, np.float32), typestr="<c8"), "LF0503"),
])  # fmt: skip
def test_inputs_that_do_not_fit(device: Device, driver: FakeDriver, x: Any, code: str) -> None:
    program = loaded(device)
    with pytest.raises(UserError) as caught:
        call(program, x, floats(6))
    assert caught.value.diagnostics[0].code == code
    assert driver.names("launch") == []


def test_outputs_that_cannot_be_written_in_place(device: Device) -> None:
    program = loaded(device)
    big = np.zeros(16, np.float32)
    frozen = np.zeros(6, np.float32)
    frozen.flags.writeable = False
    wrong: list[Any] = [
        Interface(big[:12:2]), big[:12:2], frozen, Interface(frozen, data=(frozen.ctypes.data, True)),
        Interface(big[2:8]), [0.0] * 6,
    ]  # fmt: skip
    for z in wrong:
        with pytest.raises(UserError) as caught:
            call(program, Interface(big[:6]), floats(6), z)
        assert caught.value.diagnostics[0].code in ("LF0520", "LF0503")
    call(program, Interface(big[:6]), floats(6), Interface(big[8:14]))


def test_arrays_of_another_gpu_are_refused(device: Device) -> None:
    other = Device(FakeDriver(KERNELS, ordinal=1))
    with pytest.raises(UserError, match="GPU 1"):
        call(loaded(device), to_device(other, floats(6)), floats(6))


def test_zeroed_memory_is_set_once_and_again_after_a_failure(device: Device, driver: FakeDriver) -> None:
    program = loaded(device, zero_code(), ONE_FLOAT)
    for _ in range(3):
        assert program.call({}, to_host=True)["z"] == 0
    assert len(driver.names("fill")) == 1
    driver.fail["launch"] = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    with pytest.raises(CompilerError, match="OUT_OF_RESOURCES"):
        program.call({})
    assert program.call({}, to_host=True)["z"] == 0
    assert len(driver.names("fill")) == 2


def test_a_failure_in_the_midst_releases_everything(device: Device, driver: FakeDriver) -> None:
    program = loaded(device)
    x = floats(6)
    call(program, x, x)
    gc.collect()
    device.pool.take(0, 0)
    device.trim()
    before = device.pool.used
    for name in ("upload", "launch"):
        driver.fail[name] = "CUDA_ERROR_INVALID_VALUE"
        with pytest.raises(LoopfuseError):
            call(program, x, x)
    gc.collect()
    device.trim()
    assert device.pool.used == before


def test_faults_are_counted_for_each_call(device: Device) -> None:
    steps = (Launch("faulty", grid(1), (Pointer(FAULTS), Pointer("z"), Number(N, 32))),)
    code = Code("f", "", kernels("faulty"), steps, (), (), (), ("z",), ("N",), faults=(Fault(0, "x"), Fault(1, "y")))
    program = loaded(device, code, (vector("z"),))
    for _ in range(2):
        assert program.call({}, sizes={"N": 3}).faults == (1, 3)
    bound = bind(program, {}, sizes={"N": 3})
    assert bound.kind == "graph"
    bound()
    bound()
    assert bound.faults() == (1, 3)


def test_each_stream_has_its_own_temporaries(device: Device) -> None:
    program = loaded(device)
    with device.active():
        lanes = [program.lane({"N": 5}, stream) for stream in (0, 9, 0)]
        other = program.lane({"N": 6}, 0)
    assert lanes[0] is lanes[2]
    assert len({lane.places["t"] for lane in (*lanes, other)}) == 3
    assert lanes[0].plan is lanes[1].plan
    del lanes, other
    with device.active():
        for stream in range(100, 140):
            program.lane({"N": 5}, stream)
    assert device.pool.used <= 18 * 512


def test_threads_share_a_program(device: Device) -> None:
    program = loaded(device)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(20):
            x = floats(6, seed + n)
            found = program.call({"x": x, "y": x}, {"s": 2.0}, {"N": 6}, stream=seed % 3 + 4, to_host=True)["z"]
            if not np.array_equal(found, expected(x, x, 2)):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
