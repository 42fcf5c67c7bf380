"""The launches of a plan as they are carried out: one by one, or, where there are very many, in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loopfuse.cuda.calls import Driver, Handle
from loopfuse.cuda.launch import Action, Plan, Set, Slots, Start
from loopfuse.emit.code import KernelCode

PORTION = 4096  # launches whose arguments are laid out together


@dataclass(frozen=True, slots=True)
class Target:
    """Where launches go: the loaded kernels with the driver's handles of them, a stream, and where temporaries lie."""

    driver: Driver
    kernels: tuple[KernelCode, ...]
    functions: Sequence[Handle]
    stream: int
    places: Mapping[str, int]


class Commands(Protocol):
    """Launches that wait for arrays."""

    @property
    def kind(self) -> str:
        """`direct`, `portions` or `graph`."""

    def run(self) -> None:
        """Put them on the stream."""

    def use(self, pointers: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """Take these arrays, by buffer, and params from now on; launches that have begun keep theirs."""

    def close(self) -> None:
        """Release what the driver holds for it."""


class Direct:
    """A call of the driver for each action, its arguments laid out in advance."""

    kind = "direct"

    def __init__(self, target: Target, actions: Sequence[Action]) -> None:
        self._now = dict(target.places)
        self._slots = Slots([a for a in actions if isinstance(a, Start)], target.driver)
        for id, place in target.places.items():
            self._slots.point(id, place)
        addresses = iter(self._slots.addresses)
        self._runs = tuple(self._one(target, action, addresses) for action in actions)
        self.run: Callable[[], None] = self._runs[0] if len(self._runs) == 1 else self._all

    def _one(self, target: Target, action: Action, addresses: Iterator[int]) -> Callable[[], None]:
        if isinstance(action, Set):
            now, fill = self._now, target.driver.fill
            memory, byte, count, stream = action.memory, action.byte, action.count, target.stream
            return lambda: fill(now[memory], byte, count, stream)
        kernel, function = target.kernels[action.kernel], target.functions[action.kernel]
        return target.driver.launcher(function, action.grid, kernel.threads, kernel.shared, target.stream,
                                      next(addresses))  # fmt: skip

    def _all(self) -> None:
        for run in self._runs:
            run()

    def use(self, pointers: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """See `Commands`."""
        self._now.update(pointers)
        for id, pointer in pointers.items():
            self._slots.point(id, pointer)
        self._slots.give(params)

    def close(self) -> None:
        """See `Commands`."""


class Portions:
    """The same for a plan with too many launches to lay out at once."""

    kind = "portions"

    def __init__(self, target: Target, plan: Plan) -> None:
        self._target, self._plan = target, plan
        self._pointers: Mapping[str, int] = {}
        self._params: Mapping[str, Any] = {}

    def use(self, pointers: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """See `Commands`."""
        self._pointers, self._params = dict(pointers), dict(params)

    def run(self) -> None:
        """Walk through the plan."""
        portion: list[Action] = []
        for action in self._plan.walk():
            portion.append(action)
            if len(portion) == PORTION:
                self._run(portion)
                portion.clear()
        self._run(portion)

    def _run(self, portion: Sequence[Action]) -> None:
        direct = Direct(self._target, portion)
        direct.use(self._pointers, self._params)
        direct.run()

    def close(self) -> None:
        """See `Commands`."""


def commands(target: Target, plan: Plan) -> Direct | Portions:
    """The launches of a plan, to be made by the host at each call."""
    return Portions(target, plan) if plan.actions is None else Direct(target, plan.actions)
