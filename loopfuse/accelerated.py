"""A compiled program on a GPU: one loaded program a signature, calls on arrays of any library, bound calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse import driver
from loopfuse.bind import Bound
from loopfuse.cuda import bound as bound_calls
from loopfuse.cuda.arrays import DeviceArray, View, view
from loopfuse.cuda.engine import Engine, hits, open_engine, split
from loopfuse.cuda.program import Loaded, Results
from loopfuse.cuda.version import program_key
from loopfuse.diag import UserError, error
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.lock import Lock
from loopfuse.printer import print_program

MOST = 32  # signatures that are kept loaded


@dataclass(frozen=True, slots=True)
class Signature:
    """What a loaded program was made for, and why it was made: the settled sizes, or that it is for any."""

    sizes: tuple[tuple[str, int], ...]
    dynamic: bool
    found: str  # "compiled", or "in the cache"

    def __str__(self) -> str:
        if self.dynamic:
            return f"any sizes ({self.found})"
        shown = ", ".join(f"{n}={v}" for n, v in self.sizes) or "no sizes"
        return f"{shown}: the first call with these extents ({self.found})"


class Accelerated:
    """The kernels of a lowered program by signature.

    With `dynamic` one set of kernels serves all sizes; decisions are then made for those of the first call. `lock`: the
    tiles to take.
    """

    def __init__(self, lowered: driver.Lowered, passes: str, freeze: Sequence[str], dynamic: bool, ordinal: int = 0,
                 lock: Lock | None = None) -> None:  # fmt: skip
        self.lowered, self._passes, self._freeze, self._dynamic = lowered, passes, tuple(freeze), dynamic
        self._ordinal, self._chosen = ordinal, lock
        self._lock = threading.RLock()
        self._known: OrderedDict[tuple[object, ...], tuple[Loaded, dict[str, Array]]] = OrderedDict()
        self.signatures: list[Signature] = []

    def __getstate__(self) -> dict[str, Any]:
        """Without what is loaded: another process compiles again, or finds it in the cache."""
        kept = {k: v for k, v in self.__dict__.items() if k != "_lock"}
        return {**kept, "_known": OrderedDict(), "signatures": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    @property
    def engine(self) -> Engine:
        """The device. Raises `MachineError` where it cannot be used."""
        return open_engine(self._ordinal)

    def load(self, bound: Bound, optimise: Callable[[Bound], driver.Optimised]) -> tuple[Loaded, dict[str, Array]]:
        """The loaded program for these sizes, and the arrays that are frozen into it."""
        sizes = {s.id: bound.sizes[s.id] for s in self.lowered.typed.sizes}
        fixed = {n: v for n, v in sizes.items() if not self._dynamic}
        key = tuple(fixed.items())
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._load(bound, fixed, optimise)
                while len(self._known) > MOST:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return found

    def _load(self, bound: Bound, fixed: Mapping[str, int], optimise: Callable[[Bound], driver.Optimised],
              ) -> tuple[Loaded, dict[str, Array]]:  # fmt: skip
        engine, program = self.engine, self.lowered.program
        key = "" if self._freeze else program_key(
            {"program": print_program(program)}, signature=dict(fixed), device=engine.model, numerics=program.numerics,
            options=(self._passes, self._dynamic, engine.device.arch, engine.tiles(self._chosen)),
        )  # fmt: skip
        stored = engine.cache.program(key, self._sources()) if key else None
        self.signatures.append(Signature(tuple(fixed.items()), self._dynamic, "in the cache" if stored else "compiled"))
        if stored is not None:
            engine.tell(self._chosen, stored.code)
            with driver.guard("cuda"):
                return Loaded(engine.device, stored.code, stored.binaries, program.buffers), {}
        optimised = optimise(bound)
        if unmet := optimised.unmet:
            raise UserError(unmet)
        with driver.guard("cuda", lambda: print_program(optimised.program)):
            loaded = engine.load(optimised.program, bound.sizes, dynamic=self._dynamic, key=key, lock=self._chosen)
            return loaded, optimised.frozen

    def _sources(self) -> list[Any]:
        """The texts that faults point into."""
        spans = (s for b in self.lowered.program.buffers for s in (b.span,) if s is not None)
        return list({id(s.source): s.source for s in spans}.values())

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, bound: Bound, given: Given, optimise: Callable[[Bound], driver.Optimised]) -> dict[str, Any]:
        """The outputs by name: on the device where an input or an output was, else in host memory."""
        loaded, frozen = self.load(bound, optimise)
        arrays, params = self._arguments(loaded, bound, given, frozen)
        to_host = not given.on_device
        with driver.guard("cuda"):
            found = loaded.call(arrays, params, bound.sizes, self._outputs(given), given.stream, to_host=to_host)
        self._raise_faults(loaded, found.faults)
        return self._named(loaded, found)

    def bind(self, bound: Bound, given: Given, optimise: Callable[[Bound], driver.Optimised]) -> BoundCall:
        """A call whose arrays are settled."""
        loaded, frozen = self.load(bound, optimise)
        arrays, params = self._arguments(loaded, bound, given, frozen)
        with driver.guard("cuda"):
            made = bound_calls.bind(loaded, arrays, params, bound.sizes, self._outputs(given), given.stream)
        return BoundCall(self, loaded, made)

    def _arguments(self, loaded: Loaded, bound: Bound, given: Given, frozen: Mapping[str, Array],
                   ) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
        arrays, params = split(self.lowered.program, {**bound.inputs, **given.arrays})
        arrays |= frozen
        return {id: arrays[id] for id in loaded.code.inputs}, params

    def _ends(self, loaded: Loaded) -> dict[str, str]:
        """The name of each output by the buffer that the code writes."""
        ends = dict(zip(self.lowered.roots, loaded.code.outputs, strict=True))
        return {ends[o.buffer]: o.name for o in self.lowered.typed.outputs}

    def _outputs(self, given: Given) -> dict[str, Any]:
        outs = [b.id for b in self.lowered.program.buffers if b.role == "out"]
        ends = dict(zip(self.lowered.roots, outs, strict=True))
        places = {o.name: ends[o.buffer] for o in self.lowered.typed.outputs}
        return {places[name]: array for name, array in given.out.items()}

    def _named(self, loaded: Loaded, found: Results) -> dict[str, Any]:
        names = self._ends(loaded)
        return {names[id]: array for id, array in found.items() if id in names}

    def _raise_faults(self, loaded: Loaded, counts: Sequence[int]) -> None:
        if any(counts):
            raise UserError([driver.fault_message(*hit) for hit in hits(loaded.code, counts)])


class BoundCall:
    """A program bound to arrays: a call runs it again and gives the same outputs, without waiting for the device.

    `outputs` by name. What goes outside its array is told by `check()`, which waits.
    """

    def __init__(self, program: Accelerated, loaded: Loaded, made: bound_calls.Bound) -> None:
        self._program, self._loaded, self._made = program, loaded, made
        self.outputs = program._named(loaded, made.outputs)

    def __call__(self) -> dict[str, Any]:
        """Run once more; the outputs by name."""
        self._made()
        return self.outputs

    def rebind(self, out: object = None, **inputs: Any) -> dict[str, Any]:
        """Use other arrays of the same types and extents from now on: `f.rebind(x=x2, out=y2)`. What is not named stays.

        Gives the outputs by name. Arrays must keep to the domains of their inputs, which are not checked again.
        """
        typed = self._program.lowered.typed
        buffers = {i.name: i.buffer for i in typed.inputs}
        for name in inputs:
            if name not in buffers:
                raise UserError(error("LF0502", f"the program has no input `{name}`",
                                      notes=[f"its inputs are {', '.join(buffers)}"]))  # fmt: skip
        places = {name: id for id, name in self._program._ends(self._loaded).items()}
        given = {places[name]: array for name, array in outputs_given(typed, out).items()}
        read = {buffers[name]: array for name, array in inputs.items() if buffers[name] in self._loaded.code.inputs}
        with driver.guard("cuda"):
            self.outputs = self._program._named(self._loaded, self._made.rebind(given, None, **read))
        return self.outputs

    def check(self) -> None:
        """Wait, and raise LF0704 for what went outside its array in the last call."""
        self._program._raise_faults(self._loaded, self._made.faults() if self._loaded.code.faults else ())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was copied although it was on the device, and why."""
        return tuple(self._made.outputs.remarks)

    def close(self) -> None:
        """Release the graph."""
        self._made.close()


# -- arguments --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """What a call was given for the device: arrays by buffer, outputs by name, and a stream."""

    arrays: Mapping[str, Any]
    out: Mapping[str, Any]
    stream: Any = None
    bound: bool = False

    @property
    def on_device(self) -> bool:
        """Whether results stay on the device."""
        held = (*self.arrays.values(), *self.out.values())
        return self.bound or any(not isinstance(a, np.ndarray) for a in held)


def is_on_device(value: Any) -> bool:
    """Whether an array lies on a GPU, in whatever library."""
    if isinstance(value, DeviceArray):
        return True
    kind = type(value)
    if kind.__module__ == "numpy":
        return False
    if hasattr(kind, "__dlpack_device__"):
        try:
            return int(value.__dlpack_device__()[0]) in (2, 13)
        except Exception:  # what a library raises for arrays that it cannot share
            return False
    return hasattr(value, "__cuda_array_interface__")


def stand_ins(
    typed: TypedProgram, data: Mapping[str, Any], stream: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """For the binder: device arrays as empty arrays of their types and extents (but where a domain must be checked, which
    takes their values), and the device arrays by buffer."""
    buffers = {i.name: i.buffer for i in typed.inputs}
    checked = {c.domain_of for c in typed.checks if c.domain_of is not None}
    shown: dict[str, Any] = dict(data)
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if name not in buffers or not is_on_device(value):
            continue
        kept[buffers[name]] = value
        seen = view(value, 0)
        assert isinstance(seen, View)
        wanted = name in checked or buffers[name] in checked
        shown[name] = fetched(value) if wanted else np.broadcast_to(np.zeros((), seen.dtype.numpy), seen.shape)
    return shown, kept


def fetched(value: Any) -> Array:
    """The values of a device array."""
    if isinstance(value, DeviceArray):
        return value.numpy()
    if hasattr(value, "cpu"):  # PyTorch
        return np.asarray(value.cpu())
    if hasattr(value, "get"):  # CuPy
        return np.asarray(value.get())
    return np.asarray(value)


def outputs_given(typed: TypedProgram, out: object) -> dict[str, Any]:
    """The arrays of `out=` by output: a mapping, or one array where there is one output."""
    names = [o.name for o in typed.outputs]
    if out is None:
        return {}
    if isinstance(out, Mapping):
        unknown = [n for n in out if n not in names]
        if unknown:
            raise UserError(error("LF0502", f"the program has no output `{unknown[0]}`",
                                  notes=[f"its outputs are {', '.join(names)}"]))  # fmt: skip
        return dict(out)
    if len(names) != 1:
        raise UserError(error("LF0502", f"`out` must be a mapping: the program has {len(names)} outputs",
                              notes=[f"its outputs are {', '.join(names)}"]))  # fmt: skip
    return {names[0]: out}
