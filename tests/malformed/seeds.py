"""Small valid files of every kind that is read: what is damaged."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cuda_code import everything, twice
from PIL import Image

from loopfuse import driver
from loopfuse.bench import rows
from loopfuse.cuda.binary import Binary, Options
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.record import to_json
from loopfuse.diag import Source
from loopfuse.frontend.lalr import build
from loopfuse.lock import Entry, lock_text
from loopfuse.passes import Options as PassOptions
from loopfuse.printer import print_program
from loopfuse.testing.campaign import Figures, save_figures
from loopfuse.testing.saved import save
from loopfuse.testing.trial import Case, Failure
from loopfuse.views import pins

GRAMMAR = 'start: expr (";" expr)*\nexpr: NAME "+" expr -> add | NAME\ninner: "let" expr\nNAME: /[a-z]+/\n%ignore " "\n'
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import softmax
input x: f32[M, N] from "x.npy"
input k: i32[N] in 0..M
param a: f32 = 0.5 where a > 0
size T = 4
require N >= 1, "a column"
fn f(z) = z / (1 + exp(-z))
let m[i] = max(x[i, j] for j)
let e = exp(x - m[:, None])
output y[i, j] = f(a * e[i, j]) + edge(x)[i + 1, j - T] if x[i, j] > 0x1f else -1e-5
output g = x[k[j], j] for j to "g.npy"
scan c = 0.0 over j in N: c * 0.5 + x[0, j]
check all(isfinite(y)), "finite"
"""


@cache
def scripts() -> list[bytes]:
    """Scripts of the project, the short ones, and one with most of what there is in the language."""
    files = [p for d in ("tests/scripts", "examples", "loopfuse/lib") for p in sorted((ROOT / d).rglob("*.lf"))]
    return [SCRIPT.encode(), *(t for p in files if len(t := p.read_bytes()) < 3000)]


@cache
def ir() -> list[bytes]:
    """IR text, before and after passes."""
    found = []
    for path in sorted((ROOT / "examples").glob("*.lf"))[:8]:
        lowered = driver.lower_program(driver.compile_source(driver.read_source(path), search=path.parent).typed)
        found.append(print_program(lowered.program).encode())
        found.append(print_program(driver.optimise(lowered).program, gutter=True).encode())
    return found


@cache
def decisions() -> list[bytes]:
    """Files of decisions."""
    text = "input x: f32[N]\nlet a = exp(x)\nlet s = sum(a)\noutput y = a / s\noutput z = a + x\n"
    lowered = driver.lower_program(driver.compile_source(Source("s.lf", text)).typed)
    found = driver.optimise(lowered, PassOptions()).decisions
    return [pins.write(found).encode(), b'[[decision]]\na = ["a"]\nb = ["s"]\nverdict = "nofuse"\n']


def locks() -> list[bytes]:
    """Lock files."""
    entry = Entry("wgmma 128x256 slots=2", 184.0, "wgmma 128x128 slots=3", 201.5, "y", "M=4096")
    sections = {"NVIDIA H200 (sm_90a)": {"00ff": entry, "01": entry}, "NVIDIA A100 (sm_80)": {"02": entry}}
    return [lock_text(sections).encode()]


def grammars() -> list[bytes]:
    """Tables of a parser as they are kept, of a small language, without their checksum: that is put on what was made of them."""
    return [json.dumps(build(GRAMMAR), separators=(",", ":")).encode()]


def records() -> list[bytes]:
    """Programs as they are kept in the cache."""
    return [to_json(twice()).encode(), to_json(everything()).encode()]


def cached(folder: Path) -> None:
    """A cache with a program of two kernels in a folder."""
    cache, code = Cache(folder), twice((2, 3))
    binaries = []
    for n, kernel in enumerate(code.kernels):
        made = Binary(name="k", arch="sm_80", cubin=b"\x7fELF" * 40, registers=12, spill_loads=4, compiler="nvrtc 13",
                      log="Used 12 registers", warnings=("careful",), seconds=0.03, key=f"cafe{n}")  # fmt: skip
        cache.put_kernel(code.source(kernel), "sm_80", Options(), made, {"schedule": "map", "why": "twice"})
        binaries.append(made)
    cache.put_program("cafe", code, binaries, {"signature": "x: f32[100]"})


# -- arrays -----------------------------------------------------------------------------------------------------------


def npy() -> list[bytes]:
    """`.npy` files: orders, byte orders, versions of the header, types that we have and have not."""
    arrays: list[Any] = [
        np.arange(12, dtype=np.float32).reshape(3, 4), np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.arange(5, dtype=">f8"), np.array(True), np.zeros((0, 3), np.float16), np.zeros(3, "V2"),
        np.array([1 + 2j]), np.array([(1, 2.0)], "i4,f8"), np.array(["ab", "c"]), np.array(["2020"], "M8[D]"),
    ]  # fmt: skip
    found = []
    for version in ((1, 0), (2, 0), (3, 0)):
        for array in arrays[: 4 if version != (1, 0) else None]:
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version, allow_pickle=False)
            found.append(buffer.getvalue())
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([print], object), allow_pickle=True)
    return [*found, buffer.getvalue()]


def npz() -> list[bytes]:
    """`.npz` archives, stored and packed."""
    found = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            for name, data in zip(("x.npy", "w.npy", "note.txt"), npy(), strict=False):
                archive.writestr(name, data)
        found.append(buffer.getvalue())
    return found


def safetensors() -> list[bytes]:
    """safetensors files, of one tensor and of several."""
    import safetensors.numpy as library

    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([True, False]),
        "e": np.zeros((0, 2), np.int8),
    }
    return [library.save({"x": arrays["x"]}), library.save(arrays, {"format": "np"})]


def images() -> list[bytes]:
    """Images of each kind that is read, and two that are not."""
    grey = Image.fromarray((np.arange(48, dtype=np.uint8) * 5).reshape(6, 8))
    colour = Image.fromarray((np.arange(144, dtype=np.uint8)).reshape(6, 8, 3))
    deep = Image.fromarray((np.arange(48) * 1000).astype(np.uint16).reshape(6, 8))
    made = [(grey, "PNG"), (colour, "PNG"), (deep, "PNG"), (colour.convert("P"), "PNG"), (grey.convert("1"), "PNG"),
            (colour, "JPEG"), (grey, "PPM"), (colour, "BMP"), (colour, "TIFF"), (deep, "TIFF"), (grey.convert("1"), "TIFF"),
            (colour, "WEBP"), (colour, "GIF"), (colour, "EPS"), (colour, "ICNS")]  # fmt: skip
    found = []
    for picture, kind in made:
        buffer = io.BytesIO()
        picture.save(buffer, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" and picture is colour else {}))
        found.append(buffer.getvalue())
    return found


def texts() -> list[bytes]:
    """Numbers as text."""
    return [b"1, 2.5, -3e-4\n4, 5, 6\n# a comment\n", b"1 2 3\n", b"0x1f\ntrue\nnan\n-inf\n", b"7\n"]


# -- files of the project's own ---------------------------------------------------------------------------------------


def benches(folder: Path) -> list[bytes]:
    """Results of `loopfuse bench --save`."""
    found = [
        rows.Row("s.lf", "reference", "default", {"N": 64}, "cpu", 1e-3, 9e-4, 2e-3, 30, 2, 4096, 100, 1e-4, "memory")
    ]
    rows.save(
        folder / "rows.json", [*found, rows.Row("t.lf", "cuda", "none", problem="no")], {"loopfuse": "1", "time": 0}
    )
    return [(folder / "rows.json").read_bytes()]


def failures(folder: Path) -> Path:
    """A failure that `loopfuse fuzz --save` kept, with its script and data; the path of its record."""
    text = "input x: f32[N]\nparam a: f32 = 2\noutput y = a * x\n"
    arrays = {"x": np.arange(4, dtype=np.float32)}
    case = Case(text, arrays=arrays, params={"a": 2.0}, sizes={"N": 4}, costed={"N": 4}, kind="ordinary numbers")
    return save(Failure("pass", "fuse", "y differs", case), folder)


def states(folder: Path) -> list[bytes]:
    """States of `loopfuse fuzz --state`."""
    figures = Figures(programs=3, seconds=1.5, elements=10)
    figures.reached.update({"pass fuse": 2})
    save_figures(folder / "state.json", figures)
    return [(folder / "state.json").read_bytes()]
