"""The cache: what is kept is what comes back, what is damaged or foreign is not, and nothing fails for want of a folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_code import SCRIPT, everything, twice
from hypothesis import given
from hypothesis import strategies as st

import loopfuse
from loopfuse.cli import main
from loopfuse.cuda import cache as caching
from loopfuse.cuda import store, version
from loopfuse.cuda.binary import Binary, Options
from loopfuse.cuda.cache import Cache, open_cache
from loopfuse.cuda.record import from_json, to_json
from loopfuse.cuda.version import program_key
from loopfuse.devices import H200
from loopfuse.diag import CompilerError
from loopfuse.dtypes import F32
from loopfuse.emit.code import Code, Memory
from loopfuse.sizes import Poly

OPTIONS = Options()


def binary(key: str, size: int = 100) -> Binary:
    """A kernel that nobody compiled."""
    return Binary(name="k", arch="sm_80", cubin=key.encode() * size, registers=12, spill_loads=4, compiler="nvrtc 13",
                  log="Used 12 registers", warnings=("careful",), seconds=0.03, key=key)  # fmt: skip


def filled(cache: Cache, key: str = "cafe", count: int = 2) -> tuple[str, tuple[Binary, ...]]:
    """A program of some kernels, put by."""
    code = twice(tuple(range(2, 2 + count)))
    binaries = tuple(binary(f"{key}{n}") for n in range(count))
    for kernel, made in zip(code.kernels, binaries, strict=True):
        cache.put_kernel(code.source(kernel), "sm_80", OPTIONS, made, {"schedule": "map", "why": "twice"})
    cache.put_program(key, code, binaries, {"signature": "x: f32[100]", "remarks": ["a", "b"]})
    return key, binaries


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_program_comes_back_from_its_record() -> None:
    for code in (twice(), everything()):
        assert from_json(to_json(code), [SCRIPT]) == code
    assert all(ord(c) < 128 or c == "\u00fc" for c in to_json(everything()))


def test_spans_of_unknown_sources_are_left_out() -> None:
    found = from_json(to_json(everything()))
    assert all(kernel.spans == () for kernel in found.kernels)
    assert all(fault.span is None for fault in found.faults)
    assert [f.buffer for f in found.faults] == ["x", "w"]
    assert found.steps == everything().steps


def combined(parts: tuple[Poly, Poly, str]) -> Poly:
    """Two polynomials and what stands between them."""
    a, b, between = parts
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b, "%": a % b}[between]


atoms = st.sampled_from(["N", "M", "i"])
polys = st.recursive(
    st.integers(-(2**70), 2**70).map(Poly.of) | atoms.map(Poly.of),
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*/%")).map(combined),
    max_leaves=12,
)


@given(polys)
def test_polynomials_come_back(poly: Poly) -> None:
    code = replace(twice(), memory=(Memory("t", poly),))
    found = from_json(to_json(code)).memory[0].bytes
    assert found == poly
    assert str(found) == str(poly)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"is":"Code"}', '{"is":"Source"}', '{"is":"Memory","id":"t","bytes":1}',
             '{"eval":"1"}', to_json(twice()).replace("KernelCode", "str"), to_json(twice())[:-1]],
)  # fmt: skip
def test_other_texts_are_no_records(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_what_cannot_be_recorded_is_our_bug() -> None:
    with pytest.raises(CompilerError, match="list"):
        to_json(replace(twice(), inputs=["x"]))  # type: ignore[arg-type]


# -- keeping ----------------------------------------------------------------------------------------------------------


def test_what_was_kept_comes_back_in_another_process(tmp_path: Path) -> None:
    key, binaries = filled(Cache(tmp_path))
    found = Cache(tmp_path).program(key, [SCRIPT])
    assert found is not None
    assert found.code == twice((2, 3))
    assert found.binaries == tuple(replace(b, cached=True) for b in binaries)
    assert found.notes == {"signature": "x: f32[100]", "remarks": ["a", "b"]}
    assert Cache(tmp_path).program("beef") is None


def test_a_kernel_is_found_by_its_text_options_and_compiler(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = replace(binary(""), key="")
    cache.put_kernel("text", "sm_80", OPTIONS, made)
    for again in (cache, Cache(tmp_path)):
        found = again.kernel("text", "sm_80", OPTIONS)
        assert found is not None
        assert (found.cubin, found.cached, found.warnings) == (made.cubin, True, ("careful",))
        assert again.kernel("text ", "sm_80", OPTIONS) is None
        assert again.kernel("text", "sm_86", OPTIONS) is None
        assert again.kernel("text", "sm_80", Options(contract=False)) is None


def test_memory_stands_above_the_disk(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    key, _ = filled(cache)
    first = cache.program(key)
    assert first is not None
    assert all(b.cached for b in first.binaries)
    for file in tmp_path.rglob("*.*"):
        if file.is_file():
            file.unlink()
    assert cache.program(key) is first
    assert Cache(tmp_path).program(key) is None


def test_files_are_private(tmp_path: Path) -> None:
    filled(Cache(tmp_path / "deep" / "cache"))
    made = [p for p in (tmp_path / "deep" / "cache").rglob("*") if p.name != ".swept"]
    assert {p.name for p in made if p.is_dir()} == {"kernels", "programs"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in made if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in made if p.is_file()} == {0o600}


def test_a_hit_is_quick(tmp_path: Path) -> None:
    key, _ = filled(Cache(tmp_path), count=3)

    def hit() -> float:
        start = time.perf_counter()
        assert Cache(tmp_path).program(key, [SCRIPT])
        return time.perf_counter() - start

    assert min(hit() for _ in range(50)) < 2e-3


# -- damage -----------------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file's bytes."""
    path.write_bytes(change(path.read_bytes()))


def resealed(data: bytes, **members: Any) -> bytes:
    """An entry with other members and the right checksum."""
    return store._sealed({k: v for k, v in {**json.loads(data), **members}.items() if k != "checksum"})


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda d: d[:-1],
    "empty": lambda d: b"",
    "longer": lambda d: d + b" ",
    "a bit": lambda d: d[:40] + bytes([d[40] ^ 1]) + d[41:],
    "its checksum": lambda d: d[:14] + bytes([d[14] ^ 1]) + d[15:],
    "its end": lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:],
    "other bytes": lambda d: b"\xff" * 1000,
}
ENTRY_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    **DAMAGE,
    "another format": lambda d: resealed(d, format=-1),
    "another kind": lambda d: resealed(d, kind="letter"),
    "another key": lambda d: resealed(d, key="f00d"),
}


def check_recovery(folder: Path, key: str) -> None:
    """Nothing comes from the cache, and what is put by again does."""
    cache = Cache(folder)
    assert cache.program(key) is None
    filled(cache, key)
    assert Cache(folder).program(key) is not None


@pytest.mark.parametrize("file", ["kernels/cafe0.json", "programs/cafe.json"])
@pytest.mark.parametrize("change", ENTRY_DAMAGE.values(), ids=ENTRY_DAMAGE)
def test_a_damaged_entry_is_made_again(tmp_path: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    key, _ = filled(Cache(tmp_path))
    rewrite(tmp_path / file, change)
    check_recovery(tmp_path, key)


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_damaged_machine_code_is_made_again(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    key, _ = filled(Cache(tmp_path))
    rewrite(tmp_path / "kernels" / "cafe0.cubin", change)
    check_recovery(tmp_path, key)


def test_machine_code_of_another_entry_is_not_taken(tmp_path: Path) -> None:
    key, _ = filled(Cache(tmp_path))
    (tmp_path / "kernels" / "cafe1.cubin").replace(tmp_path / "kernels" / "cafe0.cubin")
    check_recovery(tmp_path, key)


def test_a_code_of_an_older_shape_is_not_taken(tmp_path: Path) -> None:
    key, _ = filled(Cache(tmp_path))
    rewrite(tmp_path / "programs" / "cafe.json", lambda d: resealed(d, code={"is": "Code", "shape": 3}))
    check_recovery(tmp_path, key)


def test_links_and_files_that_others_may_write_are_not_taken(tmp_path: Path) -> None:
    key, _ = filled(Cache(tmp_path))
    file = tmp_path / "kernels" / "cafe0.json"
    file.chmod(0o666)
    check_recovery(tmp_path, key)
    file.replace(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    check_recovery(tmp_path, key)
    assert not file.is_symlink()


def test_a_folder_of_someone_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = filled(Cache(tmp_path))
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    cache = Cache(tmp_path)
    assert cache.program(key) is None
    assert "belongs to someone else" in cache.problem
    filled(cache, "beef")
    assert cache.program("beef") is not None, "in memory"
    assert not (tmp_path / "programs" / "beef.json").exists()
    monkeypatch.undo()
    (tmp_path / "programs").chmod(0o777)
    assert Cache(tmp_path).program(key) is None


def test_without_a_folder_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    key, _ = filled(cache)
    assert cache.program(key) is not None
    assert "cannot be made" in cache.problem
    nowhere = Cache(None)
    key, _ = filled(nowhere)
    assert nowhere.program(key) is not None
    assert nowhere.problem
    assert nowhere.entries() == []
    assert nowhere.clear() == (0, 0)


def test_a_full_disk_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    key, _ = filled(cache)

    def full(*rest: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        filled(cache, "beef")
    assert "No space left" in cache.problem
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(store.TEMPORARY)]
    assert Cache(tmp_path).program(key) is not None
    filled(cache, "beef")
    assert cache.problem == ""


RACE = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from cuda_code import twice
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.compile import compile_program
cache = Cache(Path(sys.argv[1]))
code = twice((2, 3))
binaries = compile_program(code, "sm_80", cache=cache)
cache.put_program("cafe", code, binaries)
print([b.key for b in binaries])
"""


def test_two_processes_compile_the_same_program(tmp_path: Path) -> None:
    tests = Path(__file__).parent
    words = [sys.executable, "-c", RACE, str(tmp_path), str(tests)]
    environment = {**os.environ, "PYTHONPATH": str(tests.parent)}
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    said = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    found = Cache(tmp_path).program("cafe")
    assert found is not None
    assert [b.name for b in found.binaries] == ["k2", "k3"]
    assert len(list((tmp_path / "kernels").iterdir())) == 4


# -- room -------------------------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    folder = store.Folder(tmp_path / "kernels")
    now = time.time()
    for n in range(10):
        folder.write(f"k{n}", {}, bytes(1000))
        for ending in ("json", "cubin"):
            os.utime(folder.path / f"k{n}.{ending}", (now - 1e6 + n, now - 1e6 + n))
    folder.used("k0")
    size = next(iter(folder.items())).bytes
    assert store.shrink([folder], 10 * size) == 0, "there is room"
    freed = store.shrink([folder], 9 * size)
    assert 3 * size <= freed <= 4 * size
    left = {item.key for item in folder.items()}
    assert {"k0", "k9", "k8", "k7", "k6", "k5"} <= left
    assert "k1" not in left


def test_the_cache_keeps_to_its_size(tmp_path: Path) -> None:
    cache = Cache(tmp_path, most_bytes=200_000)
    for n in range(60):
        cache.put_kernel(f"text {n}", "sm_80", OPTIONS, binary(f"{n:02}", 5000))
    assert sum(entry.bytes for entry in cache.entries()) <= 250_000
    assert Cache(tmp_path)._binary("59") is not None


def test_what_a_stopped_writer_left_is_taken_away(tmp_path: Path) -> None:
    folder = store.Folder(tmp_path)
    old, new = tmp_path / f"{store.TEMPORARY}a", tmp_path / f"{store.TEMPORARY}b"
    for file in (old, new):
        file.write_text("")
    os.utime(old, (1, 1))
    folder.tidy()
    assert not old.exists()
    assert new.exists(), "its writer may be at work"
    assert list(folder.items()) == []


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_depends_on_all_that_a_program_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(text: str = "a", module: str = "b", signature: object = None, device: object = H200, numerics: str = "default",
            options: object = ("fuse", {"cse"})) -> str:  # fmt: skip
        signature = signature if signature is not None else {"x": (F32, (4, 8)), "aligned": frozenset("xy")}
        return program_key({"s.lf": text, "m.lf": module}, signature=signature, device=device, numerics=numerics,
                           options=options)  # fmt: skip

    keys = [
        key(), key(text="c"), key(module="c"), key("b", "a"), key(signature={"x": (F32, (4, 9))}), key(signature={"x": "4"}),
        key(device=replace(H200, bandwidth=4.1e12)), key(device=None), key(numerics="fast"), key(options=("fuse",)),
        key(options=("fuse", ("cse",))),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    same = key(signature={"aligned": frozenset("yx"), "x": (F32, (4, 8))})
    assert same == key(), "neither mappings nor sets have an order"
    with pytest.raises(CompilerError, match="object"):
        key(options=object())
    monkeypatch.setattr(version, "fingerprint", lambda name: "another compiler")
    assert key() != keys[0]


def test_a_change_to_the_package_makes_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__.py", "passes/a.py", "passes/a.rules", "cli/b.py", "notes.md"):
        (tmp_path / "loopfuse" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "loopfuse" / name).write_text("1")
    (tmp_path / "grammar").mkdir()
    (tmp_path / "grammar" / "loopfuse.lark").write_text("1")
    monkeypatch.setattr(loopfuse, "__file__", str(tmp_path / "loopfuse" / "__init__.py"))
    seen = {version.pipeline_version.__wrapped__()}
    for name in ("loopfuse/passes/a.py", "loopfuse/passes/a.rules", "grammar/loopfuse.lark"):
        (tmp_path / name).write_text("23")
        seen.add(version.pipeline_version.__wrapped__())
    assert len(seen) == 4
    for name in ("loopfuse/cli/b.py", "loopfuse/notes.md"):
        (tmp_path / name).write_text("23")
        seen.add(version.pipeline_version.__wrapped__())
    assert len(seen) == 4, "the command line has no part in what is compiled"


def test_a_process_has_one_cache_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_OPEN", {})
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path))
    assert open_cache() is open_cache(str(tmp_path)) is open_cache(tmp_path)
    assert open_cache(tmp_path / "other") is not open_cache()
    assert open_cache(False) is not open_cache(False)
    assert open_cache(False).folder is None
    monkeypatch.setattr(caching, "cache_folder", lambda: None)
    assert open_cache() is open_cache()


# -- what is told -----------------------------------------------------------------------------------------------------


def test_an_entry_explains_itself(tmp_path: Path) -> None:
    key, _ = filled(Cache(tmp_path))
    cache = Cache(tmp_path)
    kernel, whole = cache.explain("cafe1"), cache.explain(key)
    for part in ("kernel k for sm_80", "by nvrtc 13 in 30 ms", "--fmad=true", "12 registers, 4 bytes of spills", "twice",
                 "careful"):  # fmt: skip
        assert part in kernel
    for part in ("program twice for sm_80, kernels: 2", "signature: x: f32[100]", "kernel cafe0"):
        assert part in whole
    assert cache.explain("beef") == ""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `loopfuse cache` on a folder: the exit code and what was printed."""
    monkeypatch.setattr(caching, "_OPEN", {})

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(["cache", *words, "--cache-dir", str(tmp_path)])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


def test_the_command_lists_and_clears(tmp_path: Path, shown: Callable[..., Any]) -> None:
    assert shown("ls")[:2] == (0, f"programs: 0, kernels: 0, 0 B in {tmp_path}\n")
    filled(Cache(tmp_path))
    (tmp_path / "kernels" / "cafe0.json").write_text("damage")
    code, out, _ = shown("ls")
    assert code == 0
    assert out.splitlines()[0].split() == ["kind", "key", "what", "arch", "kernels", "size", "made", "used"]
    assert "damaged" in out
    assert "programs: 1, kernels: 2" in out
    records = [json.loads(line) for line in shown("ls", "--json")[1].splitlines()]
    assert sorted((r["entry"], r["name"], r["damaged"]) for r in records if r["name"]) == [
        ("kernel", "k", False), ("program", "twice", False),
    ]  # fmt: skip
    assert "kernel k for sm_80" in shown("ls", "cafe1")[1]
    assert "damaged" in shown("ls", "cafe0")[1]
    assert shown("ls", "beef")[0] == 1
    old = time.time() - 3 * 86400
    for ending in ("json", "cubin"):
        os.utime(tmp_path / "kernels" / f"cafe1.{ending}", (old, old))
    assert "entries taken away: 1" in shown("clear", "--older-than", "2")[1]
    assert json.loads(shown("clear", "--json")[1])["entries"] == 2
    assert Cache(tmp_path).entries() == []
    assert not list(tmp_path.rglob("*.*in"))


def test_the_command_line_is_checked(shown: Callable[..., Any]) -> None:
    assert shown()[0] == 2
    assert shown("clear", "cafe")[0] == 2
    assert shown("ls", "--older-than", "3")[0] == 2
    assert shown("clear", "--older-than", "old")[0] == 2


def test_a_program_of_no_kernels_is_kept(tmp_path: Path) -> None:
    code = Code("nothing", "", (), (), (), ("x",), (), ("x",))
    Cache(tmp_path).put_program("cafe", code, ())
    found = Cache(tmp_path).program("cafe")
    assert found is not None
    assert (found.code, found.binaries) == (code, ())
