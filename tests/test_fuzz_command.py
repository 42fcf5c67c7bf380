"""`loopfuse fuzz` as a command: the time is held, what cannot be is refused before the search, and what did not run is told."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_shell import Shell

from loopfuse import driver
from loopfuse.cli import bench
from loopfuse.testing import campaign, trial
from loopfuse.testing.campaign import Batch, Campaign, Limits, Source
from loopfuse.testing.limit import TimeUp, until
from loopfuse.testing.reduce import Reducer
from loopfuse.testing.trial import Outcome, Setting
from loopfuse.testing.workers import Workers

PLAIN = "input x: f32[N]\noutput y = x + 1\n"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    shell.write("a.lf", PLAIN)
    return shell


# -- time -------------------------------------------------------------------------------------------------------------


def test_the_end_comes_whatever_runs() -> None:
    start = time.monotonic()
    with pytest.raises(TimeUp), until(time.time() + 0.05):
        while True:
            time.sleep(0.01)
    assert time.monotonic() - start < 1
    with until(time.time() + 60), until(time.time() + 1e12):
        pass
    with pytest.raises(TimeUp), until(time.time() - 1):
        pytest.fail("the body runs after the end")


def test_a_long_trial_stops_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that waits, and one that computes; what was done before counts."""
    done: list[int] = []

    def slow(*_: object) -> tuple[str, str]:
        done.append(1)
        while len(done) > 2:
            time.sleep(0.01)
        return "", ""

    monkeypatch.setattr(trial, "_after_passes", slow)
    run = Campaign(Source(PLAIN), Setting(), 0, Limits(seconds=0.6))
    start = time.monotonic()
    figures = run.run()
    assert 0.5 < time.monotonic() - start < 2.5
    assert figures.programs == 2 and not run.found and run.elapsed < 2.5


def waiting(batch: Batch, begun: Callable[[str], None]) -> Iterator[Outcome]:
    """One program is done, the next does not hear that the time is over."""
    for number in range(batch.start, batch.start + batch.count):
        begun(f"program {number}")
        while number:
            time.sleep(1)
        yield Outcome(elements=number)


@pytest.mark.slow
def test_processes_stop_at_the_end() -> None:
    """Seconds that a process takes to start count too."""
    batches = [Batch(Source(), Setting(), 0, 0, 9, 0.0, {})]
    start = time.monotonic()
    found = list(Workers(1, waiting, 600.0, start + 20).run(lambda: batches.pop() if batches else None))
    assert [f.elements for f in found] == [0] and 20 < time.monotonic() - start < 22


# -- command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "said"), [
    (("a.lf", "--gen"), "(loopfuse fuzz a.lf), or the script (loopfuse fuzz --gen)"),
    (("a.lf", "--replay", "f.json"), "give it alone (loopfuse fuzz --replay f.json)"),
    (("--gen", "--replay", "f.json"), "give it alone"), ((), "give a script (loopfuse fuzz script.lf)"),
    (("x=randn",), "give the script before it"), (("--gen", "x=randn"), "data is for a script"),
])  # fmt: skip
def test_what_does_not_go_together(shell: Shell, words: tuple[str, ...], said: str) -> None:
    assert shell("fuzz", *words) == 2
    assert said in shell.err


def test_where_nothing_can_be_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before the search."""
    monkeypatch.setattr(Campaign, "run", lambda self: pytest.fail("it searched"))
    for path in ("a.lf", "a.lf/found"):
        assert shell("fuzz", "a.lf", "--save", path) == 1
        assert "LF0515" in shell.err and "file" in shell.err
    assert shell("fuzz", "a.lf", "--state", "absent/state.json") == 1 and "there is no folder" in shell.err
    monkeypatch.setattr(os, "access", lambda *_: False)
    for words in (("--save", "found"), ("--state", "state.json")):
        assert shell("fuzz", "a.lf", *words) == 1 and "is not writable" in shell.err
    assert sorted(os.listdir()) == ["a.lf"]


@pytest.mark.parametrize("words", [("run", "a.lf", "x=randn", "--dims", "N=4", "-o", "y=a.lf/y.npy"),
                                   ("bench", "a.lf", "--save", "absent/b.json"), ("bench", "a.lf", "--save", ".")])  # fmt: skip
def test_other_commands_refuse_before_they_run(shell: Shell, words: tuple[str, ...],
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(driver, "execute", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(bench, "_rows", lambda *_: pytest.fail("it ran"))
    assert shell(*words) == 1
    assert "LF0515" in shell.err and "cannot be written: " in shell.err


# -- what is told -----------------------------------------------------------------------------------------------------


def test_impossible_scripts_are_refused(shell: Shell) -> None:
    shell.write("domain.lf", "input x: f32[N] where 1 <= x <= 0\noutput y = x\n")
    assert (
        shell("fuzz", "domain.lf") == 1 and "no data can exist for `x`" in shell.err and "domain.lf:1:23" in shell.err
    )
    shell.write("sizes.lf", "input x: f32[N]\nrequire N > 4\nrequire N < 3\noutput y = x\n")
    assert shell("fuzz", "sizes.lf") == 1 and "no sizes were found that meet `N > 4` and `N < 3`" in shell.err


def test_data_that_is_not_found_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter(["no luck", "no luck"])
    real = campaign.drawn

    def unlucky(*rest: object) -> Outcome:
        why = next(draws, "")
        return Outcome(skipped=why, idle=True) if why else real(*rest)  # type: ignore[arg-type]

    monkeypatch.setattr(campaign, "drawn", unlucky)
    assert shell("fuzz", "a.lf", "--examples", "2") == 1
    assert "2 of them did not run: no luck\nnothing was tried" in shell.out and "agrees" not in shell.out
    draws = iter(["no luck"])
    assert shell("fuzz", "a.lf", "--examples", "2") == 0
    assert "1 of them did not run: no luck\neverything agrees" in shell.out


def test_the_script_stays_and_the_data_is_plain(shell: Shell) -> None:
    text = (
        "# Shares of a whole.\n"
        "input x: f32[N] where 0 <= x <= 100\n"
        "require N % 3 == 0\n"
        "output share = x / sum(x)\n"
        'check N < 12 or all(x <= 50), "nobody has more than half"\n'
    )
    shell.write("share.lf", text)
    assert shell("fuzz", "share.lf", "--examples", "400", "--save", "found") == 3
    assert "on data of N = 12" in shell.out and "".join(f"    {line}\n" for line in text.splitlines()) in shell.out
    (row,) = (line for line in shell.out.splitlines() if line.startswith("    x = "))
    values = [float(v) for v in row.partition("[")[2].rstrip("]").split(", ")]
    assert sorted(values)[:11] == [0.0] * 11 and max(values) in range(51, 101)
    (path,) = Path("found").glob("*.json")
    assert shell("fuzz", "--replay", str(path)) == 3


def test_nothing_done_is_no_success(shell: Shell) -> None:
    for words in (("a.lf",), ("--gen",)):
        assert shell("fuzz", *words, "--time", "0") == 1
        assert "not one was done in this time: give a longer --time" in shell.out


# -- several failures -------------------------------------------------------------------------------------------------

THREE = "input x: f32[N] where 0 <= x <= 1\noutput y = x\ncheck all(y < 0)\ncheck all(y > 1)\n" \
        "check all(x == x)\ncheck sum(y) < 0, \"no sum is negative\"\n"  # fmt: skip
CHECKS = ("all(y < 0)", "all(y > 1)", "sum(y) < 0")


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_a_check_that_always_fails_hides_no_other(shell: Shell, most: int) -> None:
    shell.write("three.lf", THREE)
    assert shell("fuzz", "three.lf", "--failures", str(most), "--examples", "12", "--save", "found") == 3
    count = min(most, len(CHECKS))
    assert [text in shell.out for text in CHECKS] == [k < count for k in range(3)]
    assert (
        shell.out.count("found: check failed") == count and f"{count} kind{'s' * (count > 1)} of failure" in shell.out
    )
    assert len(list(Path("found").glob("*.json"))) == len(list(Path("found", "whole").glob("*.json"))) == count


def test_what_is_replayed_is_what_was_saved(shell: Shell) -> None:
    """As it was found, with checks before it that fail too; and made small, without them."""
    shell.write("three.lf", THREE)
    assert shell("fuzz", "three.lf", "--failures", "3", "--examples", "12", "--save", "found") == 3
    for folder in (Path("found"), Path("found", "whole")):
        told = set()
        for path in folder.glob("*.json"):
            about = json.loads(path.read_text())["about"]
            assert shell("fuzz", "--replay", str(path)) == 3
            assert about.removeprefix("check ").partition(",")[0] in shell.out
            told.add(about)
        assert len(told) == 3


def test_the_same_subscripts_elsewhere_are_another_access() -> None:
    text = "input x: f32[N]\ninput i: i32[M]\ninput k: i32[M]\noutput y = x[i]\n" \
           "let z[n in 0..M] = x[i[n]] + 1\noutput z\noutput v = sum(x[i])\n"  # fmt: skip
    run = Campaign(Source(text), Setting(passes="none"), 0, Limits(examples=40, failures=9))
    run.run()
    small = [Reducer(f, run.setting, seconds=20).run() for f in run.found.values()]
    assert {f.about for f in small} == {"x[i] in output y = x[i]", "x[i[n]] in let z[n in 0..M] = x[i[n]] + 1",
                                        "x[i] in output v = sum(x[i])"}  # fmt: skip
    assert all(f.about.partition(" in ")[2].partition(" ")[2] in f.case.text for f in small)
    assert len({f.case.text for f in small}) == 3


# -- states -----------------------------------------------------------------------------------------------------------


def state() -> dict[str, Any]:
    return dict(json.loads(Path("s.json").read_text()))


def test_a_state_is_of_one_thing(shell: Shell) -> None:
    """Of a script, or of random programs: else nothing is run, and the file stays as it is."""
    shell.write("b.lf", PLAIN + "output z = x * 2\n")
    kinds = {"a.lf": ("a.lf",), "b.lf": ("b.lf",), "--gen": ("--gen", "--statements", "1")}
    for first, words in kinds.items():
        Path("s.json").unlink(missing_ok=True)
        assert shell("fuzz", *words, "--state", "s.json", "--examples", "1", "--backend", "reference") == 0
        before = Path("s.json").read_bytes()
        for second, others in kinds.items():
            if second != first:
                assert shell("fuzz", *others, "--state", "s.json", "--examples", "1", "--backend", "reference") == 1
                named = "random programs (--gen)" if first == "--gen" else f"`{first}`"
                assert f"LF0522]: the state `s.json` holds the figures of {named}, not of " in shell.err
                assert "name another file (--state FILE), or delete this one" in shell.err and not shell.out
                assert Path("s.json").read_bytes() == before


def test_figures_of_one_script_add_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever path it is named, moved with its state, and under another name."""
    words = ("--state", "s.json", "--examples", "2")
    assert shell("fuzz", "a.lf", *words) == 0 and shell("fuzz", "./a.lf", *words) == 0
    assert state()["programs"] == 4 and "4 with those before" in shell.out
    Path("a.lf").rename("moved.lf")
    assert shell("fuzz", str(Path("moved.lf").absolute()), *words) == 0 and state()["programs"] == 6
    assert state()["of"]["script"] == "moved.lf"
    Path("sub").mkdir()
    for name in ("moved.lf", "s.json"):
        Path(name).rename(Path("sub", name))
    shell.write("sub/moved.lf", PLAIN + "# more\n")
    monkeypatch.chdir("sub")
    assert shell("fuzz", "moved.lf", *words) == 0 and "`moved.lf` has changed" in shell.err


def test_a_changed_script_begins_anew(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--state", "s.json", "--examples", "3")
    assert shell("fuzz", "a.lf", *words) == 0 and not shell.err
    shell.write("a.lf", PLAIN.replace("1", "2"))
    assert shell("fuzz", "a.lf", *words, "-q") == 0
    assert "`a.lf` has changed since `s.json` was written: its figures begin anew\n" in shell.err
    assert "with those before" not in shell.out and state()["programs"] == 3
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PLAIN.encode())))
    assert shell("fuzz", "-", *words) == 1 and "of `a.lf`, not of `<stdin>`" in shell.err
    for text, code in ((PLAIN, 0), (PLAIN, 0), (PLAIN + "# changed\n", 1)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert shell("fuzz", "-", "--state", "t.json", "--examples", "3") == code
    assert "of `<stdin>`, not of this text" in shell.err


def test_states_of_another_version(shell: Shell) -> None:
    assert shell("fuzz", "a.lf", "--state", "s.json", "--examples", "1") == 0
    for change in ({"schema": 1}, {"of": None}, {"of": {}}, {"of": "a.lf"}):
        shell.write("t.json", json.dumps({**state(), **change}))
        assert shell("fuzz", "a.lf", "--state", "t.json", "--examples", "1") == 1
        assert "LF0511]: `t.json` is not a state of this version" in shell.err and "delete this one" in shell.err


# -- interruption -----------------------------------------------------------------------------------------------------

FAILS = "input x: f32[N] where 0 <= x <= 1\noutput y = x\ncheck all(x < 0)\n"


@pytest.mark.parametrize(("words", "told"), [
    ((), "; --save DIR keeps failures; --state FILE keeps the figures"),
    (("--save", "found", "--state", "s.json"), f"; kept: failures in {Path('found', 'whole')}, figures in s.json"),
])  # fmt: skip
def test_ctrl_c_tells_what_was_found(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
                                     told: str) -> None:  # fmt: skip
    """While failures are made small, and before anything was found."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    shell.write("fails.lf", FAILS)
    monkeypatch.setattr("loopfuse.cli.fuzz._smaller", interrupt)
    assert shell("fuzz", "fails.lf", *words) == 130
    line, last = shell.err.splitlines()[-2:]
    assert last == "interrupted" and line.endswith(told) and "Traceback" not in shell.err
    assert "of data done, 1 kind of failure (check failed: `all(x < 0)`" in line
    if words:
        assert list(Path("found", "whole").glob("*.json"))
        assert state()["programs"] == int(line.split()[0])
        Path("s.json").unlink()  # it is of that script
    monkeypatch.setattr(campaign, "drawn", interrupt)
    assert shell("fuzz", "a.lf", *words) == 130
    assert "0 sets of data done, nothing found; " in shell.err and shell.err.endswith("\ninterrupted\n")
