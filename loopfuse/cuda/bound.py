"""A program bound to arrays: everything is settled, and a call replays its launches.

Several launches are a CUDA graph, which one call of the driver starts. A single launch is made directly, from arguments
that were laid out in advance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from loopfuse.cuda.arguments import Accept, Prepared
from loopfuse.cuda.calls import DriverError
from loopfuse.cuda.commands import Commands, commands
from loopfuse.cuda.graph import Replay
from loopfuse.cuda.program import Lane, Loaded, Results
from loopfuse.cuda.streams import stream_handle
from loopfuse.cuda.timing import Timing, time_call
from loopfuse.diag import CompilerError, MachineError, UserError, error

How = Literal["auto", "graph", "direct"]
DIRECT = 1  # up to so many actions, a launch of each costs the host less than that of a graph


def bind(program: Loaded, inputs: Mapping[str, Any], params: Mapping[str, Any] | None = None,
         sizes: Mapping[str, int] | None = None, out: Mapping[str, Any] | None = None, stream: Any = None,
         how: How = "auto") -> Bound:  # fmt: skip
    """Settle all of a call but its time; arguments as of `Loaded.call`.

    NumPy inputs are copied now; each call of what is returned writes the same outputs, which are on the device. `how`:
    as a graph, by direct launches, or whichever is cheaper.
    """
    handle = stream_handle(stream)
    with program.device.active(f"binding `{program.code.name}`"):
        lane = program.lane(sizes or {}, handle)
        found = _on_device(program.accept(lane, inputs, out or {}))
        return Bound(program, lane, found, params or {}, how)


def _on_device(accept: Accept) -> Prepared:
    """What was accepted, where no output has to be copied after each call."""
    if accept.found.late:
        raise UserError(error("LF0520", "an output that is bound must be on the device, on a multiple of 16 bytes"))
    return accept.done()


class Bound:
    """A call of a program whose arrays are settled. `outputs` are written by each call; `kind` says how it launches."""

    def __init__(self, program: Loaded, lane: Lane, prepared: Prepared, params: Mapping[str, Any], how: How) -> None:
        self.program, self._lane, self._device = program, lane, program.device
        self._prepared, self._params = prepared, dict(params)
        self.outputs = Results(prepared.outputs, (), prepared.remarks)
        actions = lane.plan.actions
        graph = actions is not None and (how == "graph" or (how == "auto" and len(actions) > DIRECT))
        self._commands: Commands = Replay(lane.target, actions or ()) if graph else commands(lane.target, lane.plan)
        self.kind = self._commands.kind
        self._commands.use(prepared.pointers, params)
        self._run: Callable[[], None] = self._commands.run
        self._lock, self._enter, self._leave = lane.lock, self._device.driver.enter, self._device.driver.leave
        self._closed = False
        program.dependents.add(self)

    def __call__(self) -> Results:
        """Run once more, without waiting for it. Returns `outputs`; `faults()` tells of faults."""
        device, lane = self._device, self._lane
        if device.state is not None:
            raise device.state
        with self._lock:
            left = self._enter()
            try:
                if lane.dirty:
                    lane.clean(device.driver)
                self._run()
            except BaseException as why:
                lane.dirty = True
                if isinstance(why, DriverError):
                    raise device.told(why, f"`{self.program.code.name}`") from why
                raise
            finally:
                if left and device.state is None:
                    self._leave()
        return self.outputs

    def faults(self) -> tuple[int, ...]:
        """How often each fault counter was hit in the last call on this stream; waits for it."""
        with self._device.active() as driver:
            return self._lane.faults(driver)

    def rebind(self, out: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None,
               **inputs: Any) -> Results:  # fmt: skip
        """Use other arrays of the same types and extents from now on, and other params; what is not named stays.

        Runs that have begun keep what they have. Returns the outputs. Raises as `Loaded.call` does, and then nothing
        has changed.
        """
        code, given = self.program.code, out or {}
        unknown = (inputs.keys() - set(code.inputs)) | (given.keys() - set(code.outputs))
        if unknown:
            raise CompilerError("cuda", f"`{code.name}` has no {', '.join(sorted(unknown))}")
        with self._device.active(f"binding `{code.name}`"):
            accept = self.program.accept(self._lane, inputs, given, rest=False)
            accept.keep(self._prepared)
            found = _on_device(accept)
            with self._lane.lock:
                self._params |= params or {}
                self._commands.use(found.pointers, self._params)
                self._prepared = found
                self.outputs = Results({id: found.outputs[id] for id in code.outputs}, (), found.remarks)
        return self.outputs

    def time(self, reps: int | None = None, flush: bool = True) -> Timing:
        """The time of a call on the GPU (with the caches overwritten before each, unless `flush` is off) and of the host;
        `reps` samples."""
        return time_call(self._device, self, stream=self._lane.stream, reps=reps, flush=flush)

    def close(self) -> None:
        """Release the graph; the bound call cannot be used any more."""
        if not self._closed:
            self._closed, self._run = True, self._refuse
            if self._device.state is None:
                with self._device.active():
                    self._commands.close()

    def _refuse(self) -> None:
        raise MachineError(f"`{self.program.code.name}` was closed")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with contextlib.suppress(Exception):  # nobody can be told
                self.close()
