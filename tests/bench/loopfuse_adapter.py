"""How the comparison calls loopfuse: a script and PyTorch's tensors in, a bound call out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import loopfuse as lf
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.engine import open_engine
from loopfuse.devices import Device

WARM = "input x: f32[N]\noutput y = x + 1\noutput s = sum(x)\n"
PATHS = {"": "", "mma": "sm_80"}  # by the architecture that a device is taken to have
Tensors = Mapping[str, torch.Tensor]


def prepare(script: Path, inputs: Tensors, outputs: Tensors, path: str = "") -> Callable[[], Any]:
    """Compile a script for these tensors; the call fills `outputs` and does not wait.

    Work goes to the default stream, which is PyTorch's, so that its events see it. `path`: how contractions are written, by
    default as is best here; "mma" as for devices without wgmma.
    """
    with taken(path):
        return bound(script.read_text(encoding="utf-8"), inputs, outputs)


def bound(text: str, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    """`prepare` for the text of a script."""
    return lf.compile(text).bind(**inputs, out=dict(outputs))


def model(path: str = "") -> Device:
    """The device here as the compiler shall see it. Code for an older architecture is still compiled for the one here."""
    known = open_engine().model
    return replace(known, arch=PATHS[path]) if PATHS[path] else known


@contextmanager
def taken(path: str) -> Iterator[None]:
    """Programs are written for `model(path)`, for the block. It is part of their key in the cache."""
    engine = open_engine()
    was = engine.model
    engine.model = model(path)
    try:
        yield
    finally:
        engine.model = was


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
