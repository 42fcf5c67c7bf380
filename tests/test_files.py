"""Reading and writing arrays: every format there and back, names and places; files that lie are test_files_lie."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from file_arrays import code_of, message_of, read, same, sample, write
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loopfuse.dtypes import DTYPES, F32, F64, I32, U8, DType
from loopfuse.files import Place, load, save_all
from loopfuse.generate import Array, Request

ALL = list(DTYPES.values())


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
