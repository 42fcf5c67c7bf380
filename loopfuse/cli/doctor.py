"""`loopfuse doctor`: what this installation has and lacks. It compiles and runs small programs, and keeps measurements."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, resources, util
from pathlib import Path

from loopfuse import __version__
from loopfuse.cli import arguments
from loopfuse.cli.examining import Finding, findings
from loopfuse.cli.frame import MACHINE, OK, Context
from loopfuse.frontend.lalr import cache_folder
from loopfuse.memory import free_memory, show_bytes

ABOUT = """Report versions, packages, folders, and the GPU side: driver, compiler, a context, programs that are compiled
and run, what was compiled before, and what the cost model reckons with. Exit code 4 when something that is needed is
absent or broken; a machine without a GPU needs nothing of the GPU side."""

NEEDED = ("numpy", "ml_dtypes", "lark", "rich", "safetensors", "pillow")
OPTIONAL = {"pycuda": "pycuda", "cuda-bindings": "cuda.bindings", "nvidia-cuda-nvrtc": "nvidia.cu13"}


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("doctor", ABOUT)
    parser.add_argument(
        "--measure", action="store_true", help="measure the GPU, for the cost model, and keep the figures"
    )
    options = parser.read(argv, context)
    found = [*_basics(), *_packages(), *_imports(), *_parts(), _cache()]
    with context.terminal.progress("doctor") as progress:
        for number, finding in enumerate(findings(options.measure)):
            found.append(finding)
            progress(min(0.9, number / 20))
    width = max(len(f.subject) for f in found)
    for finding in found:
        mark = {True: "ok", False: "WRONG", None: "-"}[finding.ok]
        context.terminal.result(f"{mark:<8}{finding.subject:<{width}}  {finding.value}")
        context.terminal.record({"kind": "doctor", "subject": finding.subject, "value": finding.value,
                                 "ok": finding.ok})  # fmt: skip
    return MACHINE if any(f.ok is False for f in found) else OK


def _basics() -> list[Finding]:
    return [
        Finding("loopfuse", f"{__version__} in {resources.files('loopfuse')}"),
        Finding("python", f"{platform.python_version()} at {sys.executable}", sys.version_info >= (3, 11)),
        Finding("system", f"{platform.platform()}, {os.cpu_count()} CPUs, {show_bytes(free_memory())} free"),
    ]


def _packages() -> list[Finding]:
    found = [Finding(name, version or "not installed", bool(version)) for name, version in _versions(NEEDED)]
    return found + [Finding(n, v or "not installed (optional)", True if v else None) for n, v in _versions(OPTIONAL)]


def _versions(names: tuple[str, ...] | dict[str, str]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name in names:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append((name, None))
    return found


def _imports() -> list[Finding]:
    """Packages for the GPU, found and not loaded."""
    found = [(package, module, _importable(module)) for package, module in OPTIONAL.items()]
    return [Finding(f"import {m}", "yes" if t else f"no ({p})", True if t else None) for p, m, t in found]


def _importable(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _parts() -> list[Finding]:
    """What the package must ship beside its code."""
    root = Path(str(resources.files("loopfuse")))
    library = sorted(p.stem for p in (root / "lib").glob("*.lf"))
    codes = (root / "codes.md").is_file()
    return [
        Finding("library", " ".join(library) or "no modules", bool(library)),
        Finding("error codes", "codes.md" if codes else "no codes.md", codes),
    ]


def _cache() -> Finding:
    folder = cache_folder()
    if folder is None:
        return Finding("cache", "no home folder: start-up is slower", None)
    existing = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    writable = os.access(existing, os.W_OK)
    return Finding("cache", f"{folder}{'' if writable else ' is not writable: start-up is slower'}", writable or None)
