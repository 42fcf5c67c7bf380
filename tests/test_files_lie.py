"""Every way in which a file of arrays can lie, or be damaged."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from file_arrays import code_of, message_of, npy_bytes, read, same, sample, write
from PIL import Image

from loopfuse.diag import UserError
from loopfuse.dtypes import BF16, BOOL, DTYPES, F32, I32, U8, U16, DType
from loopfuse.files import Place, save_all
from loopfuse.formats import common
from loopfuse.generate import Array, Request

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
