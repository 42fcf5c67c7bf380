"""Names and texts of a script that were chosen by somebody with intentions: in messages, in CUDA C, in JSON, in paths."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopfuse import driver, reader
from loopfuse.cli import main
from loopfuse.diag import Source, UserError, error, render
from loopfuse.emit.program import emit
from loopfuse.outside import one_line, visible, write_json, write_toml_string

HERE = Path(__file__).parent
EVIL = 'a */ #include \\"x\\" \\\\ ??/ {0} %s%n <script>alert(1)</script> $(id) `id` \u202egnp.exe \u2066 \\"\\"\\" \\n#define y'
SCRIPT = f"""\
# \x1b[31mred\x9b0m \u202e */ \\
input x: f32[N] where x > 0
require N >= 1, "{EVIL}"
let e = exp(x)   # \x07 ??/
output ÿ = e / sum(e)
check all(ÿ >= 0), "{EVIL}"
"""
texts = st.text(st.characters(exclude_categories=()), max_size=20)


# -- what escapes ----------------------------------------------------------------------------------------------------------


@given(texts)
def test_what_is_shown_is_visible(text: str) -> None:
    shown = visible(text)
    assert all(c.isprintable() or c in "\n\t\u3000" or c.isspace() for c in shown)
    assert not set(shown) & {"\x1b", "\x9b", "\u202e", "\x07", "\r"}
    assert text.isprintable() <= (shown == text)


@given(
    st.recursive(
        texts, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2), max_leaves=4
    )
)
def test_json_reads_back(value: object) -> None:
    for indent in (None, 1):
        text = write_json(value, indent)
        assert json.loads(text) == value
        assert visible(text) == text


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_toml_reads_back(text: str) -> None:
    written = write_toml_string(text)
    assert tomllib.loads(f"a = {written}")["a"] == text
    assert visible(written, lines=False) == written


@given(texts | st.text('*/\\?\n\r"', max_size=12))
def test_a_comment_stays_one(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert "\\" not in line and "??" not in line and "*/" not in line and "/*" not in line


def test_messages_cannot_be_forged() -> None:
    """Neither lines of their own nor colours, in no part of a message."""
    name = "a\nerror[LF0001]: forged\x1b[2J"
    source = Source(name, f"let {name}")
    from loopfuse.diag import Span

    found = error("LF0101", name, Span(source, 0, 3), name, notes=[name], fix=name)
    text = render(found)
    assert "\x1b" not in text and not re.search(r"(?m)^error\[LF0001\]", text)
    assert json.loads(found.as_json())["message"] == name


# -- through the commands --------------------------------------------------------------------------------------------------

COMMANDS = {
    "check": ["check"], "ir": ["ir"], "syntax tree": ["ir", "--emit", "ast"], "types": ["ir", "--emit", "typed"], "CUDA C": ["ir", "--emit", "cuda"],
    "explain": ["explain"], "costs": ["explain", "--cost"], "json": ["ir", "--json"], "checks as json": ["check", "--json"],
    "bisect": ["bisect"], "unknown name": ["run", "x\u202e\x1b=3"], "missing file": ["run", "x=\x1b[31m\u202e.npy"],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("file", ["s.lf", "\x1b[2J\n'\"; $(id) \u202e.lf"])
def test_a_terminal_obeys_no_script(name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Path(file).write_text(SCRIPT, encoding="utf-8")
    command, *rest = COMMANDS[name]
    code = main([command, file, *rest])
    out, err = capsys.readouterr()
    assert code in ((1, 2) if command == "run" else (0,)), err
    assert not list(tmp_path.glob("loopfuse-bug-*"))
    for text in (out, err):
        assert not [c for c in text if not c.isprintable() and c not in "\n\t"]
    if "--json" in rest:
        assert all(json.loads(line)["schema"] == 1 for line in out.splitlines())


def code_of(text: str) -> list[str]:
    """CUDA C of IR text without its comments; kernels are called after the program, by identifiers."""
    program = reader.parse_program(text)
    made = emit(program, {"N": 64})
    texts = (re.sub(r"//[^\n]*", "", kernel.text) for kernel in made.kernels)
    return [re.sub(r"\w+_k1_map\(", "k1_map(", text) for text in texts]


def test_no_text_gets_into_kernels() -> None:
    """What stands in strings leaves the kernels the same but for comments; no comment is continued."""
    ir = "program {}(N)\nsize N shape >= 0\nrequire {{N}} >= 0i64 {}\nbuf x: f32[N] in\nbuf y: f32[N] out\npar i < N\n  y[i] = x[i] * 2.0f32\n"
    evil = json.dumps('*/ "\n#define float int \\\n??/\nextern "C" {\u2028\x1b')
    assert code_of(ir.format(evil, evil)) == code_of(ir.format("p", '"x"'))


@pytest.mark.parametrize(
    "name", ["ÿ", "x·", "变量", "float", "__syncthreads", "asm", "lf_load4", "int4", "N_1", "𝐱", "ａ"]
)
def test_names_become_identifiers(name: str) -> None:
    """Whatever is a name in the language is one in C: letters, digits and underscores, none that C has."""
    try:
        typed = driver.compile_source(Source("s.lf", f"input {name}: f32[N]\noutput out = {name} + 1\n")).typed
    except UserError:
        return  # it is no name in the language
    lowered = driver.lower_program(typed)
    for kernel in emit(driver.optimise(lowered).program, {"N": 64}).kernels:
        assert re.sub(r'//[^\n]*|"C"', "", kernel.text).isascii()
        assert not re.search(rf"(?<!\w)float {name}(?!\w)", kernel.text) or name.isascii()


# -- what a script may read and write ----------------------------------------------------------------------------------------

WATCHED = """
import os, sys
folder, package = sys.argv[1], sys.argv[2]
import numpy, loopfuse.cli.frame, loopfuse.cli.run, loopfuse.driver, PIL.Image, encodings.idna
for m in ("loopfuse.api", "loopfuse.backends.reference", "loopfuse.emit.program", "rich.console"):
    __import__(m)
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path, mode, flags = os.fsdecode(args[0]), args[1], args[2]
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else "w" in str(mode)
        seen.append(("w" if writes else "r", os.path.realpath(path)))
    elif event.split(".")[0] in ("subprocess", "socket") or event in ("os.system", "os.exec", "os.posix_spawn", "os.fork"):
        seen.append((event, ""))
    elif event == "os.rename":
        seen.append(("rename", os.path.realpath(args[1])))
seen = []
sys.addaudithook(watch)
from loopfuse.cli import main
code = main(["run", "s.lf", "k=k.csv", "-o", "z=sub/z.png", "--print", "none"])
out, seen = seen, []
print(code)
for kind, path in out:
    print(kind, path)
"""


def test_a_run_opens_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    """Reads: the script, its modules and data, files of the installation. Writes: the outputs' files. No other program, no
    network."""
    import numpy as np

    (tmp_path / "m.lf").write_text("fn twice(x) = x + x\n")
    (tmp_path / "s.lf").write_text(
        'import "m.lf" as m\nimport stats\ninput x: f32[N] from "x.npy"\ninput k: f32[K]\noutput y = m.twice(x) to "y.npy"\n'
        "output z[i in 0..4, j in 0..4] = u8(i + j)\noutput s = sum(k)\n"
    )
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    (tmp_path / "k.csv").write_text("1, 2, 3\n")
    environment = {
        **os.environ,
        "LOOPFUSE_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(HERE.parent),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run([sys.executable, "-c", WATCHED, str(tmp_path), str(HERE.parent)], capture_output=True, text=True,
                          cwd=tmp_path, env=environment)  # fmt: skip
    code, *events = done.stdout.splitlines()
    assert code == "0", done.stderr
    here, cache = os.path.realpath(tmp_path), os.path.realpath(tmp_path / "cache")
    found = [(kind, path) for kind, _, path in (e.partition(" ") for e in events)]
    assert {k for k, _ in found} <= {"r", "w", "rename"}, found
    inside = {(k, os.path.relpath(p, here)) for k, p in found if p.startswith(here) and not p.startswith(cache)}
    assert {p for k, p in inside if k == "r"} <= {"s.lf", "m.lf", "x.npy", "k.csv", "s.lf.lock", "."}
    assert {p for k, p in inside if k == "rename"} == {"y.npy", "sub/z.png"}
    written = {p for k, p in inside if k == "w"}
    assert all(re.fullmatch(r"(sub/)?\.loopfuse-[0-9a-f]+", p) for p in written) and len(written) == 2
    outside = {p for k, p in found if k != "r" and not p.startswith(here)}
    assert outside <= {"/dev/null"}, outside
    homes = (
        os.path.realpath(sys.prefix),
        os.path.realpath(sys.base_prefix),
        str(HERE.parent),
        "/proc",
        "/sys",
        "/dev/null",
        "/usr",
        "/lib",
        "/etc",
    )
    assert all(p.startswith((here, *homes)) for _, p in found), [
        p for _, p in found if not p.startswith((here, *homes))
    ]


def test_outputs_go_where_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path may leave the folder, since it was named; a device or a folder is never replaced."""
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    Path("s.lf").write_text("output y = [1.0, 2.0]\n")
    assert main(["run", "s.lf", "-o", "y=../y.npy"]) == 0
    assert (tmp_path / "y.npy").is_file() and [p.name for p in (tmp_path / "in").iterdir()] == ["s.lf"]
    for bad in ("/dev/null", ".."):
        assert main(["run", "s.lf", "-o", f"y={bad}"]) == 1
    assert "Traceback" not in capsys.readouterr().err
