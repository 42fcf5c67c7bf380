"""`loopfuse run`: what it prints, data and files, and how it fails."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from cli_shell import CHAIN, Shell, chain_shell, environment, python

from loopfuse.views.values import describe, summarize

shell = chain_shell


def test_run_prints_a_line_an_output(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy") == 0
    assert shell.out == "y  f32[3]  min 1  max 25  mean 11.6667  nan 0  count 3\n"
    assert shell.err == ""


def test_run_prints_values(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "--print", "full") == 0
    assert shell.out.splitlines()[1] == "[ 9., 25.,  1.]"
    assert shell("run", "chain.lf", "x=x.npy", "--print", "none", "--show", "t") == 0
    assert shell.out.splitlines() == ["t  f32[3]  min -1  max 5  mean 2.33333  nan 0  count 3", "[ 3.,  5., -1.]"]
    assert shell("run", "chain.lf", "x=x.npy", "--show", "x", "--show", "y") == 0
    assert shell("run", "chain.lf", "x=x.npy", "--show", "q") == 2
    assert "LF0502" in shell.err


def test_params_and_sizes(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a=0", "-D", "R=7") == 0
    assert "min 49  max 49" in shell.out
    assert shell("run", "chain.lf", "x=x.npy", "-p", "b=0") == 2
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a=big") == 2
    assert "LF0508" in shell.err
    assert shell("run", "chain.lf", "x=x.npy", "-D", "Q=7") == 2
    assert shell("run", "chain.lf", "x=x.npy", "-D", "R=x") == 2
    assert shell("run", "chain.lf", "x=x.npy", "-p", "a") == 2
    assert shell("run", "chain.lf", "x=x.npy", "x=x.npy") == 2


def test_generated_inputs(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=2^4") == 0
    first = shell.out
    assert "f32[16]" in first
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=16", "--seed", "1") == 0
    assert shell.out != first
    assert shell("run", "chain.lf", "x=randn", "--dims=N=16") == 0
    assert shell.out == first
    assert shell("run", "chain.lf", "x=randn") == 1
    assert "--dims N=.." in shell.err
    assert shell("run", "chain.lf", "x=uniform(0)", "--dims", "N=4") == 2
    assert shell("run", "chain.lf") == 1
    assert "LF0501" in shell.err


@pytest.mark.parametrize("seed", ["-1", "abc", "1.5"])
def test_seeds_are_not_negative(shell: Shell, seed: str) -> None:
    assert shell("run", "chain.lf", "x=randn", "--dims", "N=2", "--seed", seed) == 2
    assert "is no seed" in shell.err


def test_options_may_stand_between_inputs(shell: Shell) -> None:
    shell.write("two.lf", "input a: f32[N]  input b: f32[N]  output y = a + b")
    assert shell("run", "--seed", "3", "two.lf", "a=ones", "--dims", "N=4", "b=const(2)") == 0
    assert "min 3  max 3" in shell.out


def test_outputs_go_to_files(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "-o", "y=out/y.npy") == 0
    assert np.load(shell.folder / "out" / "y.npy").tolist() == [9, 25, 1]
    assert "wrote out/y.npy" in shell.err
    assert shell("run", "chain.lf", "x=x.npy", "-o", "only.npy", "-q") == 0
    assert (shell.folder / "only.npy").exists()
    assert shell.err == ""
    assert shell("run", "chain.lf", "x=x.npy", "--out-dir", "all") == 0
    assert (shell.folder / "all" / "y.npy").exists()
    assert shell("run", "chain.lf", "x=x.npy", "-o", "z=z.npy") == 2
    assert shell("run", "chain.lf", "x=x.npy", "-o", "y=y.png") == 1
    assert "LF0513" in shell.err
    assert not (shell.folder / "y.png").exists()


def test_from_is_relative_to_the_script_and_to_is_relative_to_here(shell: Shell) -> None:
    shell.write("sub/s.lf", 'input x: f32[N] from "data.npy"  output y = x * 2 to "result.npy"')
    np.save(shell.folder / "sub" / "data.npy", np.ones(2, np.float32))
    assert shell("run", "sub/s.lf") == 0
    assert (shell.folder / "result.npy").exists()
    assert shell("run", "sub/s.lf", "--out-dir", "d") == 0
    assert (shell.folder / "d" / "result.npy").exists()
    assert shell("run", "sub/s.lf", "x=x.npy") == 0
    assert "f32[3]" in shell.out


def test_errors_in_files_point_into_the_script(shell: Shell) -> None:
    shell.write("s.lf", 'input x: f32[N]\n  from "nothing.npy"\noutput y = x')
    assert shell("run", "s.lf") == 1
    assert "s.lf:2:8" in shell.err
    assert "^^^^^^^^^^^^^" in shell.err


def test_scripts_from_stdin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    done = python("-m", "loopfuse", "run", "-", "x=x.npy", cwd=shell.folder, input=CHAIN)
    assert done.returncode == 0
    assert "f32[3]" in done.stdout


def test_scripts_that_cannot_be_read(shell: Shell) -> None:
    assert shell("run", "no.lf") == 1
    assert "LF0510" in shell.err
    assert shell("run", ".") == 1
    (shell.folder / "latin.lf").write_bytes(b"# caf\xe9")
    assert shell("run", "latin.lf") == 1
    assert "UTF-8" in shell.err
    assert shell("run", "a\0b.lf") == 1


def test_a_byte_order_mark_is_no_text(shell: Shell) -> None:
    (shell.folder / "bom.lf").write_bytes(b"\xef\xbb\xbf" + CHAIN.encode())
    assert shell("run", "bom.lf", "x=x.npy") == 0


def test_names_that_the_terminal_cannot_show(shell: Shell) -> None:
    (shell.folder / "größe.lf").write_text("input x: f32[N]  output y = größe")
    for name in ("größe.lf".encode(), b"\xff.lf"):
        done = subprocess.run([sys.executable.encode(), b"-m", b"loopfuse", b"run", name], capture_output=True, check=False,
                              cwd=shell.folder, env=environment(PYTHONIOENCODING="ascii"))  # fmt: skip
        assert done.returncode == 1
        assert b"error[LF" in done.stderr


def test_names_that_python_reserves(shell: Shell) -> None:
    shell.write("s.lf", "input class: f32[N]  output _y = class * 2")
    assert shell("run", "s.lf", "class=x.npy") == 0
    assert shell.out.startswith("_y")


def test_faults_are_errors_at_their_place(shell: Shell) -> None:
    shell.write("g.lf", "input x: f32[M]\ninput k: i32[N]\nlet y[n] = x[k[n]]\noutput y\n")
    np.save(shell.folder / "k.npy", np.array([0, 9], np.int32))
    assert shell("run", "g.lf", "x=x.npy", "k=k.npy", "-o", "y.npy") == 1
    assert "LF0704" in shell.err
    assert (
        "g.lf:3:" in shell.err
        and "`x[k[n]]` went outside its array, once: `k[n]` is 9, and axis 0 has 3 elements" in shell.err
    )
    assert not (shell.folder / "y.npy").exists()


def test_memory_is_refused_before_it_is_taken(shell: Shell) -> None:
    shell.write("big.lf", "input x: f32[N]  let t[i, j in 0..N] = x[i] * x[j]  output t  output y = sum(t)")
    assert shell("run", "big.lf", "x=ones", "--dims", "N=2000000") == 1
    assert "LF0509" in shell.err
    assert "TiB" in shell.err
    assert shell("run", "big.lf", "x=ones", "--dims", "N=100", "--limit", "1k") == 1
    assert shell("run", "big.lf", "x=ones", "--dims", "N=100", "--limit", "much") == 2


def test_times(shell: Shell) -> None:
    assert shell("run", "chain.lf", "x=x.npy", "--time") == 0
    assert re.search(r"check +\d+\.\d+ ms", shell.err)
    assert "total" in shell.err


def test_json(shell: Shell) -> None:
    np.save(shell.folder / "n.npy", np.array([np.nan, np.inf], np.float32))
    assert shell("run", "chain.lf", "x=n.npy", "--json") == 0
    (record,) = shell.records()
    assert record["name"] == "y"
    assert record["dtype"] == "f32"
    assert record["shape"] == [2]
    assert (record["nan"], record["count"], record["max"]) == (1, 2, "inf")
    assert "f32[2]" in shell.err
    shell.write("big.lf", "input k: i64[N]  output y = k + 1  output b = k > 0")
    np.save(shell.folder / "k.npy", np.array([2**53, -1]))
    assert shell("run", "big.lf", "k=k.npy", "--json", "--print", "full") == 0
    assert [r["values"] for r in shell.records()] == [[2**53 + 1, 0], [True, False]]
    assert shell("run", "chain.lf", "x=no.npy", "--json") == 1
    (record,) = shell.records()
    assert record["code"] == "LF0510"
    assert "LF0510" in shell.err


def test_summaries() -> None:
    assert describe(summarize(np.zeros((0, 2), np.float32))) == "f32[0, 2]  min -  max -  mean -  nan 0  count 0"
    assert describe(summarize(np.full(2, np.nan))) == "f64[2]  min -  max -  mean -  nan 2  count 2"
    assert describe(summarize(np.array(7, np.uint8))).startswith("u8  min 7  max 7")
    assert "min false  max true  mean 0.5" in describe(summarize(np.array([True, False])))
    assert "max 18446744073709551615" in describe(summarize(np.array([2**64 - 1], np.uint64)))
