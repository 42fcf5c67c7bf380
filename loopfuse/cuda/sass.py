"""Machine code as text, by the programs that come with a CUDA toolkit."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from loopfuse.cuda.toolchain import find_tool
from loopfuse.diag import CompilerError, MachineError

_TOOLS = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin. Raises `MachineError` where neither nvdisasm nor cuobjdump is found."""
    found = ((path, options) for name, options in _TOOLS.items() if (path := find_tool(name)))
    tool, options = next(found, ("", ()))
    if not tool:
        raise MachineError(
            "machine code is shown by `nvdisasm`, and there is none: `pip install nvidia-cuda-nvdisasm` brings it; "
            "a CUDA toolkit has it too (on PATH or in CUDA_HOME). `--emit ptx` needs neither"
        )
    with tempfile.TemporaryDirectory(prefix="loopfuse-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        try:
            done = subprocess.run([tool, *options, str(file)], capture_output=True, text=True, check=False)
        except OSError as why:
            raise MachineError(f"`{tool}` does not start: {why.strerror}") from why
    if done.returncode:
        raise CompilerError("cuda", f"`{tool}` does not read what was compiled: {done.stderr.strip()}")
    return done.stdout.strip() + "\n"
