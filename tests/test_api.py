"""The Python API: parse, describe, lower, compile, run."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopfuse as lf
from loopfuse.reader import parse_program

GATE = """\
input x: f32[N, D] where x > -100
input w: f32[D]
param gain: f32 = 2
param shift: i32
size R = 3
require D >= 2
let t = x * w
output y = gain * t + R
output total = sum(t)
"""


def data() -> tuple[Any, Any]:
    return np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)


def test_signatures() -> None:
    program = lf.parse(GATE, name="gate.lf")
    assert [str(i) for i in program.inputs] == ["x: f32[N, D]", "w: f32[D]"]
    assert [str(o) for o in program.outputs] == ["y: f32[N, D]", "total: f32"]
    assert [str(p) for p in program.params] == ["gain: f32 = 2.0", "shift: i32"]
    assert program.dims == ("N", "D")
    assert program.sizes == {"R": 3}
    assert any("D" in r and "2" in r for r in program.requires)
    assert program.source == GATE
    text = str(program)
    for part in ("input x: f32[N, D]", "param shift: i32", "output total: f32", "size R = 3", "require"):
        assert part in text
    assert "gate" in repr(program)


def test_implied_requirements_are_listed() -> None:
    program = lf.parse("input x: f32[N]  let y[i in 0..8] = x[i]  output y")
    assert len(program.requires) == 1
    assert program.requires[0].endswith("(implied)")


def test_calling() -> None:
    x, w = data()
    f = lf.compile(GATE)
    for found in (f(x, w, shift=1), f(x=x, w=w, shift=1), f(x, w=w, shift=1, gain=2.0), f.program(x, w, shift=1)):
        y, total = found
        assert y.dtype == np.float32
        assert (y == 2 * x + 3).all()
        assert total == 15
    assert (f(x, w, shift=1, gain=0).y == 3).all()


def test_records() -> None:
    x, w = data()
    found = lf.run(GATE, x=x, w=w, shift=0)
    assert found.total == found["total"] == found[1]
    assert len(found) == 2
    assert "y" in found
    assert "z" not in found
    assert dir(found) == ["total", "y"]
    assert "total=float32[]" in repr(found)
    with pytest.raises(AttributeError, match="the outputs are y, total"):
        _ = found.z
    with pytest.raises(KeyError):
        _ = found["z"]
    with pytest.raises(IndexError):
        _ = found[2]
    again = pickle.loads(pickle.dumps(found))
    assert (again.y == found.y).all()
    assert copy.copy(found).total == found.total


def test_any_name_may_be_an_output_or_input() -> None:
    text = "input out: f32[N]  input limit: f32[N]  output class = out + 1  output _y = limit  output dims = out"
    found = lf.run(text, out=np.zeros(2, np.float32), limit=np.ones(2, np.float32))
    assert getattr(found, "class").tolist() == [1, 1]
    assert found._y.tolist() == [1, 1]
    assert found.dims.tolist() == [0, 0]


def test_one_output_is_an_array() -> None:
    found = lf.run("input x: f32[N]  output y = x * 2", x=np.ones(3, np.float32))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [2, 2, 2]


def test_declarations_are_implied() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    c = np.arange(4, dtype=np.float32)
    assert (lf.run("output y = a @ b + c", a=a, b=b, c=c) == 3 + c).all()
    assert lf.run("output y = x * s", x=np.ones(2, np.float32), s=3.0).tolist() == [3, 3]
    assert lf.run("output y = k + 1", k=3) == 4
    with pytest.raises(lf.Error) as caught:
        lf.run("output y = a @ q", a=a)
    (told,) = caught.value.diagnostics
    assert told.primary is not None
    assert told.primary.text == "q"
    assert told.primary.source.text == "output y = a @ q"


@pytest.mark.parametrize(
    ("script", "given", "code"),
    [
        ("y = a + 1", {"a": np.ones(2)}, "LF0110"),
        ("output y = a + 1", {"a": np.ones(2, np.complex64)}, "LF0503"),
        ("output y = a + 1", {"a": None}, "LF0503"),
        ("output y = a + 1", {"a": [[1, 2], [3]]}, "LF0503"),
        (
            "input x: f32[N]  param gain: f32 = 2  output y = gain * x",
            {"x": np.ones(2, np.float32), "gian": 3},
            "LF0502",
        ),
    ],
    ids=["no keyword", "complex", "None", "ragged", "a misspelt param"],
)
def test_wrong_arrays_without_declarations(script: str, given: dict[str, object], code: str) -> None:
    with pytest.raises(lf.Error) as caught:
        lf.run(script, **given)
    assert [told.code for told in caught.value.diagnostics] == [code]


@pytest.mark.parametrize("options", [{"dims": 3}, {"dims": {"N": 2.5}}, {"limit": "8G"}])
def test_options_of_a_wrong_type(options: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        lf.compile("input x: f32[N]  output y = x")(np.ones(2, np.float32), **options)


def test_sizes_are_integers() -> None:
    with pytest.raises(TypeError, match="sizes"):
        lf.compile("size R = 2  output y = R", sizes={"R": 2.5})  # type: ignore[dict-item]


def test_lowering() -> None:
    x, w = data()
    lowered = lf.parse(GATE).lower()
    assert parse_program(lowered.as_text()) == lowered.ir
    assert "# @7" in lowered.as_text(gutter=True)
    assert (lowered.interpret(x, w, shift=0).y == 2 * x + 3).all()
    assert "kernels" in repr(lowered)


def test_programs_can_be_pickled() -> None:
    x, w = data()
    again = pickle.loads(pickle.dumps(lf.compile(GATE)))
    assert (again(x, w, shift=0).y == 2 * x + 3).all()


def test_sizes_and_dims() -> None:
    x, w = data()
    assert (lf.compile(GATE, sizes={"R": 0})(x, w, shift=0).y == 2 * x).all()
    half = lf.compile("input x: f32[N // 2]  output y = sum(x) + N")
    assert half(np.ones(2, np.float32), dims={"N": 5}) == 7
    with pytest.raises(lf.Error, match="LF0507"):
        half(np.ones(2, np.float32))


def test_data_is_never_converted() -> None:
    x, w = data()
    f = lf.compile(GATE)
    for wrong in (x.astype(np.float64), x.astype(np.int32), x.tolist(), None, "x", object()):
        with pytest.raises(lf.Error, match="LF0503"):
            f(wrong, w, shift=0)
    with pytest.raises(lf.Error, match="LF0504"):
        f(w, w, shift=0)
    with pytest.raises(lf.Error, match="LF0517"):
        f(x, np.ones(4, np.float32), shift=0)
    with pytest.raises(lf.Error, match="LF0610"):
        f(x[:, :1], w[:1], shift=0)
    with pytest.raises(lf.Error, match="LF0612"):
        f(x - 200, w, shift=0)
    with pytest.raises(lf.Error, match="LF0508"):
        f(x, w)
    with pytest.raises(lf.Error, match="LF0508"):
        f(x, w, shift=1.5)
    with pytest.raises(lf.Error, match="LF0502"):
        f(x, w, w, shift=1)
    with pytest.raises(lf.Error, match="LF0502"):
        f(x, x=x, w=w, shift=1)
    with pytest.raises(lf.Error, match="LF0502"):
        f(x, w, shift=1, other=3)
    with pytest.raises(lf.MachineError):
        f(x, w, shift=1, backend="abacus")
    with pytest.raises(lf.Error, match="LF0509"):
        f(x, w, shift=1, limit=10)


def test_strided_and_foreign_arrays() -> None:
    f = lf.compile("input x: f32[N, M]  output y = x.T")
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-3]
    assert (f(x) == x.T).all()
    assert (f(np.asfortranarray(x)) == x.T).all()

    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return x

    assert (f(Foreign()) == x.T).all()


def test_inputs_are_not_written_and_outputs_are_fresh() -> None:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    f = lf.compile("input x: f32[N]  output y = x  output z = x")
    y, z = f(x)
    assert not np.shares_memory(y, x)
    assert not np.shares_memory(y, z)
    y[0] = 5
    assert z[0] == 1


def test_scripts_in_files(tmp_path: Path) -> None:
    (tmp_path / "s.lf").write_text('input x: f32[N] from "x.npy"\noutput y = x + 1\n')
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    assert lf.run(tmp_path / "s.lf").tolist() == [1, 1]
    assert lf.compile(tmp_path / "s.lf")(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    program = lf.parse(tmp_path / "s.lf")
    assert program.inputs[0].default == "x.npy"
    assert program.name == "s"
    with pytest.raises(lf.Error, match="Path"):
        lf.parse("s.lf")
    with pytest.raises(lf.Error, match="LF0510"):
        lf.parse(tmp_path / "no.lf")
    with pytest.raises(TypeError):
        lf.parse(3)  # type: ignore[arg-type]


def test_errors_of_scripts() -> None:
    with pytest.raises(lf.Error) as caught:
        lf.parse("let a = \nlet b = unknown\noutput b", name="cell 3")
    assert len(caught.value.diagnostics) == 2
    assert "cell 3:1:" in str(caught.value)


def test_what_the_package_offers() -> None:
    assert set(lf.__all__) <= set(dir(lf))
    for name in lf.__all__:
        assert getattr(lf, name).__doc__
    with pytest.raises(AttributeError):
        _ = lf.nothing


def test_an_output_may_not_lie_where_an_input_does() -> None:
    f, x = lf.compile("input x: f32[N]\noutput y = x * 2"), np.arange(4, dtype=np.float32)
    with pytest.raises(lf.Error) as caught:
        f(x, out=x, backend="reference")
    assert caught.value.diagnostics[0].code == "LF0520"
    np.testing.assert_array_equal(x, np.arange(4))
    y = np.empty_like(x)
    assert f(x, out=y, backend="reference") is y
