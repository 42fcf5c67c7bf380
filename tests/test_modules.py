"""Modules from files, and sizes given from outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import loopfuse as lf

SCRIPT = 'import "layers.lf" as layers\ninput x: f32[N]\nsize K = 3\noutput y = layers.scale(x) + K\n'


def codes(problem: lf.Error) -> list[str]:
    return [d.code for d in problem.diagnostics]


def test_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "layers.lf").write_text('import "more.lf" as more\nsize F = 2\nfn scale(x) = more.twice(x) * F\n')
    (tmp_path / "more.lf").write_text("fn twice(x) = x + x\n")
    (tmp_path / "main.lf").write_text(SCRIPT)
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(lf.run(tmp_path / "main.lf", x=x), 4 * x + 3)


def test_modules_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "layers.lf").write_text('import "more.lf" as more\nfn scale(x) = x\n')
    (tmp_path / "more.lf").write_text('import "layers.lf" as layers\nfn twice(x) = x + x\n')
    (tmp_path / "main.lf").write_text(SCRIPT)
    with pytest.raises(lf.Error) as caught:
        lf.parse(tmp_path / "main.lf")
    assert codes(caught.value) == ["LF0231"]


def test_a_module_with_an_input(tmp_path: Path) -> None:
    (tmp_path / "layers.lf").write_text("input w: f32[N]\nfn scale(x) = x\n")
    (tmp_path / "main.lf").write_text(SCRIPT)
    with pytest.raises(lf.Error) as caught:
        lf.parse(tmp_path / "main.lf")
    assert codes(caught.value) == ["LF0232"]


def test_sizes_from_outside() -> None:
    text = "input x: f32[N]\nsize K = 3\nsize H = N + K\noutput y = zeros(f32, H) + K\n"
    assert lf.parse(text, sizes={"K": 5}).compile()(x=np.zeros(2, np.float32)).shape == (7,)
    for given in ({"H": 5}, {"Q": 5}):
        with pytest.raises(lf.Error) as caught:
            lf.parse(text, sizes=given)
        assert codes(caught.value) == ["LF0505"]


def test_a_module_that_does_not_parse(tmp_path: Path) -> None:
    (tmp_path / "layers.lf").write_text("fn scale(x) = x +\n")
    (tmp_path / "main.lf").write_text(SCRIPT)
    with pytest.raises(lf.Error) as caught:
        lf.parse(tmp_path / "main.lf")
    assert codes(caught.value) == ["LF0101"]
