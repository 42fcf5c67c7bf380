"""What `explain` shows is what is emitted, the same in all of its views, with a reason for every faster way that was not taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli_shell import Shell

from loopfuse import driver
from loopfuse.cuda import binary as cuda
from loopfuse.cuda import engine
from loopfuse.cuda.binary import Binary
from loopfuse.cuda.cache import Cache
from loopfuse.devices import H200
from loopfuse.diag import MachineError
from loopfuse.emit.code import Code, KernelCode, Launch, Repeat, grid
from loopfuse.ir import Program
from loopfuse.passes import Options
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.views import emitted
from loopfuse.views.launches import idle, launches

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = (  # of every schedule, and of kernels that several write; with sizes, in part, and without
    ("examples/02_gate.lf", ""), ("examples/05_layernorm.lf", "B=64,T=128,D=768"), ("examples/06_softmax.lf", "B=512,N=4096"),
    ("examples/06_softmax.lf", ""), ("examples/08_moments.lf", "N=4096,C=4096"), ("examples/08_moments.lf", ""),
    ("examples/11_histeq.lf", ""), ("examples/13_nbody.lf", ""), ("examples/18_cross_entropy.lf", ""),
    ("examples/20_heat.lf", "H=300,W=200"), ("tests/scripts/10_blur.lf", ""), ("tests/bench/peers/matmul.lf", ""),
    ("tests/bench/peers/matmul.lf", "M=4096,N=33,K=4096"), ("tests/bench/peers/linear_gelu.lf", "M=4096,N=4096,K=4096"),
    ("tests/bench/peers/softmax_bf16.lf", "M=100"), ("tests/bench/peers/transpose_add.lf", "M=1000,N=70"),
    ("tests/bench/peers/sumsq.lf", ""), ("tests/bench/peers/gemv.lf", ""), ("tests/bench/peers/matmul_f64.lf", ""),
)  # fmt: skip


@pytest.fixture
def plain(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without a compiler, and with nothing in its cache: everything is shown as it was first planned."""

    def refused(*args: object, **named: object) -> None:
        raise MachineError("there is no compiler")

    monkeypatch.setattr(engine, "make", refused)
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(shell.folder / "cache"))
    return shell


def heads(text: str) -> dict[str, list[str]]:
    """By kernel of the IR how `ir --emit cuda` says that its functions are launched."""
    found: dict[str, list[str]] = {}
    for part in text.split("// -- ")[1:]:
        of, launch = (
            re.search(r"^// of +(\w+):", part, re.MULTILINE),
            re.search(r"^// launch +(.*)$", part, re.MULTILINE),
        )
        assert of and launch
        found.setdefault(of[1], []).append(launch[1])
    return found


def shown(text: str) -> list[str]:
    """How `explain --kernel` says that its functions are launched."""
    return re.findall(r"^  blocks +(.*)$", text, re.MULTILINE)


def as_head(line: str) -> str:
    """What `explain` shows of a launch, in the words of the emitted text: with the grid of any sizes, without repetitions."""
    line = re.sub(r", launched \d+ times", "", line)
    if any_ := re.search(r"; for any sizes (.*) blocks$", line):
        line = (
            f"{any_[1]} {line[: any_.start()].partition(' of ')[1].strip()} {line[: any_.start()].partition(' of ')[2]}"
        )
    extents, _, rest = line.partition(" of ")
    return f"{extents} block{'s' * (extents != '1')} of {rest}"


@pytest.mark.parametrize(("script", "dims"), SCRIPTS, ids=lambda x: Path(x).stem)
def test_launches_are_those_of_the_emitted_kernels(plain: Shell, script: str, dims: str) -> None:
    """Blocks, threads, shared memory and clusters, in text and as JSON; and bytes and time are the same in every view."""
    plain.write("s.lf", (ROOT / script).read_text(encoding="utf-8"))
    given = ("--dims", dims) if dims else ()
    assert plain("ir", "s.lf", "--emit", "cuda", *given) == 0
    written = heads(plain.out)
    assert plain("explain", "s.lf", *given, "--json") == 0
    (outcome,) = plain.records("outcome")
    assert plain("explain", "s.lf", "--cost", *given, "--json") == 0
    costs = {r["kernel"]: r for r in plain.records("cost")}
    assert costs.keys() == written.keys()
    for kernel, found in costs.items():
        threads = [int(re.findall(r"(\d+) threads", line)[0]) for line in written[kernel]]
        assert [one["threads"] for one in found["launches"]] == threads
        assert all(one["blocks"] > 0 for one in found["launches"])
        assert found["sizes"] == outcome["sizes"]
    assert outcome["after"]["us"] == pytest.approx(sum(r["us"] for r in costs.values()))
    assert outcome["after"]["bytes"] == sum(r["bytes"] for r in costs.values())
    assert plain("explain", "s.lf", "--kernel", "k1", *given, "--json") == 0
    assert plain.records("cost") == [costs["k1"]]
    assert plain("explain", "s.lf", "--kernel", "k1", *given) == 0
    ends = [re.sub(r", \d+ launches$", "", line) for line in written["k1"]]
    assert [as_head(line) for line in shown(plain.out)] == ends
    assert set(outcome["assumed"]) <= set(outcome["sizes"])
    for name, size in outcome["sizes"].items():
        assert f"{name} = {size}{' (assumed)' * (name in outcome['assumed'])}" in plain.out


def test_text_of_all_views_has_one_number(plain: Shell) -> None:
    """The totals of the decisions and of the costs are written alike, with what is not the kernel's own marked in both."""
    for script in ("examples/08_moments.lf", "examples/07_attention.lf", "tests/bench/peers/ffn_block.lf"):
        plain.write("s.lf", (ROOT / script).read_text(encoding="utf-8"))
        assert plain("explain", "s.lf") == 0
        time = re.search(r"-> (\S+) us\n\S+ \S+ -> (\S+ \S+) moved", plain.out)
        assert time
        sizes = re.search(r"sizes: .*", plain.out)
        assert sizes and sizes[0].count("(assumed)") == sizes[0].count("=")
        assert plain("explain", "s.lf", "--cost") == 0
        last = [
            line
            for line in plain.out.splitlines()
            if re.match(r"k1 |total ", line) and not re.search("written|holds", line)
        ][-1]
        assert last.split()[-1] == time[1]
        assert time[2] in last
        assert sizes[0] in plain.out
        assert plain("explain", "s.lf", "--kernel", "k1") == 0
        assert sizes[0] in plain.out


def test_what_decisions_went_by_is_told_where_it_differs(plain: Shell) -> None:
    plain.write("s.lf", "import nn\ninput a: bf16[M, K]\ninput b: bf16[K, N]\noutput o = nn.relu(a @ b)\n")
    assert plain("explain", "s.lf") == 0
    assert re.search(
        r"^decided by plans of \S+ -> \S+ us; the kernels as they are written have other", plain.out, re.MULTILINE
    )
    plain.write("s.lf", "input a: f32[M, K]\noutput o = a + 1\n")
    assert plain("explain", "s.lf") == 0
    assert "decided by plans" not in plain.out


# -- why no faster way ------------------------------------------------------------------------------------------------


def product(shell: Shell, dtype: str, dims: str) -> dict[str, list[str]]:
    """What wrote a product of two matrices, and by path why no faster one did."""
    kept = "output o[i, j] = sum(i32(a[i, k]) * i32(b[k, j]) for k)" if dtype == "i8" else "output o = a @ b"
    shell.write("s.lf", f"input a: {dtype}[M, K]\ninput b: {dtype}[K, N]\n{kept}\n")
    assert shell("explain", "s.lf", "--kernel", "k1", *(("--dims", dims) if dims else ())) == 0
    lines = shell.out[shell.out.index("\nwritten by") :]
    found: dict[str, list[str]] = {"by": re.findall(r"^  by +(.*)$", lines, re.MULTILINE)}
    for ways, why in re.findall(
        r"^  not +(?:contraction by )?((?:wgmma|mma\.sync|contraction)[^:]*): (.*)$", lines, re.MULTILINE
    ):
        for way in ways.split(" and "):
            found.setdefault(way.split()[0], []).append(why)
    return found


FASTEST = {"bf16": "wgmma", "f16": "wgmma", "f32": "multiply-adds of f32", "i8": "wgmma", "f64": "mma.sync"}
LIFTED = re.compile(r"would lift it|would round|what would lift it: |it would take [\d.]+ us, and \w+ takes [\d.]+ us")


@pytest.mark.parametrize("dtype", FASTEST)
@pytest.mark.parametrize("dims", ["M=1001,N=33,K=17", "M=4096,N=33,K=4096", "M=512,N=512,K=7", "M=512,N=1,K=512", "M=1,N=512,K=512",
                                  "M=512,N=512,K=512", ""])  # fmt: skip
def test_every_faster_path_has_a_reason(plain: Shell, dtype: str, dims: str) -> None:
    """Each with what would lift it; wgmma is the fastest, then mma.sync, then a contraction at all."""
    found = product(plain, dtype, dims)
    by = found["by"][0]
    missing = ["wgmma"] if not by.startswith("wgmma") else []
    missing += ["mma.sync"] if not by.startswith(("wgmma", "mma.sync")) else []
    small = [why for why in found.get("contraction", ()) if "terms" in why or "a vector" in why]
    if small:  # then no path is better than another
        assert not by.startswith(("wgmma", "mma.sync", "multiply-adds"))
        assert all(LIFTED.search(why) for why in small)
        return
    for way in missing:
        reasons = found.get(way, []) + [w for w in found.get("contraction", ()) if "it would take" in w]
        assert reasons, f"{way} is not mentioned"
        assert all(LIFTED.search(why) for why in reasons)
    assert bool(missing) == bool(found.keys() - {"by"})


def test_plans_are_compared_with_plans(plain: Shell) -> None:
    """A plan that is less than what the kernel takes as written was still more than the kernel's own."""
    plain.write("s.lf", "input a: f32[M, K]\ninput b: f32[K, N]\noutput y = a @ b\n")
    assert plain("explain", "s.lf", "--kernel", "k1", "--dims", "M=17,N=2049,K=513") == 0
    found = re.search(
        r"not map: planned at (\S+) us, and contraction at (\S+) us; as written that takes (\S+) us,", plain.out
    )
    assert found is not None
    other, own, taken = map(float, found.groups())
    assert own <= other < taken


def test_reasons_name_the_axis(plain: Shell) -> None:
    assert "its sum has 7 terms (`K`)" in product(plain, "bf16", "M=512,N=512,K=7")["contraction"][0]
    assert "a product of a matrix and a vector" in product(plain, "bf16", "M=512,N=1,K=512")["contraction"][0]
    reasons = product(plain, "bf16", "M=1001,N=33,K=17")
    assert reasons["by"] == ["a thread takes an element"]
    assert re.match(r"it would take [\d.]+ us, and map takes [\d.]+ us, bound by launch$", reasons["mma.sync"][0])
    assert [w.split("; ")[1] for w in reasons["wgmma"]] == ["they have 17 elements", "they have 33 elements"]
    plain.write("s.lf", "input a: f16[M, K]\ninput v: f16[K]\noutput o = a @ v\n")
    assert plain("explain", "s.lf", "--kernel", "k1") == 0
    assert "not contraction: `o`: it is a product of a matrix and a vector" in plain.out


# -- no elements ------------------------------------------------------------------------------------------------------

SOFTMAX = "input x: f32[B, N]\nlet e = exp(x)\noutput p[b, j] = e[b, j] / sum(e[b, k] for k)\n"
BATCHES = "input a: bf16[B, M, K]\ninput b: bf16[B, K, N]\noutput o = a @ b\n"


@pytest.mark.parametrize(
    ("text", "dims"),
    [(SOFTMAX, "B=0,N=64"), (SOFTMAX, "B=0,N=0"), (BATCHES, "B=0,M=64,N=64,K=64"), (BATCHES, "B=2,M=0,N=64,K=64"),
     (BATCHES, "B=2,M=64,N=0,K=64"), (BATCHES, "B=0,M=0,N=0,K=0")],
)  # fmt: skip
@pytest.mark.parametrize("more", [(), ("--device", "cpu"), ("--passes", "none")], ids=["h200", "cpu", "lowered"])
def test_nothing_to_do(plain: Shell, text: str, dims: str, more: tuple[str, ...]) -> None:
    plain.write("s.lf", text)
    assert plain("explain", "s.lf", "--dims", dims, *more, "--json") == 0
    (outcome,) = plain.records("outcome")
    after = outcome["after"]
    assert (after["us"], after["bytes"]) == (0, 0)
    assert plain("explain", "s.lf", "--dims", dims, "--cost", *more, "--json") == 0
    for found in plain.records("cost"):
        assert (found["of"], found["bound"], found["us"]) == ("nothing", "nothing", 0)
        assert all(one["blocks"] == 0 for one in found["launches"])
    assert plain("explain", "s.lf", "--dims", dims, "--cost", *more) == 0
    assert not re.search(r"nan|inf|-\d", plain.out)
    assert plain("explain", "s.lf", "--dims", dims, "--kernel", "k1", *more) == 0
    assert "estimate  nothing to do: " in plain.out
    assert "tile " not in plain.out


def test_sums_of_nothing(plain: Shell) -> None:
    """There is a result, and nothing is read for it."""
    plain.write("s.lf", BATCHES)
    assert plain("explain", "s.lf", "--dims", "B=4,M=64,N=64,K=0", "--cost", "--json") == 0
    (found,) = plain.records("cost")
    assert (found["reads"], found["rereads"], found["writes"], found["matrix_flops"]) == (0, 0, 4 * 64 * 64 * 2, 0)
    assert 0 < found["us"] < 5
    assert found["launches"][0]["blocks"] > 0
    assert plain("explain", "s.lf", "--dims", "B=4,M=64,N=64,K=0", "--kernel", "k1") == 0
    assert "its sum has one term or none (`K`)" in plain.out


def test_a_launch_that_finds_no_element(plain: Shell) -> None:
    """Blocks are launched for rows, which have none."""
    plain.write("s.lf", "input x: f32[B, N]\noutput p[b, j] = x[b, j] / sum(x[b, k] for k)\n")
    assert plain("explain", "s.lf", "--dims", "B=64,N=0", "--cost", "--json") == 0
    (found,) = plain.records("cost")
    assert (found["bytes"], found["flops"]) == (0, 0)
    assert found["us"] == pytest.approx(found["launch_us"])


# -- launches, and kernels that are planned again ---------------------------------------------------------------------


def code(*steps: Any) -> Code:
    kernel = KernelCode("k", "void k() {}", 64, 0, kernel="k1")
    return Code("c", "", (kernel,), steps, (), (), (), (), ("N",))


def test_launches_in_numbers() -> None:
    n = Poly.of("N")
    (one,) = launches(code(Launch("k", grid(n, 2), ())), {"N": 7})["k1"]
    assert (one.grid, one.blocks, one.times, one.shown) == (
        (7, 2, 1),
        14,
        1,
        "7 x 2 of 64 threads; for any sizes (N) x 2 blocks",
    )
    shrinking = Repeat("i", ZERO, n, ONE, (Launch("k", grid(n - Poly.of("i") - 1), ()),))
    (one,) = launches(code(shrinking), {"N": 7})["k1"]
    assert (one.blocks, one.times) == (6, 7)
    (one,) = launches(code(shrinking), {"N": 1})["k1"]
    assert (one.blocks, one.times) == (0, 1)
    (one,) = launches(code(shrinking), {"N": 0})["k1"]
    assert one.times == 0 and idle([one])
    assert launches(code(), {"N": 7}) == {"k1": ()}


def test_what_was_planned_again_is_shown_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that spilled when it was compiled here is shown as it was written then, in every view."""
    shell.write("s.lf", "input x: f32[B, N]\noutput p[b, j] = x[b, j] / sum(x[b, k] for k)\n")
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(shell.folder / "cache"))
    dims = ("--dims", "B=512,N=4096")
    assert shell("explain", "s.lf", "--kernel", "k1", *dims) == 0
    assert "not compiled here" in shell.out
    known = {"B": 512, "N": 4096}
    program, spilled = (
        _program(shell),
        Binary(cubin=b"", name="", arch="sm_90a", compiler="nvrtc 13", registers=255, spill_loads=8),
    )
    cache, options = Cache(shell.folder / "cache"), cuda.Options()
    first = emitted.emitted(program, known, H200, False)
    for kernel in first.kernels:
        cache.put_kernel(first.source(kernel), "sm_90a", options, spilled)
    built = emitted.kept(program, known, H200, False, cache)
    assert built.remarks and all("8 bytes of registers spill" in remark for remark in built.remarks)
    assert [k.text for k in built.code.kernels] != [k.text for k in first.kernels]
    for view in (("--cost",), ("--kernel", "k1")):
        assert shell("explain", "s.lf", *view, *dims, "--json") == 0
        (found,) = shell.records("cost")
        assert [one["threads"] for one in found["launches"]] == [k.threads for k in built.code.kernels]


def _program(shell: Shell) -> Program:
    lowered = driver.lower_program(driver.compile_source(driver.read_source(shell.folder / "s.lf")).typed)
    return driver.optimise(lowered, Options(sizes={"B": 512, "N": 4096})).program
