"""How the comparison calls loopfuse: a script and PyTorch's tensors in, a bound call out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import loopfuse as lf

WARM = "input x: f32[N]\noutput y = x + 1\n"


def prepare(script: Path, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> Callable[[], Any]:
    """Compile a script for these tensors; the call fills `outputs` and does not wait.

    Work goes to the stream that is PyTorch's current one, so that its events see it.
    """
    compiled = lf.compile(script.read_text(encoding="utf-8"))
    out = dict(outputs) if len(outputs) > 1 else next(iter(outputs.values()))
    return compiled.bind(**inputs, out=out)


def warm_up() -> None:
    """Load what any first program needs (compiler, runtime, context), which no program's first call shall pay for."""
    x = torch.zeros(8, device="cuda")
    prepare_text(WARM, {"x": x}, {"y": torch.empty_like(x)})()
    torch.cuda.synchronize()


def prepare_text(
    text: str, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> Callable[[], Any]:
    """`prepare` for a script that is no file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.lf"
        path.write_text(text, encoding="utf-8")
        return prepare(path, inputs, outputs)


@contextmanager
def empty_cache() -> Any:
    """A cache on disk that holds nothing yet, for the block."""
    was = os.environ.get("LOOPFUSE_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOOPFUSE_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("LOOPFUSE_CACHE_DIR")
            if was is not None:
                os.environ["LOOPFUSE_CACHE_DIR"] = was


def forget() -> None:
    """Let go of what this process remembers of programs, so that the next call finds them on disk alone."""
    forget_all = getattr(lf, "forget", None)
    if forget_all is not None:
        forget_all()


def kernels(call: Any) -> int:
    """How many kernels a call launches, 0 where it does not say."""
    return int(getattr(call, "launches", 0))
