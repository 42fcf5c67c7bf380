"""`loopfuse doctor`: what this installation has and lacks. It changes nothing and starts no GPU."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata, resources, util
from pathlib import Path

from loopfuse import __version__
from loopfuse.cli import arguments
from loopfuse.cli.frame import MACHINE, OK, Context
from loopfuse.frontend.lalr import cache_folder
from loopfuse.memory import free_memory, show_bytes

ABOUT = """Report versions, packages, GPU libraries and folders. Exit code 4 when something that is needed is absent."""

NEEDED = ("numpy", "ml_dtypes", "lark", "rich", "safetensors", "pillow")
OPTIONAL = {"pycuda": "pycuda", "cuda-bindings": "cuda.bindings", "nvidia-cuda-nvrtc": "nvidia.cu13"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report; `ok` is None for what is absent and not needed."""

    subject: str
    value: str
    ok: bool | None = True


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    arguments.Parser("doctor", ABOUT).read(argv, context)
    findings = [*_basics(), *_packages(), *_gpu(), *_parts(), _cache()]
    width = max(len(f.subject) for f in findings)
    for finding in findings:
        mark = {True: "ok", False: "MISSING", None: "-"}[finding.ok]
        context.terminal.result(f"{mark:<8}{finding.subject:<{width}}  {finding.value}")
        context.terminal.record({"kind": "doctor", "subject": finding.subject, "value": finding.value,
                                 "ok": finding.ok})  # fmt: skip
    return MACHINE if any(f.ok is False for f in findings) else OK


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


def _gpu() -> list[Finding]:
    """Libraries by name only: nothing is loaded, since loading a driver can take seconds."""
    driver = ctypes.util.find_library("cuda")
    nvcc = shutil.which("nvcc")
    findings = [
        Finding(
            "GPU driver", driver or "no libcuda (programs run on the reference interpreter)", True if driver else None
        ),
        Finding("nvcc", nvcc or "not on PATH (optional)", True if nvcc else None),
    ]
    for package, module in OPTIONAL.items():
        there = _importable(module)
        findings.append(Finding(f"import {module}", "yes" if there else f"no ({package})", True if there else None))
    return findings


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
