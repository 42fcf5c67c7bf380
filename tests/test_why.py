"""`explain --why` gives the true cause, in a user's words and with its places, for each kind of obstacle."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopfuse.cli import main

CASES: dict[str, tuple[str, tuple[str, str], tuple[str, ...]]] = {
    "a consumer at another extent": (
        "input x: f32[M, N]\nlet s[i] = sum(x[i, j] for j)\noutput t[k in 0..M-1] = s[k] + s[k + 1]\n",
        ("s", "t"),
        ("[extent]", "computed for `i` in 0..M, and its reader runs over 0..M - 1", "written at [i] and read at [k]",
         "2 | let s[i]", "3 | output t[k"),
    ),
    "a gather": (
        "input x: f32[M, N]\ninput k: i64[N] where 0 <= k < M\n"
        "let s[i] = sum(x[i, j] for j)\noutput y[i] = s[k[i]]\n",
        ("s", "y"),
        ("[gather]", "`s` is read at a subscript that is computed from data", "written at [i] and read at [data]",
         "3 | let s[i]", "4 | output y[i]", "help: read it at a loop index"),
    ),
    "a recurrence": (
        "input x: f32[T, N]\nscan t in 0..T carry (s = zeros(f32, N)) {\n  next s = 0.5 * s + x[t]\n  emit a = s\n}\n"
        "scan t in 0..T by -1 carry (r = zeros(f32, N)) {\n  next r = 0.5 * r + a[t]\n  emit b = r\n}\noutput b\n",
        ("a", "b"),
        ("[recurrence]", "`a` is complete only after all steps of", "runs in order", "written at [t, i] and read at"),
    ),
    "too large for registers": (
        "input x: f16[M, K]\ninput w1: f16[K, F]\ninput w2: f16[F, N]\n"
        "let h = x @ w1\noutput y = maximum(h, 0) @ w2\n",
        ("h", "y"),
        ("[registers]", "each row accumulates 1024 values", "registers hold 256", "help: N <= 256", "would be saved"),
    ),
    "a pragma": (
        "input x: f32[N, N]\nlet a = exp(x)\noutput y = a + 1\npragma nofuse(a, y)\n",
        ("a", "y"),
        ("[nofuse]", "`pragma nofuse(a, y)` keeps them apart", "4 | pragma nofuse(a, y)", "help: take it out"),
    ),
    "a result that is needed everywhere": (
        "input x: f32[N]\nlet total = sum(x)\noutput y[i] = x[i] / total\n",
        ("total", "y"),
        ("[reduction]", "`total` is complete only after the whole loop over `i`", "needs it at its first step"),
    ),
    "a refused cascade": (
        "input x: f32[M, N]\nlet m[i] = max(x[i, j] for j)\nlet l[i] = sum(sin(x[i, j] - m[i]) for j)\n"
        "output m\noutput l\n",
        ("m", "l"),
        ("[cascade]", "inside `sin(x[i, j] - m[i])`", "no product of a function of the element and one of the maximum",
         "help: compute the maximum in a pass of its own", "3 | let l[i]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_the_cause(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, (a, b), wanted = CASES[what]
    script = tmp_path / "case.lf"
    script.write_text(text, encoding="utf-8")
    assert main(["explain", str(script), "--why", a, b]) == 0
    said = "\n".join(capsys.readouterr())
    for words in wanted:
        assert words in said, f"{words!r} is not in\n{said}"


def test_a_name_that_is_not_there_gets_the_near_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "case.lf"
    script.write_text("input x: f32[N]\nlet alpha = exp(x)\noutput y = alpha + 1\n", encoding="utf-8")
    assert main(["explain", str(script), "--why", "alhpa", "y"]) == 2
    assert "did you mean `alpha`?" in capsys.readouterr().err
