"""What is written when the fault is ours: everything needed to reproduce it, and no data of the user's."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from loopfuse.diag import CompilerError, Source


def dump(bug: BaseException, source: Source | None = None, command: Iterable[str] = ()) -> Path:
    """Write what is needed to reproduce a bug into a new folder; returns it.

    Beside the trace: the script, the intermediate form, the versions and the command line. No data is written.
    """
    folder = Path(tempfile.mkdtemp(prefix="loopfuse-bug-"))
    stage = bug.stage if isinstance(bug, CompilerError) else "unknown"
    lines = [f"stage: {stage}", f"error: {bug}", f"command: {' '.join(command)}", *versions(), "",
             "".join(traceback.format_exception(bug))]  # fmt: skip
    (folder / "report.txt").write_text("\n".join(lines), encoding="utf-8", errors="backslashreplace")
    if source is not None:
        (folder / "script.lf").write_text(source.text, encoding="utf-8", errors="replace")
    if isinstance(bug, CompilerError) and bug.artifact:
        (folder / "program.lfir").write_text(bug.artifact, encoding="utf-8", errors="replace")
    return folder


def versions() -> list[str]:
    """The versions that matter, a line each."""
    lines = [f"python: {sys.version.split()[0]} on {platform.platform()}"]
    for name in ("loopfuse", "numpy", "ml_dtypes", "lark"):
        try:
            lines.append(f"{name}: {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed as a package")
    return lines
