"""Tile maps as arguments, without a GPU: what is encoded and when, where it lies, what is refused, and every way to launch."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDriver, FakeMap, Interface, cells, floats
from hypothesis import given
from hypothesis import strategies as st

from loopfuse.cuda import nvidia
from loopfuse.cuda.arena import lifetimes
from loopfuse.cuda.arrays import to_device
from loopfuse.cuda.bound import bind
from loopfuse.cuda.calls import TILE_MAP_BYTES, DriverError
from loopfuse.cuda.context import Device
from loopfuse.cuda.launch import MOST_LAUNCHES, Slots, Start, make_plan
from loopfuse.cuda.nvidia import Nvidia
from loopfuse.cuda.program import Loaded
from loopfuse.cuda.record import from_json, to_json
from loopfuse.cuda.tiles import ALIGNMENT, KEPT, Tiles, tiles
from loopfuse.diag import CompilerError
from loopfuse.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, DType
from loopfuse.emit.code import ONE, ZERO, Code, Fill, KernelCode, Launch, Memory, Number, Pointer, Repeat, TileMap, grid
from loopfuse.emit.program import _pointed
from loopfuse.emit.writer import Faults, Target, Writer
from loopfuse.ir import Buffer
from loopfuse.sizes import Poly
from loopfuse.views.emitted import argument

M, N, K, T = (Poly.of(name) for name in "MNKT")
BASE = 1 << 40


def matrix(memory: str, start: Poly = ZERO, dtype: DType = F32) -> TileMap:
    """The first N elements of the M rows of K elements of a memory."""
    return TileMap(memory, dtype, start, (N, M), (K,), (128 // dtype.itemsize, 8))


def copy(_: Any, to: bytes, of: bytes) -> None:
    FakeMap.decoded(to).array()[:] = FakeMap.decoded(of).array()


def add(_: Any, to: int, of: bytes, by: int) -> None:
    """Adds up an array of floats, behind which another one starts every time."""
    cells(to, 1, np.float32)[:] += FakeMap.decoded(of).array().sum(dtype=np.float32) + np.float32(by)


def start(*arguments: Any) -> Start:
    return Start(0, (1, 1, 1), arguments)


def known(map: TileMap, **sizes: int) -> Tiles:
    return tiles(map, {"M": 3, "N": 5, "K": 8, **sizes}, "k")


def held(slots: Slots, launch: int, place: int) -> FakeMap:
    """The map behind an argument."""
    return FakeMap.decoded(cells(where(slots, launch, place), TILE_MAP_BYTES, np.uint8).tobytes())


def where(slots: Slots, launch: int, place: int) -> int:
    return int(cells(slots.addresses[launch], place + 1, np.uint64)[place])


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver({"copy": copy, "add": add})


@pytest.fixture
def device(driver: FakeDriver) -> Device:
    return Device(driver)


# -- known sizes -------------------------------------------------------------------------------------------------------


def test_sizes_are_put_in() -> None:
    map = TileMap("x", BF16, T * K * M + 8, (N - 1, M // 2, T), (K, K * M), (64, 8, 1), 128)
    assert known(map, T=2, M=6) == Tiles("x", BF16, 104, (4, 3, 2), (8, 48), (64, 8, 1), 128)
    assert known(map, T=2, M=6).bytes_between == (16, 96)


def test_a_map_follows_the_index_of_a_repetition() -> None:
    body = (Launch("add", grid(1), (Pointer("z"), matrix("x", Poly.of("i") * M * K), Number(Poly.of("i"), 32))),)
    code = Code("r", "", (KernelCode("add", "", 32),), (Repeat("i", ZERO, T, ONE, body),), (), ("x",), (), ("z",))
    buffers = [Buffer("x", F32, (T, M, K)), Buffer("z", F32, (ONE,))]
    plan = make_plan(code, buffers, {"M": 2, "N": 5, "K": 8, "T": 3})
    maps = [a.arguments[1] for a in plan.actions or () if isinstance(a, Start)]
    assert [m.start for m in maps if isinstance(m, Tiles)] == [0, 16, 32]


extents = st.integers(-2, 40)


@given(
    st.lists(extents, min_size=2, max_size=5), st.integers(-3, 50), st.sampled_from(sorted(DTYPES)), st.integers(0, 99)
)
def test_nothing_of_an_array_without_elements_is_refused(sizes: list[int], step: int, dtype: str, at: int) -> None:
    sizes = [*sizes[:-1], min(0, sizes[-1])]
    polys = tuple(Poly.of(e) for e in sizes)
    kind = DTYPES[dtype]
    box = (16, *[1] * (len(sizes) - 1))
    map = TileMap("x", kind, Poly.of(step), polys, tuple(Poly.of(step) for _ in sizes[1:]), box, 0)
    found = tiles(map, {}, "k")
    assert found.empty and found.extents == tuple(max(1, e) for e in sizes)
    assert all(step > 0 and step % 16 == 0 for step in found.bytes_between)
    slots = Slots([start(found)], FakeDriver())
    assert slots.point("x", at)
    assert held(slots, 0, 0).address % 16 == 0 < held(slots, 0, 0).address


@pytest.mark.parametrize(("map", "why"), [
    (TileMap("x", F32, ZERO, (N, M), (Poly.of(6),), (32, 8)), "multiples of 16 bytes"),
    (TileMap("x", F64, ZERO, (N, M), (Poly.of(1 << 37),), (16, 8)), "below 1099511627776"),
    (TileMap("x", F32, ZERO, (N, M), (Poly.of(-4),), (32, 8)), "steps must be"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (32, 257)), "1 to 256"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (32, 0)), "1 to 256"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (36, 8)), "at least a row of a tile, which has 144"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (16, 8), 32), "at least a row of a tile, which has 64"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (16, 8), 48), "one of"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (3, 8), 0), "12 bytes, and must have a multiple of 16"),
    (TileMap("x", F32, ZERO, (N,), (), (32,)), "2 to 5 axes"),
    (TileMap("x", F32, ZERO, (N, M), (), (32, 8)), "a step for each"),
    (TileMap("x", F32, ZERO, (N, M), (K,), (32,)), "an extent of a tile for each"),
    (TileMap("x", F32, ZERO, (N, Poly.of((1 << 32) + 1)), (K,), (32, 8)), "no extent"),
])  # fmt: skip
def test_what_no_gpu_takes_is_our_mistake(map: TileMap, why: str) -> None:
    with pytest.raises(CompilerError, match=r"`k` cannot copy tiles of `x`: .*f(32|64) from element 0.*") as told:
        known(map)
    assert why in str(told.value)


def test_rows_may_overlap() -> None:
    windows = TileMap("x", F32, ZERO, (Poly.of(32), M), (Poly.of(4),), (32, 8))
    assert known(windows).steps == (4,)
    assert known(TileMap("x", F32, ZERO, (N, M), (ZERO,), (32, 8))).steps == (0,)


# -- in memory ---------------------------------------------------------------------------------------------------------


def test_maps_lie_aligned_behind_their_arguments(driver: FakeDriver) -> None:
    x, later, narrow = known(matrix("x")), known(matrix("x", Poly.of(8))), known(matrix("x", dtype=F16))
    slots = Slots([start(Pointer("x"), x), start(later, Pointer("x"), narrow, Pointer("y"))], driver)
    assert len(slots.values) == 2
    assert len({where(slots, 0, 1), where(slots, 1, 0), where(slots, 1, 2)}) == 3
    assert all(where(slots, *at) % ALIGNMENT == 0 for at in ((0, 1), (1, 0), (1, 2)))
    assert slots.point("x", BASE) and slots.point("y", 32)
    assert held(slots, 0, 1) == FakeMap(BASE, F32, (5, 3), (32,), (32, 8), 128)
    assert held(slots, 1, 0) == FakeMap(BASE + 32, F32, (5, 3), (32,), (32, 8), 128)
    assert held(slots, 1, 2) == FakeMap(BASE, F16, (5, 3), (16,), (64, 8), 128)
    assert [int(cells(where(slots, *at), 1, np.uint64)[0]) for at in ((0, 0), (1, 1), (1, 3))] == [BASE, BASE, 32]


def test_equal_maps_are_one(driver: FakeDriver) -> None:
    one = tiles(matrix("x"), {"M": 3, "N": 5, "K": 8}, "first")
    other = tiles(TileMap("x", F32, ZERO, (Poly.of(5), M), (N + 3,), (32, 8)), {"M": 3, "N": 5}, "second")
    slots = Slots([start(one), start(other)], driver)
    assert where(slots, 0, 0) == where(slots, 1, 0)
    slots.point("x", BASE)
    assert driver.names("tile_map") == [BASE]


def test_a_memory_may_be_known_by_its_maps_alone(driver: FakeDriver) -> None:
    slots = Slots([start(known(matrix("x")))], driver)
    assert slots.point("x", BASE)
    assert not slots.point("y", BASE)


def test_maps_are_encoded_when_an_address_changes(driver: FakeDriver) -> None:
    slots = Slots([start(known(matrix("x")), known(matrix("x", Poly.of(8))), known(matrix("y")))], driver)
    assert driver.names("tile_map") == []
    slots.point("y", BASE)
    for _ in range(3):
        slots.point("x", 16)
    assert driver.names("tile_map") == [BASE, 16, 48]
    slots.point("x", 32)
    assert driver.names("tile_map") == [BASE, 16, 48, 32, 64]
    for address in (16, 32, 16):
        slots.point("x", address)
        assert (held(slots, 0, 0).address, held(slots, 0, 1).address) == (address, address + 32)
    assert len(driver.names("tile_map")) == 5, "what was encoded before is kept"


def test_few_encodings_are_kept(driver: FakeDriver) -> None:
    slots = Slots([start(known(matrix("x")))], driver)
    for n in range(1, KEPT + 3):
        slots.point("x", 16 * n)
    driver.log.clear()
    slots.point("x", 16 * (KEPT + 1))
    assert driver.names("tile_map") == []
    slots.point("x", 16)
    assert driver.names("tile_map") == [16]
    assert held(slots, 0, 0).address == 16


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(1, 40)), max_size=60))
def test_a_map_always_tells_the_address_of_its_memory(moves: list[tuple[str, int]]) -> None:
    maps = [known(matrix("x")), known(matrix("y", Poly.of(8))), known(matrix("x", Poly.of(4)))]
    slots = Slots([start(*maps, Pointer("x"))], FakeDriver())
    now: dict[str, int] = {}
    for memory, n in moves:
        now[memory] = 16 * n
        slots.point(memory, 16 * n)
        for place, map in enumerate(maps):
            if map.memory in now:
                assert held(slots, 0, place).address == now[map.memory] + 4 * map.start


def test_an_address_that_no_map_has_is_our_mistake(driver: FakeDriver) -> None:
    slots = Slots([start(known(matrix("x")), known(matrix("y", Poly.of(3))))], driver)
    for memory, address in (("x", BASE + 8), ("y", BASE)):
        with pytest.raises(CompilerError, match=f"`k` cannot copy tiles of `{memory}`: .*multiple of 16"):
            slots.point(memory, address)
    assert slots.point("x", BASE)


def test_what_the_driver_refuses_is_our_mistake_and_what_it_cannot_do_is_not(driver: FakeDriver) -> None:
    slots = Slots([start(known(matrix("x")))], driver)
    for name in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_NOT_SUPPORTED"):
        driver.fail["tile_map"] = name
        with pytest.raises(CompilerError, match=rf"`k` .* `x`: .*{name}, at 0x10 .*extents \[5, 3\], steps \[8\]"):
            slots.point("x", 16)
    driver.fail["tile_map"] = "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    with pytest.raises(DriverError):
        slots.point("x", 16)
    assert slots.point("x", 16)
    assert held(slots, 0, 0).address == 16


# -- calls -------------------------------------------------------------------------------------------------------------

SIZES = {"M": 3, "N": 5, "K": 8}
RECTANGLES = (Buffer("x", F32, (M, K)), Buffer("z", F32, (M, K)))
ALIGNED = frozenset({"x", "z"})


class Cubin:
    """A binary of the fake compiler."""

    cubin = b"cubin"


def loaded(device: Device, code: Code, buffers: tuple[Buffer, ...] = RECTANGLES) -> Loaded:
    return Loaded(device, code, [Cubin() for _ in code.kernels], buffers)


def twice_copied() -> Code:
    """x to a temporary, and from there to z: the first N columns of K."""
    steps = tuple(Launch("copy", grid(1), (matrix(to), matrix(of))) for to, of in (("t", "x"), ("z", "t")))
    return Code("copies", "", (KernelCode("copy", "", 32),), (Fill("z"), *steps), (Memory("t", M * K * 4),), ("x",), (),
                ("z",), ("M", "N", "K"), ALIGNED)  # fmt: skip


def clipped(x: Any) -> Any:
    return np.where(np.arange(8) < 5, x, 0)


def test_calls_and_temporaries(device: Device, driver: FakeDriver) -> None:
    program = loaded(device, twice_copied())
    for start in (0, 7):
        x = floats(24, start).reshape(3, 8)
        np.testing.assert_array_equal(program.call({"x": x}, sizes=SIZES, to_host=True)["z"], clipped(x))
    x, z = (to_device(device, floats(24).reshape(3, 8)) for _ in range(2))
    program.call({"x": x}, sizes=SIZES, out={"z": z})
    driver.log.clear()
    for _ in range(3):
        program.call({"x": x}, sizes=SIZES, out={"z": z})
    assert driver.names("tile_map") == [], "nothing has moved"
    np.testing.assert_array_equal(z.numpy(), clipped(floats(24).reshape(3, 8)))


@pytest.mark.parametrize("how", ["graph", "direct"])
def test_a_bound_call_follows_its_arrays(device: Device, driver: FakeDriver, how: Any) -> None:
    x, other = floats(24).reshape(3, 8), floats(24, 50).reshape(3, 8)
    bound = bind(loaded(device, twice_copied()), {"x": x}, sizes=SIZES, how=how)
    assert bound.kind == how
    z = bound()["z"]
    np.testing.assert_array_equal(z.numpy(), clipped(x))
    driver.log.clear()
    bound()
    assert driver.names("tile_map") == []
    bound.rebind(x=other)
    assert len(driver.names("tile_map")) == 1
    assert driver.names("set") == ([1] if how == "graph" else []), "the one node that reads x"
    np.testing.assert_array_equal(bound()["z"].numpy(), clipped(other))
    target = to_device(device, np.full((3, 8), 9, np.float32))
    bound.rebind(out={"z": target})
    bound()
    np.testing.assert_array_equal(target.numpy(), clipped(other))


def test_very_many_launches_go_in_portions(device: Device, driver: FakeDriver) -> None:
    map = TileMap("x", F32, Poly.of("i") * 4, (Poly.of(2), ONE), (Poly.of(4),), (32, 8))
    body = (Launch("add", grid(1), (Pointer("z"), map, Number(ONE, 32))),)
    code = Code("r", "", (KernelCode("add", "", 32),), (Fill("z"), Repeat("i", ZERO, T, ONE, body)), (), ("x",), (),
                ("z",), ("T",), ALIGNED)  # fmt: skip
    times = MOST_LAUNCHES + 5
    program = loaded(device, code, (Buffer("x", F32, (T * 4,)), Buffer("z", F32, (ONE,))))
    x = np.tile(np.asarray([1, 2, 100, 100], np.float32), times)
    bound = bind(program, {"x": x}, sizes={"T": times})
    assert bound.kind == "portions"
    assert bound()["z"].numpy() == 4 * times
    bound.rebind(x=x * 2)
    assert bound()["z"].numpy() == 7 * times


def test_an_input_of_another_library_is_copied_to_where_maps_can_be(device: Device) -> None:
    data = floats(25)
    program = loaded(device, twice_copied())
    found = program.call({"x": Interface(data[1:].reshape(3, 8))}, sizes=SIZES)
    np.testing.assert_array_equal(found["z"].numpy(), clipped(data[1:].reshape(3, 8)))


# -- what reads arguments ----------------------------------------------------------------------------------------------

polys = st.recursive(
    st.one_of(st.integers(-99, 99).map(Poly.of), st.sampled_from([M, N, K, T])),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]), st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(2, 9)).map(lambda p: p[0] // p[1])),
    max_leaves=4,
)  # fmt: skip


@given(
    st.data(),
    st.integers(2, 5),
    st.sampled_from([BOOL, I8, I32, F16, BF16, F32, F64]),
    st.sampled_from([0, 32, 64, 128]),
)
def test_a_map_comes_back_from_the_cache(data: Any, rank: int, dtype: DType, swizzle: int) -> None:
    drawn = [data.draw(polys) for _ in range(2 * rank)]
    map = TileMap("x", dtype, drawn[0], tuple(drawn[1 : rank + 1]), tuple(drawn[rank + 1 :]), (16,) * rank, swizzle)
    code = Code("c", "", (KernelCode("k", "", 32),), (Launch("k", grid(M), (map, Pointer("x"))),), (), ("x",), (), ())
    found = from_json(to_json(code))
    assert found == code
    (launch,) = found.launches()
    assert hash(launch.arguments[0]) == hash(map)


def test_maps_point_to_their_memory() -> None:
    steps = twice_copied().steps
    assert lifetimes(steps) == {"z": (0, 2), "t": (1, 2), "x": (1, 1)}
    assert _pointed(steps) == {"x", "t", "z"}


def test_a_map_is_told_by_its_tiles() -> None:
    assert argument(matrix("x", dtype=BF16)) == "x (tiles 8 x 64)"


def test_a_writer_declares_each_map_once() -> None:
    w = Writer(Target(), {}, Faults())
    assert w.pointer("x", "float") == "x"
    assert w.tile_map(matrix("x"), "x_tiles") == w.tile_map(matrix("x"), "again") == "x_tiles"
    assert w.tile_map(matrix("y"), "x_tiles") != "x_tiles"
    assert w.arguments == (Pointer("x"), matrix("x"), matrix("y"))
    one, two, three = w.parameters().split(", ")
    assert one == "const float* __restrict__ x"
    assert two == "const __grid_constant__ lf_map x_tiles"
    assert three.startswith("const __grid_constant__ lf_map x_tiles") and three != two


# -- the driver --------------------------------------------------------------------------------------------------------

U32, U64 = ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint64)
ENCODER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, U64, U64, U32,
                           U32, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)  # fmt: skip


def test_what_the_driver_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    cu = pytest.importorskip("cuda.bindings.driver")
    told: list[Any] = []
    status = [0]

    def encode(
        at: int, kind: int, rank: int, address: int, extents: Any, steps: Any, box: Any, by: Any, *rest: int
    ) -> int:
        assert at % ALIGNMENT == 0
        told.append((kind, rank, address, extents[:rank], steps[: rank - 1], box[:rank], by[:rank], rest))
        ctypes.memset(at, len(told), TILE_MAP_BYTES)
        return status[0]

    function = ENCODER(encode)
    monkeypatch.setattr(nvidia, "_tile_encoder", lambda: function)
    driver = object.__new__(Nvidia)
    driver._cu, driver._dead = cu, False
    run = driver.tile_map(BF16, (5, 6, 7), (1 << 33, 1 << 39), (64, 8, 1), 128)
    assert run(BASE) == bytes([1]) * TILE_MAP_BYTES
    assert driver.tile_map(F32, (5, 6), (32,), (8, 8), 0)(16) == bytes([2]) * TILE_MAP_BYTES
    assert run(32) == bytes([3]) * TILE_MAP_BYTES
    assert told[0] == (9, 3, BASE, [5, 6, 7], [1 << 33, 1 << 39], [64, 8, 1], [1, 1, 1], (0, 3, 2, 0))
    assert told[1] == (7, 2, 16, [5, 6], [32], [8, 8], [1, 1], (0, 0, 2, 0))
    for dtype in DTYPES.values():
        for swizzle in (0, 32, 64, 128):
            driver.tile_map(dtype, (5, 6), (32,), (8, 8), swizzle)(16)
    kinds = {name: kind for name, (kind, *_) in zip(DTYPES, told[3::4], strict=True)}
    assert [kinds[n] for n in ("bool", "i8", "u8", "i32", "f16", "f64", "i64")] == [0, 0, 0, 3, 6, 8, 5]
    status[0] = 1
    with pytest.raises(DriverError, match="cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"):
        run(48)
    driver._dead = True
    with pytest.raises(DriverError):
        driver.tile_map(F32, (5, 6), (32,), (8, 8), 0)
