"""nvcc, the compiler that is a program: eight times as slow to start as NVRTC, and there where a toolkit is installed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loopfuse.cuda.toolchain import Rejected
from loopfuse.diag import MachineError


class Nvcc:
    """The program at a path. Raises `MachineError` where it does not start."""

    def __init__(self, program: str, stamp: str) -> None:
        self.program = program
        found = re.search(r"V(\d+\.\d+\.\d+)", self._said("--version"))
        self.version = f"nvcc {found[1] if found else 'of unknown version'}"
        self.fingerprint = stamp
        self.archs = tuple(sorted(int(n) for n in re.findall(r"compute_(\d+)\b", self._said("--list-gpu-arch"))))

    def build(self, source: str, name: str, target: str, flags: Sequence[str]) -> tuple[bytes, str]:
        """Machine code for a target `sm_…`, or PTX for `compute_…`, and the log.

        Raises `Rejected`, and `MachineError` where nvcc lacks what it needs itself, as a host compiler.
        """
        ptx = target.startswith("compute_")
        with tempfile.TemporaryDirectory(prefix="loopfuse-") as folder:
            text, out = Path(folder, f"{name}.cu"), Path(folder, f"{name}.out")
            text.write_text(source, encoding="utf-8")
            words = [self.program, "-ptx" if ptx else "-cubin", f"-arch={target}", *flags, "-Xptxas", "-v",
                     "-o", out.name, text.name]  # fmt: skip
            try:
                done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
            except OSError as why:
                raise MachineError(f"`{self.program}` does not start: {why.strerror}") from why
            log = (done.stdout + done.stderr).strip()
            if "nvcc fatal" in log:
                raise MachineError(f"`{self.program}` cannot compile here: {log}")
            if done.returncode or not out.is_file():
                raise Rejected(log or f"nvcc ended with {done.returncode} and without a word")
            return out.read_bytes() + (b"\0" if ptx else b""), log

    def _said(self, option: str) -> str:
        try:
            return subprocess.run([self.program, option], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as why:
            raise MachineError(f"`{self.program} {option}` fails: is it nvcc? ({why})") from why
