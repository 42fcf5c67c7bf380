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
    assert shell("explain", "s.lf", "--kernel", "k1", *dims) == 0
    assert re.findall(r"^  again +(.*)$", shell.out, re.MULTILINE) == list(built.remarks)


def _program(shell: Shell) -> Program:
    lowered = driver.lower_program(driver.compile_source(driver.read_source(shell.folder / "s.lf")).typed)
    return driver.optimise(lowered, Options(sizes={"B": 512, "N": 4096})).program


# -- both halves of a view, and all views, tell the kernel as it is written -------------------------------------------


def view(shell: Shell, kernel: str = "k1", *more: str) -> dict[str, str]:
    """The rows of the first half of a kernel's view."""
    assert shell("explain", "s.lf", "--kernel", kernel, *more) == 0
    return dict(re.findall(r"^(\w+) +(\S.*)$", shell.out[: shell.out.index("\nwritten by")], re.MULTILINE))


def test_a_plan_is_told_as_it_is_written(plain: Shell) -> None:
    """Products of f32 by ordinary units, whose sums the emitter cuts as it likes."""
    plain.write("s.lf", "input a: f32[M, K]\ninput b: f32[K, N]\noutput y = a @ b\n")
    rows = view(plain, "k1", "--dims", "M=512,N=512,K=512")
    parts = re.search(r"each sum cut into (\d+) parts", plain.out)
    depth = re.search(r"stages of (\d+) of the sum", plain.out)
    assert parts and depth
    assert rows["compute"].startswith("268 M operations, 0 in matrix units")
    assert rows["rounding"] == f"sum cut into {parts[1]}"
    assert rows["folds"] == f"dot: exact: tiles of {depth[1]}, workspace"
    assert "k: split" in rows["roles"]
    assert re.match(r"sums in \d+ parts; the emitter's are faster by its model", rows["planned"])
    assert f"in {parts[1]} parts" not in rows["planned"]


def test_instructions_that_were_declined_are_told_as_planned(plain: Shell) -> None:
    plain.write("s.lf", "input a: bf16[M, K]\ninput b: bf16[K, N]\noutput y = a @ b\n")
    rows = view(plain, "k1", "--dims", "M=511,N=511,K=8191")
    parts = re.search(r"each sum cut into (\d+) parts", plain.out)
    assert parts and "\n  by         mma.sync bf16\n" in plain.out
    assert rows["planned"].startswith("wgmma bf16, ") and rows["planned"].endswith("; below stands why not")
    assert rows["rounding"] == f"sum cut into {parts[1]}"
    assert rows["launch"].endswith("planned for one launch; it is written with 2")
    assert "read again as planned" in rows["memory"]
    assert "  not        wgmma: " in plain.out


@pytest.mark.parametrize(("script", "dims"), SCRIPTS, ids=lambda x: Path(x).stem)
def test_no_figure_of_a_plan_contradicts_the_code(plain: Shell, script: str, dims: str) -> None:
    """Whatever the roles, trees and rounding name is what the tables of the functions say, and `planned` names the rest."""
    plain.write("s.lf", (ROOT / script).read_text(encoding="utf-8"))
    assert plain("explain", "s.lf", "--cost", "--json", *(("--dims", dims) if dims else ())) == 0
    for found in (r for r in plain.records("cost") if r["of"] in ("plan", "tiles")):
        launched, tilings = [one for one in found["launches"] if one["blocks"]], found.get("tilings", [])
        trees = [t for t in found["folds"].values() if t.startswith(("exact: vector", "online(1): vector"))]
        if found["schedule"] == "row":
            assert all(("cluster" in t) == (launched[0]["cluster"] > 1) for t in trees)
            if int(re.findall(r"(\d+) threads each", launched[0]["why"])[0]) > 32:
                assert all("block" in t for t in trees) and "lane" not in found["roles"].values()
        if tilings:
            cut = any(t["split"] > 1 for t in tilings)
            assert ("split" in found["roles"].values()) == cut
            assert any(w.startswith("sum cut into") for w in found["rounding"]) == cut
            assert bool(found["matrix_flops"]) == any(t["matrix"] for t in tilings)
            assert found["flops"] + found["matrix_flops"] >= sum(t["operations"] for t in tilings[:1])


def test_rows_by_more_threads_than_planned(plain: Shell) -> None:
    plain.write("s.lf", (ROOT / "examples/06_softmax.lf").read_text(encoding="utf-8"))
    rows = view(plain)
    assert re.match(r"rows by 32 threads; the emitter reckons by elements", rows["planned"])
    assert "lane" not in rows["roles"] and "vector, lanes, block" in rows["folds"]
    assert re.search(r"^  by +rows by (?!32 )\d+ threads each", plain.out, re.MULTILINE)


def test_a_table_that_is_written_for_any_size(plain: Shell) -> None:
    """It was planned in shared memory for an extent that was assumed, and has no bound in the code."""
    plain.write("s.lf", "input k: i32[N] where 0 <= k < B\ninput start: i32[B, 4]\n"
                        "accum h: i32[B, 4] = 0 for i { h[k[i], 0] += 1 }\noutput t = h + start\n")  # fmt: skip
    rows = view(plain, "k1", "--dims", "N=1000000,B=64")
    assert rows["folds"] == "h.acc: private copies, block, workspace" and "planned" not in rows
    rows = view(plain)
    assert "\n  by         updates of arrays in device memory\n" in plain.out
    assert rows["folds"] == "h.acc: updates in device memory"
    assert rows["planned"].startswith("private copies, block, workspace; ")


BOUNDS = ((SCRIPTS[2][0], "B=4,N=400096"), ("examples/11_histeq.lf", ""), ("tests/bench/peers/linear_gelu.lf", "M=128,N=128,K=65536"),
          ("examples/06_softmax.lf", ""), ("examples/13_nbody.lf", ""), ("tests/bench/peers/matmul.lf", "M=4096,N=33,K=4096"))  # fmt: skip


@pytest.mark.parametrize(("script", "dims"), BOUNDS, ids=lambda x: Path(x).stem)
def test_rows_and_footer_have_one_rule(plain: Shell, script: str, dims: str) -> None:
    """A bound that is not the one of the ridge under the table has a line that says why, and no other has one."""
    plain.write("s.lf", (ROOT / script).read_text(encoding="utf-8"))
    given = ("--dims", dims) if dims else ()
    assert plain("explain", "s.lf", "--cost", "--json", *given) == 0
    found = plain.records("cost")
    assert plain("explain", "s.lf", "--cost", *given) == 0
    assert "bound: what takes longest by the model, memory, compute or launches\n" in plain.out
    for one in found:
        matrix = [t["dtype"] for t in one.get("tilings", ()) if t["matrix"]]
        peak = H200.matrix[matrix[0]] if matrix else H200.matrix["f16"] if one["matrix_flops"] else H200.fp32
        other = "compute" if one["intensity"] < H200.ridge(peak) else "memory"
        said = re.search(rf"^{one['kernel']} is bound by (\w+) at \S+ flop/B: \S", plain.out, re.MULTILINE)
        assert bool(said) == (one["bound"] == other)
        if said:
            assert said[1] == one["bound"]


def test_decisions_at_size_0_name_the_plans(plain: Shell) -> None:
    """Rows are of plans, which let every loop run, and totals of what is launched."""
    plain.write("s.lf", SOFTMAX)
    for dims in ("B=0,N=64", "B=64,N=0"):
        for device in ("h200", "cpu"):
            assert plain("explain", "s.lf", "--dims", dims, "--device", device) == 0
            times = re.search(r"^decided by plans of (\S+) -> (\S+) us; they take every loop to run once at least", plain.out,
                              re.MULTILINE)  # fmt: skip
            assert times
            assert f"-> {times[2]}  " in plain.out or f"-> {times[2]} " in plain.out


@pytest.mark.parametrize(("script", "dims"), SCRIPTS, ids=lambda x: Path(x).stem)
def test_what_was_declined_is_counted_as_it_is_listed(plain: Shell, script: str, dims: str) -> None:
    plain.write("s.lf", (ROOT / script).read_text(encoding="utf-8"))
    given = ("--dims", dims) if dims else ()
    assert plain("explain", "s.lf", "--cost", *given) == 0
    counts = {
        k: int(n or 0)
        for k, n in re.findall(r"^(\w+) is written by [^;\n]*(?:; (\d+) declined)?$", plain.out, re.MULTILINE)
    }
    assert counts
    kernel = sorted(counts)[0]
    assert plain("explain", "s.lf", "--kernel", kernel, *given) == 0
    assert counts[kernel] == len(re.findall(r"^  not +\S", plain.out, re.MULTILINE))
    assert plain("explain", "s.lf", "--kernel", kernel, *given, "--json") == 0
    (found,) = plain.records("cost")
    assert len(found["declined"]) == counts[kernel]


def test_nothing_is_declined_where_there_is_nothing_to_do(plain: Shell) -> None:
    plain.write("s.lf", SOFTMAX)
    assert plain("explain", "s.lf", "--cost", "--dims", "B=0,N=64") == 0
    assert "k1 is written by nothing: there is no element\n" in plain.out


VIEWS = {
    "--why": ("--why", "a", "b"),
    "--cost": ("--cost",),
    "--kernel": ("--kernel", "k1"),
    "--remarks": ("--remarks",),
}


@pytest.mark.parametrize("one", VIEWS)
@pytest.mark.parametrize("other", VIEWS)
def test_one_view_at_a_time(plain: Shell, one: str, other: str) -> None:
    plain.write("s.lf", "input x: f32[N]\nlet a = sum(x)\noutput b = x / a\n")
    if one == other:
        assert plain("explain", "s.lf", *VIEWS[one]) == 0
    else:
        assert plain("explain", "s.lf", *VIEWS[one], *VIEWS[other]) == 2
        assert f"{one} is about" in plain.err and f"{other} is about" in plain.err and "one at a time" in plain.err
