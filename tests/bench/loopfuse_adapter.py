"""How the comparison calls loopfuse: a script and PyTorch's tensors in, a bound call out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import loopfuse as lf
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.engine import open_engine

WARM = "input x: f32[N]\noutput y = x + 1\noutput s = sum(x)\n"
Tensors = Mapping[str, torch.Tensor]


def prepare(script: Path, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    """Compile a script for these tensors; the call fills `outputs` and does not wait.

    Work goes to the default stream, which is PyTorch's, so that its events see it.
    """
    return bound(script.read_text(encoding="utf-8"), inputs, outputs)


def bound(text: str, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    """`prepare` for the text of a script."""
    return lf.compile(text).bind(**inputs, out=dict(outputs))


def warm_up() -> None:
    """Load what any first program needs (compiler, runtime, context), for which no program's first call shall pay."""
    x = torch.zeros(8, device="cuda")
    with empty_cache():
        bound(WARM, {"x": x}, {"y": torch.empty_like(x), "s": torch.zeros((), device="cuda")})()
    torch.cuda.synchronize()


@contextmanager
def empty_cache() -> Iterator[None]:
    """A cache on disk that holds nothing yet, for the block."""
    engine = open_engine()
    was = engine.cache
    with tempfile.TemporaryDirectory() as folder:
        engine.cache = Cache(Path(folder))
        try:
            yield
        finally:
            engine.cache = was


def forget() -> None:
    """Let go of the programs that this process remembers, so that the next call finds them on disk alone."""
    engine = open_engine()
    engine.cache = Cache(engine.cache.folder)
