"""The launches of a plan as a CUDA graph, which one call of the driver starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loopfuse.cuda.calls import Graph, Handle
from loopfuse.cuda.commands import Target
from loopfuse.cuda.launch import Action, Set, Slots, Start
from loopfuse.cuda.tiles import Tiles
from loopfuse.emit.code import Param, Pointer


class Replay:
    """See `commands.Commands`. The graph is made when the first arrays are known; for others its nodes are changed."""

    kind = "graph"

    def __init__(self, target: Target, actions: Sequence[Action]) -> None:
        self._target, self._actions = target, actions
        self._slots = Slots([a for a in actions if isinstance(a, Start)], target.driver)
        self._now = dict(target.places)
        for id, place in target.places.items():
            self._slots.point(id, place)
        self._graph: Graph | None = None
        self._nodes: list[tuple[Action, Handle, int]] = []
        self.run: Callable[[], None] = _unmade

    def use(self, pointers: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """See `commands.Commands`."""
        changed = {id for id, pointer in pointers.items() if self._now.get(id) != pointer}
        for id in changed:
            self._slots.point(id, pointers[id])
        self._now.update(pointers)
        before = self._slots.values.copy()
        self._slots.give(params)
        if self._graph is None:
            self._make()
        else:
            self._change(self._graph, changed, bool((before != self._slots.values).any()))

    def _make(self) -> None:
        target, addresses = self._target, iter(self._slots.addresses)
        graph = target.driver.graph()
        try:
            for action in self._actions:
                address = 0
                if isinstance(action, Set):
                    node = graph.add_fill(self._now[action.memory], action.byte, action.count)
                else:
                    kernel, address = target.kernels[action.kernel], next(addresses)
                    node = graph.add_launch(target.functions[action.kernel], action.grid, kernel.threads, kernel.shared,
                                            address)  # fmt: skip
                self._nodes.append((action, node, address))
            graph.instantiate()
            self.run = graph.launcher(target.stream)
        except BaseException:
            graph.close()
            self._nodes.clear()
            raise
        self._graph = graph

    def _change(self, graph: Graph, memories: set[str], params: bool) -> None:
        """Give the nodes that take what has changed their arguments anew."""
        for action, node, address in self._nodes:
            if isinstance(action, Set):
                if action.memory in memories:
                    graph.set_fill(node, self._now[action.memory])
            elif any((isinstance(a, Pointer | Tiles) and a.memory in memories) or (params and isinstance(a, Param))
                     for a in action.arguments):  # fmt: skip
                graph.set_launch(node, address)

    def close(self) -> None:
        """See `commands.Commands`."""
        graph, self._graph, self.run = self._graph, None, _unmade
        if graph is not None:
            graph.close()


def _unmade() -> None:
    raise RuntimeError("a graph without arrays was started")
