"""An engine without a GPU: `run` computes by the emulator, and what is loaded is launched on a driver that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from emulator import build
from fake_gpu import FakeDriver

from loopfuse import accelerated, agreement, driver
from loopfuse.cuda import context, engine
from loopfuse.cuda.cache import Cache
from loopfuse.emit.program import emit
from loopfuse.generate import Array
from loopfuse.ir import Program
from loopfuse.lock import Lock


class Anything(dict[str, Any]):
    """Kernels of any name, which do nothing."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return lambda grid: None


class EmulatedEngine(engine.Engine):
    """`wrong`: what is added to every output, so that results are not those of the reference."""

    def __init__(self) -> None:
        fake = FakeDriver(memory=1 << 26)
        fake.kernels = Anything()
        super().__init__(context.Device(fake), Cache(None))
        self.wrong = 0
        self.runs = 0

    def run(self, program: Program, inputs: Mapping[str, Any], sizes: Mapping[str, int],
            seconds: dict[str, float] | None = None, lock: Lock | None = None,
            ) -> tuple[dict[str, Array], list[engine.Hit]]:  # fmt: skip
        self.runs += 1
        code = emit(program, sizes, self.model, tiles=self.tiles(lock))
        self.tell(lock, code)
        known = driver.plan_sizes(program) | dict(sizes)
        outputs = {b.id: (b.dtype, [int(p.value(known)) for p in b.shape]) for b in program.buffers if b.role == "out"}
        emulated = build(code)
        found = emulated.run({id: inputs[id] for id in code.inputs}, {id: inputs[id] for id in code.params},
                             {name: known[name] for name in code.sizes}, outputs)  # fmt: skip
        if seconds is not None:
            seconds |= {"emit": 0.0, "compile": 0.0}
        wrong = {id: np.asarray(a + np.asarray(self.wrong, a.dtype), a.dtype) for id, a in found.items()}
        return wrong, engine.hits(code, list(emulated.faults)[: len(code.faults)])


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedEngine:
    """The engine in place of the GPU's."""
    made = EmulatedEngine()
    for module in (engine, accelerated, agreement):
        monkeypatch.setattr(module, "open_engine", lambda ordinal=0: made)
    monkeypatch.setattr(engine, "usable", lambda ordinal=0: "")
    return made
