"""Chains of elementwise nests, put together in linear time before the search.

A nest whose only result is read by one kernel alone, at the very indices at which it is written, always gains by moving
in with its reader: nothing is computed twice, the array goes, a launch goes. Such nests form trees, each with the last
reader as its root. So does a nest gain whose readers are all in one tree and read the same element in the same iteration.
A tree becomes one nest, in which every member's statements stand once, stores turned to lets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopfuse.analysis.env import Env
from loopfuse.ir import Affine, Dim, Expr, Kernel, Let, Load, Loop, Ref, Stmt, Store
from loopfuse.passes.fuse.graph import Node
from loopfuse.passes.merge.pairs import same_bounds
from loopfuse.rewrite import Mapper, own, rename, walk

MOST_VALUES = 96  # of 32 bits that a chain may hold at a time; elementwise kernels have 128 registers a thread


@dataclass(frozen=True, slots=True)
class Step:
    """A nest that moves in with its reader: positions of both, and the buffer between them.

    `shared`: it has other readers too, which are in the reader's tree.
    """

    producer: int
    reader: int
    buffer: str
    shared: bool = False


@dataclass
class _Tree:
    """A nest with those that moved in: `held` is how many values are needed at a time; `members` are kept up only where
    some nests must not meet."""

    children: list[Step] = field(default_factory=list)
    held: int = 0
    members: set[int] = field(default_factory=set)


class Chains:
    """The trees of a program; `nodes` are its kernels, one each, in their order.

    `barred` are sets of nests that must not all be in one kernel. `steps` are the moves, in an order in which they can
    be done one by one.
    """

    def __init__(self, nodes: Sequence[Node], env: Env, kept: frozenset[str],
                 barred: Sequence[frozenset[int]] = ()) -> None:  # fmt: skip
        self.nodes, self.env, self.kept, self.barred = nodes, env, kept, barred
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for n, node in enumerate(nodes):
            for name in node.reads:
                self.readers.setdefault(name, []).append(n)
            for name in node.writes:
                self.writers.setdefault(name, []).append(n)
        self.dims: dict[tuple[int, int], dict[str, str]] = {}
        self.loads = [_loads(node.kernel) for node in nodes]
        self.steps = self._find()

    def _find(self) -> list[Step]:
        """The moves; the nests of a tree come in the order in which their readers load what they compute."""
        trees = [_Tree(members={n}) for n in range(len(self.nodes))]
        found: list[Step] = []
        for reader, tree in enumerate(trees):
            others = 0
            for name in self.loads[reader]:
                step = self._step(name, reader)
                if step is not None and self._moves(trees[step.producer], tree):
                    tree.children.append(step)
                    found.append(step)
                else:
                    others += 1
            tree.held = max(tree.held, len(tree.children) + others + 2)
        return found + self._shared(found, trees)

    def _shared(self, steps: list[Step], trees: list[_Tree]) -> list[Step]:
        """The moves of nests that several readers in one tree share, the last nest first."""
        root = list(range(len(self.nodes)))
        names: list[dict[str, str] | None] = [None] * len(
            root
        )  # each nest's indices as the root of its tree calls them
        above = {s.producer: s for s in steps}
        found: dict[int, list[Step]] = {}
        for n in reversed(range(len(root))):
            step = above.get(n) or self._joins(n, root, names)
            if step is None:
                loop = self._loop(n)
                names[n] = {d.id: d.id for d in loop.dims} if loop else None
                continue
            into = root[step.reader]
            if step.shared:
                joint = trees[n].members | trees[into].members
                if any(bar <= joint for bar in self.barred):
                    names[n] = {d.id: d.id for d in self._outer(n).dims}
                    continue
                trees[into].members = joint
                found.setdefault(into, []).append(step)
            outer = names[step.reader]
            assert outer is not None
            root[n], names[n] = into, {p: outer[c] for p, c in self.dims[n, step.reader].items()}
        return [s for into, some in found.items() if self._fits(into, [*steps, *some]) for s in some]

    def _joins(self, n: int, root: list[int], names: list[dict[str, str] | None]) -> Step | None:
        """The move of a nest whose readers are all in one tree, where they read what the same iteration computes."""
        if len(self.nodes[n].writes) != 1:
            return None
        name = self.nodes[n].writes[0]
        readers = self.readers.get(name, [])
        if len(readers) < 2 or any(root[r] != root[readers[0]] for r in readers):
            return None
        at: dict[str, str] | None = None
        for reader in readers:
            step, outer = self._step(name, reader, alone=False), names[reader]
            if step is None or outer is None:
                return None
            here = {p: outer[c] for p, c in self.dims[n, reader].items()}
            if at is not None and here != at:
                return None
            at = here
        return Step(n, readers[0], name, shared=True)

    def _fits(self, into: int, steps: Sequence[Step]) -> bool:
        """Whether no more values of a tree are needed at a time than it may hold."""
        moved = {s.producer: s for s in steps}
        last: dict[int, int] = {}
        order = [n for n, _ in self._order(into, moved)] + [into]
        for at, n in enumerate(order):
            for m in self._below(n, moved):
                last[m] = at
        ends = Counter(last.values())
        held = most = 0
        for at, n in enumerate(order):
            most = max(most, held + len(self.loads[n]) - len(self._below(n, moved)) + 2)
            held += 1 - ends[at]
        return most <= MOST_VALUES

    def _moves(self, tree: _Tree, into: _Tree) -> bool:
        """Whether a tree may move in with a reader: not too many values at a time, and nothing that must stay apart."""
        held = max(into.held, len(into.children) + tree.held)
        if held > MOST_VALUES:
            return False
        if self.barred:
            joint = tree.members | into.members
            if any(bar <= joint for bar in self.barred):
                return False
            into.members = joint
        into.held = held
        return True

    def _step(self, name: str, reader: int, alone: bool = True) -> Step | None:
        """The move of the nest that computes a buffer, if it is of the kind that always gains. `alone`: no other nest
        may read the buffer."""
        writers = self.writers.get(name, [])
        if len(writers) != 1 or writers[0] == reader or name in self.kept:
            return None
        if alone and self.readers[name] != [reader]:
            return None
        producer = writers[0]
        written, target = self._definition(producer), self._loop(reader)
        if written is None or target is None:
            return None
        loop, store = written
        places = [_names(load) for load in self.loads[reader][name]]
        if places[0] is None or any(p != places[0] for p in places):
            return None
        mine, yours = {d.id: d for d in loop.dims}, {d.id: d for d in target.dims}
        axes = _axes(store)
        if axes is None or set(axes) != mine.keys() or set(places[0]) != yours.keys() or len(axes) != len(yours):
            return None
        pairs = dict(zip(axes, places[0], strict=True))
        if not all(_alike(mine[p], yours[c], self.env) for p, c in pairs.items()):
            return None
        self.dims[producer, reader] = pairs
        return Step(producer, reader, name)

    def _definition(self, n: int) -> tuple[Loop, Store] | None:
        """The loop and the only store of an elementwise nest."""
        node = self.nodes[n]
        if not node.pure or len(node.writes) != 1:
            return None
        loop = node.kernel.body[0]
        assert isinstance(loop, Loop)
        stores = [s for s in loop.body if isinstance(s, Store)]
        return (loop, stores[0]) if len(stores) == 1 else None

    def _loop(self, n: int) -> Loop | None:
        """The loop around all of a kernel, in which others' statements can stand first."""
        body = self.nodes[n].kernel.body
        loop = body[0]
        if len(body) == 1 and isinstance(loop, Loop) and loop.order == "par" and loop.where is None:
            return loop
        return None

    def _outer(self, n: int) -> Loop:
        loop = self._loop(n)
        assert loop is not None
        return loop

    # -- building -----------------------------------------------------------------------------------------------------

    def build(self, steps: Sequence[Step], env: Env) -> list[Node]:
        """The nodes once some of the moves are done (keys are left empty), in the order of the program."""
        moved = {s.producer: s for s in steps}
        return [
            self._tree(n, moved, env) if self._below(n, moved) else node
            for n, node in enumerate(self.nodes)
            if n not in moved
        ]

    def _below(self, n: int, moved: Mapping[int, Step]) -> list[int]:
        """The nests that moved in with a nest, in the order in which it loads what they compute."""
        writers = [self.writers.get(name, ()) for name in self.loads[n]]
        return [w[0] for w in writers if w and w[0] in moved and w[0] != n]

    def _order(self, root: int, moved: Mapping[int, Step]) -> list[tuple[int, int]]:
        """The nests of a tree, each before its readers, with one of those; the root is left out."""
        order: list[tuple[int, int]] = []
        seen: set[int] = set()
        stack = [(n, root, False) for n in reversed(self._below(root, moved))]
        while stack:
            n, reader, done = stack.pop()
            if done:
                order.append((n, reader))
            elif n not in seen:
                seen.add(n)
                stack.append((n, reader, True))
                stack += [(m, n, False) for m in reversed(self._below(n, moved))]
        return order

    def _tree(self, root: int, moved: Mapping[int, Step], env: Env) -> Node:
        """A tree as one nest."""
        loop = self._outer(root)
        names = {root: {d.id: d.id for d in loop.dims}}
        order = self._order(root, moved)
        for n, reader in reversed(order):
            outer = names[reader]
            names[n] = {p: outer[c] for p, c in self.dims[n, reader].items()}
        values: dict[str, Ref] = {}
        mapper = Mapper(lambda e: values.get(e.buffer, e) if isinstance(e, Load) else e)
        body: list[Stmt] = []
        for n, _ in order:
            written = self._definition(n)
            assert written is not None
            table = {p: c for p, c in names[n].items() if p != c}
            for stmt in mapper.on_body(rename(written[0].body, table) if table else written[0].body):
                body += self._named(stmt, values, env) if isinstance(stmt, Store) else [stmt]
        body += mapper.on_body(loop.body)
        kernel = self.nodes[root].kernel
        members = (*(m for n, _ in order for m in self.nodes[n].members), *self.nodes[root].members)
        return Node(replace(kernel, body=(replace(loop, body=tuple(body)),)), members, b"")

    @staticmethod
    def _named(store: Store, values: dict[str, Ref], env: Env) -> Iterator[Stmt]:
        """A store of a named value; loads of the buffer become the name."""
        if isinstance(store.value, Ref):
            values[store.buffer] = store.value
            yield store
            return
        let = Let(env.fresh(store.buffer), store.value, span=store.span)
        values[store.buffer] = ref = Ref(let.id, store.value.dtype, span=store.span)
        yield let
        yield replace(store, value=ref)


def _loads(kernel: Kernel) -> dict[str, list[Load]]:
    """The loads of a kernel by buffer, in textual order."""
    found: dict[str, list[Load]] = {}
    for stmt in walk(kernel.body):
        for node in own(stmt).nodes:
            if isinstance(node, Load):
                found.setdefault(node.buffer, []).append(node)
    return found


def _names(load: Load) -> tuple[str, ...] | None:
    """The indices at which an element is read, if its subscripts are plain different indices."""
    return None if any(load.modes) else _plain(load.subs)


def _axes(store: Store) -> tuple[str, ...] | None:
    return None if any(store.modes) else _plain(store.subs)


def _plain(subs: tuple[Expr, ...]) -> tuple[str, ...] | None:
    names = tuple(_index(s) for s in subs)
    found = tuple(n for n in names if n is not None)
    return found if len(found) == len(names) == len(set(found)) else None


def _index(sub: Expr) -> str | None:
    return sub.poly.name if isinstance(sub, Affine) else None


def _alike(a: Dim, b: Dim, env: Env) -> bool:
    """Whether two indices run over the same values."""
    return (a.lo, a.hi, a.step) == (b.lo, b.hi, b.step) or same_bounds(a, b, {}, env)
