"""What `loopfuse fuzz --gen` says of itself: what it cannot reach, figures that add up, programs that do not end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from bench import fuzz_table

import loopfuse as lf
from loopfuse.testing import coverage, trial
from loopfuse.testing.campaign import Batch, Campaign, Figures, Limits, Run, Source, load_figures, save_figures
from loopfuse.testing.choices import Steered
from loopfuse.testing.limit import TooLong, limited
from loopfuse.testing.scripts import script
from loopfuse.testing.trial import Outcome, Setting, tried
from loopfuse.testing.unreachable import UNREACHABLE
from loopfuse.testing.wanted import Wanted, types_of_rules, wanted
from loopfuse.testing.workers import Workers

GENERATED = Setting(contracts=False)
SLOW = "input x: f32[N]\noutput y = x\n"


# -- what is unreachable ----------------------------------------------------------------------------------------------


def test_what_is_unreachable_exists() -> None:
    known = frozenset().union(*coverage.universe().values())
    assert set(UNREACHABLE) <= known
    assert all(why for why in UNREACHABLE.values())


def test_what_is_unreachable_is_not_reached() -> None:
    """By the operations of programs that were only lowered, and by all that a few did."""
    reached: Counter[str] = Counter()
    for number in range(60):
        text = script(Steered(Random(f"unreached {number}"), reached))
        reached.update(coverage.of_program(lf.parse(text).lower().ir))
    for number in range(6):
        reached.update(tried(script(Steered(Random(number), reached)), Steered(Random(number)), GENERATED).reached)
    assert not set(UNREACHABLE) & set(reached)


def test_what_is_unreachable_is_not_reached_by_its_own_script() -> None:
    """Programs written for what the list says cannot be reached."""
    texts = [
        "input a: f32[N]\noutput b[i in 0..N] = abs(a[i]) * abs(a[i])\n",
        "input a: f16[N]\noutput b = sum(a)\noutput c = prod(a)\n",
        "input a: bf16[N]\ninput j: i32[N] where 0 <= j < 4\n"
        "accum b: bf16[4] = 0 for i in 0..N { b[j[i]] += a[i] }\noutput b\noutput c = prod(a)\n",
        "input a: bool[N]\ninput j: i32[N] where 0 <= j < 4\n"
        "accum b: bool[4] = false for i in 0..N { b[j[i]] |= a[i] }\noutput b\n"
        "accum c: bool[4] = true for i in 0..N { c[j[i]] &= a[i] }\noutput c\n",
    ]
    reached: Counter[str] = Counter()
    for text in texts:
        outcome = tried(text, Steered(Random(1)), GENERATED)
        assert outcome.failure is None, outcome.failure.title
        reached.update(outcome.reached)
    assert not set(UNREACHABLE) & set(reached)
    assert {"fold sum f32", "fold prod f32", "fold any bool", "fold all bool"} <= set(reached)


def test_every_other_rule_is_aimed_at() -> None:
    laws = {f"rule {rule.name}" for rule in coverage.LAWS}
    assert set(types_of_rules()) == set(wanted("rule")) - laws
    assert not {name for kind in coverage.KINDS for name in coverage.missing({}, kind)} & {
        name.partition(" ")[2] for name in UNREACHABLE if name.startswith("rule")
    }


def test_forms_reach_the_schedules_of_large_arrays() -> None:
    """Attention as a stream, and a recurrence with a product in steps, for the sizes that the cost model is told."""
    assert Wanted.form_attention and Wanted.form_recurrence
    attention = (
        "input q: f16[N, K]\ninput k: f16[M, K]\ninput v: f16[M, K]\nlet s = q @ k.T\noutput o = maximum(s, 0) @ v\n"
    )
    steps = (
        "input w: f32[K, K]\ninput x: f32[N, M, K]\n"
        "scan t in 0..N carry (h = zeros(f32, M, K)) {\n  let a = tanh(h @ w + x[t])\n  next h = a\n  emit y = a\n}\noutput y\n"
    )
    for text, name in ((attention, "stream"), (steps, "steps")):
        made = trial.subject(text)
        draw = trial.data.draw(made.checked.typed, made.given, Steered(Random(4)), "small")
        assert draw is not None
        outcome = trial.run(made, draw, {**draw.bound.sizes, "N": 4096, "M": 4096, "K": 64}, GENERATED)
        assert outcome.failure is None, outcome.failure.title
        assert outcome.reached[f"schedule {name}"], outcome.reached


# -- figures ----------------------------------------------------------------------------------------------------------

SMALL = Figures(1500, 2, 700.0, 90_000, 900, 1, Counter({"pass fuse": 900, "schedule map": 20}), Counter({"cuda": 300}),
                (Run("2026-01-02", "16 CPU cores", 16, 1500, 700.0),))  # fmt: skip


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_figures(tmp_path / "state.json", SMALL)
    assert load_figures(tmp_path / "state.json") == SMALL
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_the_section_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, page = tmp_path / "state.json", tmp_path / "page.md"
    save_figures(state, SMALL)
    words = [str(state), "--page", str(page)]
    page.write_text("before\n", encoding="utf-8")
    assert fuzz_table.main(words) == 1 and "no place" in capsys.readouterr().err
    page.write_text(
        "before\n<!-- random programs: 0 -->\nwhat was there\n<!-- end of random programs -->\nafter\n",
        encoding="utf-8",
    )
    assert fuzz_table.main(words) == 0
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "what was there" not in text
    for part in ("1,500; 300 of them on cuda too", "| undecided | 1.00% |", "2026-01-02 | 16 CPU cores | 16 | 1,500 | 0.13",
                 "| passes that changed something | 1 of ", "rule `abs-squared`"):  # fmt: skip
        assert part in text, text
    assert fuzz_table.main(words) == 0 and page.read_text("utf-8") == text
    save_figures(state, replace(SMALL, programs=20))
    assert fuzz_table.main(words) == 1 and "1500 programs" in capsys.readouterr().err
    assert fuzz_table.main([*words, "--smaller"]) == 0 and "random programs: 20 -->" in page.read_text("utf-8")


def test_the_page_has_a_place_for_the_figures() -> None:
    assert fuzz_table.SECTION.search(fuzz_table.PAGE.read_text("utf-8"))


def test_runs_of_a_day_add_up() -> None:
    source = Source("input x: f32[N]\noutput y = x + 1\n", "a.lf")
    figures = None
    for turn in (1, 2):
        figures = Campaign(source, GENERATED, turn, Limits(examples=2), figures=figures, device="here").run()
    assert figures is not None and figures.programs == 4
    (run,) = figures.runs
    assert (run.device, run.jobs, run.programs) == ("here", 1, 4)
    assert run.seconds == pytest.approx(figures.seconds)


# -- programs that do not end -----------------------------------------------------------------------------------------


def test_a_limit_of_time() -> None:
    with pytest.raises(TooLong), limited(0.02):
        while True:
            pass
    with limited(60):
        pass


def test_a_program_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> tuple[str, str]:
        while True:
            pass

    monkeypatch.setattr(trial, "_after_passes", endless)
    failure = tried(SLOW, Steered(Random(0)), replace(GENERATED, seconds=0.5)).failure
    assert failure is not None and failure.key == ("hang", "reference") and failure.taints
    assert "did not end within 0.5 s" in failure.title and failure.case.arrays.keys() == {"x"}


def test_what_nobody_foresaw_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[str, str]:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(trial, "_after_passes", broken)
    campaign = Campaign(Source(statements=1), GENERATED, 0, Limits(examples=3))
    campaign.run()
    (failure,) = campaign.found.values()
    assert failure.what == "crash" and "of ours" in failure.problem and failure.case.text


def odd_trials(batch: Batch, begun: Callable[[str], None]) -> Iterator[Outcome]:
    """The first program's process dies, the second's hangs, the rest are well."""
    for number in range(batch.start, batch.start + batch.count):
        begun(f"program {number}")
        if number == 0:
            os._exit(7)
        if number == 1:
            time.sleep(600)
        yield Outcome(elements=number)


@pytest.mark.slow
def test_processes_that_die_or_hang_are_replaced() -> None:
    batches = [Batch(Source(), GENERATED, 0, start, 2, 0.0, {}) for start in (0, 2)][::-1]
    found = list(Workers(1, odd_trials, 2.0).run(lambda: batches.pop() if batches else None))
    assert [f.failure.key if f.failure else f.elements for f in found] == [
        ("crash", "process"),
        ("hang", "process"),
        2,
        3,
    ]
    assert [f.failure.case.text for f in found if f.failure] == ["program 0", "program 1"]
