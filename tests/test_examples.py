"""The examples as a reader meets them: the commands in their headers, and the two photographs that they make."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import exposure

from loopfuse.cli import main
from tests.oracles.core import ROOT, Array

EXAMPLES = sorted((ROOT / "examples").glob("*.lf"))


def commands(path: Path) -> list[str]:
    """The command lines in a header, continuations joined."""
    header = re.sub(r"\\\n#\s*", "", path.read_text(encoding="utf-8").split("\n\n")[0])
    return re.findall(r"^#   (loopfuse .*)$", header, re.MULTILINE)


def picture(path: Path) -> Array:
    """An image file as an array."""
    with Image.open(path) as image:
        return np.array(image)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to run in, with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_command_in_the_header_runs(path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(path)
    assert found and all(f"examples/{path.name}" in c for c in found)
    for command in found:
        code = main(shlex.split(command)[1:])
        told = capsys.readouterr()
        assert code == 0, f"{command}\n{told.err}"
        assert "f32" in told.out or "f16" in told.out or "u8" in told.out or "i64" in told.out


def test_blur_is_scipys_within_a_grey_level(checkout: Path) -> None:
    assert main(["run", "examples/10_blur.lf", "-q"]) == 0
    got, photo = picture(checkout / "out" / "blur.png"), picture(ROOT / "examples" / "data" / "astronaut.png")
    want = ndimage.gaussian_filter(photo.astype(float), 1.5, radius=6, mode="nearest", axes=(0, 1))
    assert got.shape == photo.shape and got.dtype == np.uint8
    assert np.abs(got - want).max() <= 1
    assert np.abs(got.astype(float) - photo).mean() > 1, "nothing was blurred"


def test_equalisation_is_scikit_images_within_a_grey_level(checkout: Path) -> None:
    assert main(["run", "examples/11_histeq.lf", "-q"]) == 0
    got, photo = picture(checkout / "out" / "histeq.png"), picture(ROOT / "examples" / "data" / "clock.png")
    equalize: Any = exposure.equalize_hist
    want = 255 * equalize(photo, nbins=256)
    assert got.shape == photo.shape and got.dtype == np.uint8
    assert np.abs(got - want).max() <= 1
    assert got.std() > 2 * photo.std(), "the contrast did not grow"


def test_every_picture_says_where_it_comes_from() -> None:
    told = (ROOT / "examples" / "data" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "examples" / "data").iterdir():
        assert path.stat().st_size <= 200_000
        assert path.name == "README.md" or f"`{path.name}`" in told
