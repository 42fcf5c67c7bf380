"""Reading and writing arrays: every format, and every way in which a file can lie."""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loopfuse.diag import UserError
from loopfuse.dtypes import BF16, BOOL, DTYPES, F32, F64, I32, U8, U16, DType
from loopfuse.files import Place, load, save_all
from loopfuse.formats import common
from loopfuse.generate import Array, Request

ALL = list(DTYPES.values())


def read(path: Path | str, dtype: DType = F32, rank: int = 1, name: str = "x") -> Any:
    return load(Place(str(path), Path()), dtype, rank, name)


def write(path: Path | str, array: Array, name: str = "y") -> None:
    save_all([(Place(str(path), Path()), name, array)])


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return caught.value.diagnostics[0].code


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


def sample(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> Array:
    count = int(np.prod(shape, dtype=int))
    if dtype.kind == "bool":
        return (np.arange(count) % 2 == 1).reshape(shape)
    values = np.arange(count, dtype=np.int64) - (2 if dtype.kind != "uint" else 0)
    return values.astype(dtype.numpy).reshape(shape)


def same(a: Array, b: Array) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.npz:k", "a.safetensors:k", "a.csv", "a.txt"])
def test_round_trip(tmp_path: Path, dtype: DType, name: str) -> None:
    array = sample(dtype)
    write(tmp_path / name, array)
    same(read(tmp_path / name, dtype, 2), array)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_raw_round_trip(tmp_path: Path, dtype: DType) -> None:
    array = sample(dtype)
    write(tmp_path / "a.raw", array)
    assert (tmp_path / "a.raw").stat().st_size == 6 * dtype.itemsize
    found = read(tmp_path / "a.raw", dtype, 2)
    assert found.elements(dtype) == 6
    same(found.make(Request("x", (2, 3), dtype)), array)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (5,), (2, 1)])
def test_npy_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write(tmp_path / "a.npy", sample(F64, shape))
    same(read(tmp_path / "a.npy", F64, len(shape)), sample(F64, shape))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_text_reads_back_to_the_same_bits(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.mktemp("text") / "a.csv"
    array = np.array(values, np.float32)
    write(path, array)
    same(read(path, F32, 1), array)


def test_infinities_and_nan_in_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("inf -inf nan 1e300 # the last fits f64 only\n")
    found = read(tmp_path / "a.txt", F64, 1)
    assert found[0] == np.inf
    assert found[1] == -np.inf
    assert np.isnan(found[2])
    assert found[3] == 1e300


def test_text_layouts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("# heading\n1, 2, 3\n\n4, 5, 6\n")
    same(read(path, I32, 2), np.array([[1, 2, 3], [4, 5, 6]], np.int32))
    path.write_text("1\n2\n3\n")
    same(read(path, I32, 1), np.array([1, 2, 3], np.int32))
    path.write_text("1,2,3\n")
    same(read(path, I32, 1), np.array([1, 2, 3], np.int32))
    path.write_text("7\n")
    same(read(path, I32, 0), np.array(7, np.int32))


def test_large_integers_in_text_are_exact(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("18446744073709551615 9007199254740993\n")
    assert read(tmp_path / "a.txt", DTYPES["u64"], 1).tolist() == [18446744073709551615, 9007199254740993]


@pytest.mark.parametrize(
    ("array", "extension"),
    [
        (np.arange(12, dtype=np.uint8).reshape(3, 4), "png"),
        (np.arange(36, dtype=np.uint8).reshape(3, 4, 3), "png"),
        (np.arange(48, dtype=np.uint8).reshape(3, 4, 4), "png"),
        (np.arange(36, dtype=np.uint8).reshape(3, 4, 3), "ppm"),
        (np.arange(36, dtype=np.uint8).reshape(3, 4, 3), "bmp"),
        (np.arange(12, dtype=np.uint8).reshape(3, 4), "tif"),
        ((np.arange(12) % 2 == 0).reshape(3, 4), "png"),
        (np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000, "png"),
    ],
)
def test_lossless_images(tmp_path: Path, array: Array, extension: str) -> None:
    write(tmp_path / f"a.{extension}", array)
    same(read(tmp_path / f"a.{extension}", U8, array.ndim), array)


def test_jpeg_is_close(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None] * 3, (64, 64, 3)).copy()
    write(tmp_path / "a.jpg", ramp)
    found = read(tmp_path / "a.jpg", U8, 3)
    assert np.abs(found.astype(int) - ramp.astype(int)).max() < 8


def test_palette_is_looked_up(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).quantize(16)
    picture.save(tmp_path / "p.png")
    found = read(tmp_path / "p.png", U8, 3)
    assert found.shape == (4, 4, 3)
    same(found, np.asarray(picture.convert("RGB")))


# -- what NumPy can do to a file ------------------------------------------------------------------------------------


def test_fortran_order_and_big_endian(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.save(tmp_path / "a.npy", np.asfortranarray(array))
    found = read(tmp_path / "a.npy", F32, 2)
    assert found.dtype == np.float32
    assert found.dtype.isnative
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_bf16_as_numpy_writes_it(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4).astype(ml_dtypes.bfloat16).view("V2"))
    assert read(tmp_path / "a.npy", BF16, 1).astype(float).tolist() == [0, 1, 2, 3]


def test_objects_are_refused_unread(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    np.save(tmp_path / "a.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    assert code_of(lambda: read(tmp_path / "a.npy")) == "LF0512"
    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object))
    assert code_of(lambda: read(tmp_path / "a.npz")) == "LF0512"
    (tmp_path / "b.npy").write_bytes(b"\x80\x04K\x01.")
    assert code_of(lambda: read(tmp_path / "b.npy")) == "LF0511"
    assert not (tmp_path / "ran").exists()


def npy_bytes(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("cut", [0, 3, 9, 40, 127, 128, 150, -1])
def test_truncated_npy(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.npy").write_bytes(npy_bytes(np.arange(100, dtype=np.float32))[:cut])
    assert code_of(lambda: read(tmp_path / "a.npy")) == "LF0511"


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,), }",
        "{'descr': '<f4', 'fortran_order': False, }",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': (1,), }",
        "{'descr': 'no', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }",
        "[" * 3000,
        "__import__('os').mkdir('ran')",
    ],
)
def test_npy_headers_that_lie(tmp_path: Path, header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    body = header.encode().ljust(len(header) + 1) + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + b"\0" * 64)
    loaded: list[Any] = []
    try:
        loaded.append(read(tmp_path / "a.npy"))
    except UserError as why:
        assert why.diagnostics[0].code in ("LF0503", "LF0509", "LF0511")
    assert not loaded or loaded[0].dtype.kind == "U"  # strings are refused when they are bound
    assert not (tmp_path / "ran").exists()


def test_fuzzed_npy_never_raises_anything_else(tmp_path: Path) -> None:
    good = npy_bytes(np.arange(6, dtype=np.int16).reshape(2, 3))
    rng = np.random.default_rng(1)
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        (tmp_path / "a.npy").write_bytes(bytes(data))
        try:
            read(tmp_path / "a.npy", DTYPES["i16"], 2)
        except UserError as why:
            assert why.diagnostics[0].code.startswith("LF05")


# -- containers -------------------------------------------------------------------------------------------------------


def test_npz_keys(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2, np.float32), weight=np.ones(3, np.float32))
    assert read(tmp_path / "a.npz:weight").tolist() == [1, 1, 1]
    assert read(tmp_path / "a.npz", name="x").tolist() == [0, 0]
    assert code_of(lambda: read(tmp_path / "a.npz", name="y")) == "LF0514"
    assert "did you mean `weight`?" in message_of(lambda: read(tmp_path / "a.npz:weigth"))


def test_broken_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(1000, dtype=np.float32))
    good = path.read_bytes()
    path.write_bytes(good[:200])
    assert code_of(lambda: read(path)) == "LF0511"
    rng = np.random.default_rng(2)
    for _ in range(200):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 4):
            data[place] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            read(path)
        except UserError as why:
            assert why.diagnostics[0].code.startswith("LF05")


def test_npz_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_bytes(np.zeros(1 << 20, np.float32)))
    monkeypatch.setattr(common, "default_limit", lambda: 1 << 20)
    assert code_of(lambda: read(tmp_path / "a.npz")) == "LF0509"


def tensor_file(path: Path, header: object, data: bytes = b"\0" * 64) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 400, [100])},
        {"a": entry(-8, 8, [4])},
        {"a": entry(16, 8, [2])},
        {"a": entry(0, 16, [5])},
        {"a": entry(0, 16, [-4])},
        {"a": entry(0, 16, [True, 4])},
        {"a": entry(0, 16, ["4"])},
        {"a": entry(0, 32, [8]), "b": entry(16, 48, [8])},
        {"a": {"dtype": "F32", "shape": [4]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 32]}},
        {"a": 3},
        [1, 2],
        ('{"a": %s, "a": %s}' % ((json.dumps({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}),) * 2)).encode(),
        b"not json",
        b"\xff\xfe",
        b"[" * 5000,
        b"",
    ],
)
def test_safetensors_headers_that_lie(tmp_path: Path, header: object) -> None:
    path = tensor_file(tmp_path / "a.safetensors", header)
    assert code_of(lambda: read(f"{path}:a")) == "LF0511"


def test_absurd_safetensors_header(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert code_of(lambda: read(f"{path}:a")) == "LF0511"
    path.write_bytes(b"\x01\x02")
    assert code_of(lambda: read(f"{path}:a")) == "LF0511"
    with open(path, "wb") as file:  # sparse: a header of 200 MB that is really there
        file.write((200 << 20).to_bytes(8, "little"))
        file.truncate((200 << 20) + 8)
    assert "absurd" in message_of(lambda: read(f"{path}:a"))


def test_safetensors_types_and_names(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"fc1.weight": np.ones((2, 3), np.float32)}, tmp_path / "m.safetensors")
    assert read(tmp_path / "m.safetensors:fc1.weight", F32, 2).shape == (2, 3)
    assert read(tmp_path / "m.safetensors", F32, 2).shape == (2, 3)
    assert "`fc1.weight`" in message_of(lambda: read(tmp_path / "m.safetensors:fc1.weigt", F32, 2))
    path = tensor_file(tmp_path / "c.safetensors", {"a": entry(0, 64, [8], "C64")})
    assert code_of(lambda: read(path)) == "LF0503"
    path = tensor_file(tmp_path / "b.safetensors", {"a": entry(0, 4, [4], "BOOL")}, b"\0\1\2\3")
    assert code_of(lambda: read(path, BOOL)) == "LF0511"


def test_what_we_write_the_library_reads(tmp_path: Path) -> None:
    arrays = {"a": sample(F32), "b": sample(BF16), "c": sample(BOOL)}
    save_all([(Place(f"{tmp_path}/m.safetensors:{k}", Path()), k, a) for k, a in arrays.items()])
    found = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    for key, array in arrays.items():
        same(found[key], array)


# -- images that lie --------------------------------------------------------------------------------------------------


def test_broken_images(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write(path, np.arange(3000, dtype=np.uint8).reshape(100, 10, 3))
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert code_of(lambda: read(path, U8, 3)) == "LF0511"
    path.write_bytes(b"hello")
    assert code_of(lambda: read(path, U8, 3)) == "LF0511"
    rng = np.random.default_rng(3)
    for _ in range(200):
        data = bytearray(good)
        for place in rng.integers(8, len(data), 4):
            data[place] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            read(path, U8, 3)
        except UserError as why:
            assert why.diagnostics[0].code.startswith("LF05")


def test_image_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.png", np.zeros((100, 100), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9_000)
    assert code_of(lambda: read(tmp_path / "a.png", U8, 2)) == "LF0518"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    assert code_of(lambda: read(tmp_path / "a.png", U8, 2)) == "LF0518"


def test_animation_is_refused(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4), 60 * k, np.uint8)) for k in range(3)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert code_of(lambda: read(tmp_path / "a.gif", U8, 3)) == "LF0513"


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros((2, 2), np.float32), "a.png"),
        (np.zeros((2, 2, 7), np.uint8), "a.png"),
        (np.zeros((2, 2, 4), np.uint8), "a.jpg"),
        (np.zeros((0, 2), np.uint8), "a.png"),
        (np.zeros((2, 2), np.uint8), "a.gif"),
        (np.zeros((2, 2, 2), np.float32), "a.csv"),
        (np.zeros(3, np.float32), "a.xyz"),
        (np.zeros(3, np.float32), "a"),
    ],
)
def test_formats_that_cannot_hold_an_array(tmp_path: Path, array: Array, name: str) -> None:
    assert code_of(lambda: write(tmp_path / name, array)) == "LF0513"
    assert os.listdir(tmp_path) == []


# -- text that lies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dtype", "rank", "code"),
    [
        ("1 2\n3\n", F32, 2, "LF0511"),
        ("1 two 3\n", F32, 1, "LF0511"),
        ("1 2\n3 4\n", F32, 1, "LF0504"),
        ("1 2", F32, 0, "LF0504"),
        ("", F32, 0, "LF0504"),
        ("1 2", F32, 3, "LF0504"),
        ("256", U8, 1, "LF0503"),
        ("1.5", I32, 1, "LF0503"),
        ("1e39", F32, 1, "LF0503"),
        ("1e-60", F32, 1, "LF0503"),
        ("2", BOOL, 1, "LF0503"),
        ("9" * 400, F32, 1, "LF0503"),
        ("1,,2", F32, 1, "LF0511"),
    ],
)
def test_text_that_lies(tmp_path: Path, text: str, dtype: DType, rank: int, code: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert code_of(lambda: read(tmp_path / "a.csv", dtype, rank)) == code


def test_bytes_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    assert code_of(lambda: read(tmp_path / "a.csv")) == "LF0511"


def test_raw_of_the_wrong_length(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0" * 10)
    found = read(tmp_path / "a.bin", F32, 1)
    assert code_of(lambda: found.elements(F32)) == "LF0519"
    assert found.elements(U16) == 5
    assert code_of(lambda: found.make(Request("x", (4,), U16))) == "LF0519"
    assert code_of(lambda: found.make(Request("x", (6,), U16))) == "LF0519"


# -- names and places -------------------------------------------------------------------------------------------------


def test_missing_files_and_near_names(tmp_path: Path) -> None:
    write(tmp_path / "photo.npy", sample(F32))
    assert "did you mean `photo.npy`?" in message_of(lambda: read(tmp_path / "foto.npy"))
    assert code_of(lambda: read(tmp_path)) == "LF0510"
    assert code_of(lambda: read(tmp_path / "no" / "such.npy")) == "LF0510"
    assert code_of(lambda: read("a\0b.npy")) == "LF0510"
    assert code_of(lambda: read("")) == "LF0510"
    assert "generators" in message_of(lambda: read("rndn"))
    os.mkfifo(tmp_path / "pipe.npy")
    assert code_of(lambda: read(tmp_path / "pipe.npy")) == "LF0510"
    (tmp_path / "a.xyz").write_text("1")
    assert code_of(lambda: read(tmp_path / "a.xyz")) == "LF0513"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read and write everything")
def test_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write(path, sample(F32))
    path.chmod(0)
    assert code_of(lambda: read(path)) == "LF0510"
    path.chmod(0o444)
    assert code_of(lambda: write(path, sample(F64))) == "LF0515"
    tmp_path.chmod(0o555)
    assert code_of(lambda: write(tmp_path / "b.npy", sample(F64))) == "LF0515"
    tmp_path.chmod(0o755)


def test_paths_are_relative_to_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", np.ones(2, np.float32))
    assert load(Place("a.npy", tmp_path), F32, 1, "x").tolist() == [1, 1]  # type: ignore[union-attr]


# -- writing is all or nothing ----------------------------------------------------------------------------------------


def test_a_failed_write_leaves_everything_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a.npy", np.zeros(3, np.float32))
    before = (tmp_path / "a.npy").read_bytes()
    results = [
        (Place(f"{tmp_path}/a.npy", Path()), "a", np.ones(3, np.float32)),
        (Place(f"{tmp_path}/b.png", Path()), "b", np.ones(3, np.float32)),
    ]
    assert code_of(lambda: save_all(results)) == "LF0513"
    assert (tmp_path / "a.npy").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npy"]


def test_two_outputs_for_one_file(tmp_path: Path) -> None:
    place = Place(f"{tmp_path}/a.npy", Path())
    results = [(place, "a", sample(F32)), (Place(f"{tmp_path}/./a.npy", Path()), "b", sample(F32))]
    assert code_of(lambda: save_all(results)) == "LF0515"
    assert os.listdir(tmp_path) == []


def test_containers_hold_several_outputs(tmp_path: Path) -> None:
    results = [(Place(f"{tmp_path}/a.npz", Path()), name, sample(F32, (k,))) for k, name in enumerate(("p", "q"))]
    save_all(results)
    with np.load(tmp_path / "a.npz") as found:
        assert sorted(found.files) == ["p", "q"]
        assert found["q"].shape == (1,)


def test_writing_makes_folders_and_keeps_links_and_modes(tmp_path: Path) -> None:
    write(tmp_path / "new" / "deep" / "a.npy", sample(F32))
    real = tmp_path / "new" / "deep" / "a.npy"
    (tmp_path / "link.npy").symlink_to(real)
    write(tmp_path / "link.npy", sample(F64))
    assert (tmp_path / "link.npy").is_symlink()
    assert read(real, F64, 2).dtype == np.float64
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~mask


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert code_of(lambda: write(tmp_path / "file" / "a.npy", sample(F32))) == "LF0515"
    (tmp_path / "folder.npy").mkdir()
    assert code_of(lambda: write(tmp_path / "folder.npy", sample(F32))) == "LF0515"
