"""Removing from a kernel what nothing that is kept needs: a mark from the kept stores, and a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loopfuse.ir import Acc, Kernel, Let, Loop, Ref, Stmt, Store
from loopfuse.rewrite import expr_names, own, subexprs


def sweep(kernel: Kernel, kept: Callable[[str], bool]) -> Kernel:
    """The kernel without what no store to a `kept` buffer needs, directly or not; the same object if that is nothing.

    An access that is `checked` reports a fault, so it stays, and what it needs.
    """
    marks = _Marks()
    marks.collect(kernel.body, -1)
    for at, stmt in enumerate(marks.stmts):
        if (isinstance(stmt, Store) and not stmt.absorb and kept(stmt.buffer)) or _reports(stmt):
            marks.need(at)
    marks.run()
    if len(marks.needed) == len(marks.stmts) and marks.accs_complete():
        return kernel
    body, _ = marks.rebuild(kernel.body, 0)
    return replace(kernel, body=body)


def arrays(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    """The arrays that a kernel stores to, and those that it loads from (array accumulators too)."""
    try:
        found: tuple[frozenset[str], frozenset[str]] = kernel.kept
    except AttributeError:
        found = _arrays(kernel)
        object.__setattr__(kernel, "kept", found)
    return found


def _arrays(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    stores: set[str] = set()
    loads: set[str] = set()
    stack: list[Stmt] = list(kernel.body)
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Loop):
            stack.extend(stmt.body)
        elif isinstance(stmt, Store) and not stmt.absorb:
            stores.add(stmt.buffer)
        loads |= own(stmt).names.loads
    return frozenset(stores), frozenset(loads)


def _reports(stmt: Stmt) -> bool:
    """Whether the statement has a checked access."""
    if isinstance(stmt, Store) and any(m is not None and m.kind == "checked" for m in stmt.modes):
        return True
    return any(m is not None and m.kind == "checked" for load in own(stmt).loads for m in load.modes)


@dataclass
class _Marks:
    """Statements by number in textual order, what defines a name, and what is needed."""

    stmts: list[Stmt] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    stores: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    lets: dict[str, int] = field(default_factory=dict)
    accs: dict[str, tuple[int, Acc]] = field(default_factory=dict)
    needed: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    work: list[int] = field(default_factory=list)

    def collect(self, body: tuple[Stmt, ...], parent: int) -> None:
        for stmt in body:
            at = len(self.stmts)
            self.stmts.append(stmt)
            self.parents.append(parent)
            if isinstance(stmt, Let):
                self.lets[stmt.id] = at
            elif isinstance(stmt, Store):
                self.stores[stmt.buffer].append(at)
            else:
                self.accs |= {a.id: (at, a) for a in stmt.accs}
                self.collect(stmt.body, at)

    def need(self, at: int) -> None:
        """A statement is needed, and so are the loops around it."""
        while at >= 0 and at not in self.needed:
            self.needed.add(at)
            self.work.append(at)
            at = self.parents[at]

    def run(self) -> None:
        while self.work:
            stmt = self.stmts[self.work.pop()]
            if isinstance(stmt, Loop):
                for dim in stmt.dims:
                    for poly in (*dim.lo, *dim.hi, dim.step):
                        self._use(poly.names)
                if stmt.where is not None:
                    names = expr_names(stmt.where)
                    self._use(names.values)
                    self._use(names.loads)
                continue
            names = own(stmt).names
            self._use(names.values)
            self._use(names.loads)
            if isinstance(stmt, Store):
                self._use((stmt.buffer,))  # an array is stored whole or not at all

    def _use(self, names: frozenset[str] | tuple[str, ...]) -> None:
        for name in names:
            if name in self.names:
                continue
            self.names.add(name)
            if name in self.lets:
                self.need(self.lets[name])
            for at in self.stores.get(name, ()):
                self.need(at)
            if name in self.accs:
                at, acc = self.accs[name]
                self.need(at)
                for poly in acc.shape:
                    self._use(poly.names)
                if acc.repair is not None:
                    for node in subexprs(acc.repair):
                        if isinstance(node, Ref):
                            self._use((node.id.removesuffix(".old").removesuffix(".new"),))

    def accs_complete(self) -> bool:
        return self.accs.keys() <= self.names

    def rebuild(self, body: tuple[Stmt, ...], at: int) -> tuple[tuple[Stmt, ...], int]:
        """The needed statements of a block whose first has number `at`, and the number after its last."""
        made: list[Stmt] = []
        for stmt in body:
            here = at
            at += 1
            if not isinstance(stmt, Loop):
                if here in self.needed:
                    made.append(stmt)
                continue
            inside, at = self.rebuild(stmt.body, at)
            if here in self.needed:
                accs = tuple(a for a in stmt.accs if a.id in self.names)
                same = len(accs) == len(stmt.accs) and len(inside) == len(stmt.body)
                same = same and all(a is b for a, b in zip(inside, stmt.body, strict=True))
                made.append(stmt if same else replace(stmt, accs=accs, body=inside))
        return tuple(made), at
