"""Damaged bytes for everything that reads, in a process of little memory: refused by a message, never a traceback.

`make malformed` runs far more of it, guided by coverage where atheris is installed; see tests/malformed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from malformed.damage import BINARY
from malformed.guided import Chosen, case
from malformed.targets import NAMES, Target

from loopfuse import driver, reader
from loopfuse.cli import main
from loopfuse.diag import Source, UserError
from loopfuse.dtypes import F32
from loopfuse.files import Place, load
from loopfuse.frontend.check import calls
from loopfuse.lock import read_lock

HERE = Path(__file__).parent
MANY = 1000  # cases of a target, of which some must be accepted
NEVER = {"cache", "raw"}  # of the first nothing damaged is accepted, of the second everything is


def worked(save: Path, *options: str) -> list[dict[str, Any]]:
    """What the worker found, a target each."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    done = subprocess.run([sys.executable, "-m", "malformed.worker", "--save", str(save), *options], capture_output=True,
                          text=True, env=environment, cwd=save)  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    problems = [f"{f['target']}, {problem}" for f in found for problem in f["problems"]]
    assert not problems, "\n".join(problems)
    assert done.returncode == 0, done.stderr[-3000:]
    return found


def judge(found: list[dict[str, Any]], cases: int) -> None:
    """Each target saw what is refused and what is accepted: the damage is neither too great nor too small."""
    for one in found:
        accepted = one["results"].get("accepted", 0)
        assert sum(one["results"].values()) == cases
        least = 1 if cases >= MANY else 0  # of a format with checks of its own few are accepted
        assert one["target"] in NEVER or least <= accepted < cases, one


def test_a_little_damage_to_everything(tmp_path: Path) -> None:
    found = worked(tmp_path, "--cases", "30")
    assert [f["target"] for f in found] == list(NAMES)
    judge(found, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_much_damage(name: str, tmp_path: Path) -> None:
    judge(worked(tmp_path, "--targets", name, "--cases", "3000", "--seed", "7"), 3000)


# -- guided by coverage -----------------------------------------------------------------------------------------------


def test_choices_read_from_bytes() -> None:
    """Every choice can be made by some bytes, none is out of reach, and where bytes end choices still do."""
    words = ["a", "b", "c", "d", "e"]
    assert {Chosen(bytes([n, n])).choice(words) for n in range(256)} == set(words)
    assert all(0 <= Chosen(bytes([n])).random() < 1 for n in range(256))
    spent = Chosen(b"")
    assert (spent.choice(words), spent.random(), spent.randrange(1000)) == ("a", 0, 0)


@pytest.mark.parametrize("read, told", [(lambda data, rng: "LF0101", ""), (lambda data, rng: data[9], "IndexError"),
                                        (lambda data, rng: sys.exit(3), "SystemExit: 3")])  # fmt: skip
def test_what_counts_as_found(read: Any, told: str) -> None:
    problem = case(Target([b"x"], BINARY, read), b"\0abc")
    assert told in problem
    assert bool(problem) == bool(told)


@pytest.mark.slow
def test_guided_by_coverage(tmp_path: Path) -> None:
    """New branches are found from the valid files on, and nothing is wrong."""
    pytest.importorskip("atheris")
    words = ["--targets", "decisions", "--seconds", "5", "--save", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "malformed.guided", *words], capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    name, cases, _, seeds, new, *_ = done.stdout.splitlines()[1].split()
    assert (name, seeds) == ("decisions", "24")
    assert int(cases) > 100 and int(new) > 0


# -- large and deep ---------------------------------------------------------------------------------------------------

HUGE = {
    "brackets": ("output y = " + "(" * 10_000, "LF0109"),
    "signs": ("output y = " + "-" * 10_000 + "1\n", "LF0109"),
    "powers": ("input x: f32[N]\noutput y = " + "x**" * 2000 + "x\n", "LF0109"),
    "conditions": ("input x: f32[N]\noutput y = " + "x if x > 1 else " * 2000 + "x\n", "LF0109"),
    "digits": ("output y = " + "9" * 1_000_000 + "\n", "LF0106"),
    "exponent": ("output y = 1e" + "9" * 100_000 + "\n", "LF0106"),
    "string": ('require 1 > 0, "' + "x" * 100_000 + "\n", "LF0105"),
    "zeros": ("\0" * 10_000, "LF0104"),
    "errors": ("let = \n" * 500, "LF0101"),
    "power of sizes": ("size A = 9**9**9**9\noutput y = 1.0\n", None),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_large_and_deep_scripts(name: str) -> None:
    text, code = HUGE[name]
    with pytest.raises(UserError) as caught:
        driver.compile_source(Source("s.lf", text))
    assert code in (None, caught.value.diagnostics[0].code)
    assert len(str(caught.value)) < 20_000


def test_functions_that_double_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_CALLS", 1000)
    lines = ["input x: f32[N]", "fn g0(x) = x + 1", *(f"fn g{k}(x) = g{k - 1}(x) * g{k - 1}(x)" for k in range(1, 40))]
    with pytest.raises(UserError) as caught:
        driver.compile_source(Source("s.lf", "\n".join([*lines, "output y = g39(x)", ""])))
    assert caught.value.diagnostics[0].code == "LF0218"


@pytest.mark.parametrize("line", ["a = {" + "-" * 5000 + "1}", "a = " + "1.0f32 ** " * 5000 + "1.0f32",
                                  "a = x[" * 3000, "a = " + "(" * 5000, "par i < " + "(" * 5000])  # fmt: skip
def test_deep_ir_text(line: str) -> None:
    try:
        reader.parse_program(f"program p(N)\nbuf x: f32[N] in\n{line}\n")
    except UserError as why:
        assert why.diagnostics[0].code in ("LF0801", "LF0802", "LF0803")
    else:
        assert "--" in line  # an even number of signs


def test_a_slice_that_leaves_no_rows() -> None:
    """A requirement that leaves a size no value but 0: the verifier counted elements as if there were some."""
    text = """\
input z: f32[B, 4 * U]
scan t in 0..T carry (c = zeros(f32, B, U)) {
  next c = z[:, U:5*U] * c
}
output y = c
input n: f32[T]
"""
    typed = driver.compile_source(Source("s.lf", text)).typed
    driver.optimise(driver.lower_program(typed))


# -- files that are none ----------------------------------------------------------------------------------------------


def test_what_never_ends_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "/dev/zero"]) == 1
    assert "larger than 64 MiB" in capsys.readouterr().err
    (tmp_path / "s.lf").write_text('import "/dev/zero" as m\noutput y = 1.0\n')
    assert main(["run", str(tmp_path / "s.lf")]) == 1
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Where nobody named it: a module, data, the lock file beside a script, an entry of the cache."""
    for name in ("m.lf", "x.npy", "s.lf.lock"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "s.lf").write_text('import "m.lf" as m\noutput y = 1.0\n')
    with pytest.raises(UserError, match="not a regular file"):
        driver.compile_source(driver.read_source(tmp_path / "s.lf"), search=tmp_path)
    with pytest.raises(UserError, match="not a regular file"):
        load(Place("x.npy", tmp_path), F32, 1, "x")
    told: list[Any] = []
    assert read_lock(tmp_path / "s.lf.lock", told.append) is not None
    assert "not a regular file" in told[0].message


def test_an_image_is_not_given_to_other_programs(tmp_path: Path) -> None:
    """PostScript under the name of a picture: Pillow would have Ghostscript run it."""
    (tmp_path / "x.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    with pytest.raises(UserError, match="not an image") as caught:
        load(Place("x.png", tmp_path), F32, 2, "x")
    assert caught.value.diagnostics[0].code == "LF0511"
