"""Equal nests: two temporaries with one definition become one.

A nest is a kernel, or a statement in the body of a `seq` loop, that wholly defines one buffer. Nests are numbered in
order: each gets the key of its statements in which buffers count by the class of equal buffers that they belong to, so
that nests which become equal by an earlier merge are found in the same walk.

Merging is worth it when computing twice is dearer than a load: the nest folds or runs in order, uses a special
function, or has at least `DEAR` operations; or when some nest reads both. Else a cheap one stays double, since a merged
buffer may have to be kept in memory where two copies vanish into their readers; but its copies count as equal, and one
that loses its readers goes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loopfuse.analysis.hashing import Key, Keys, mix
from loopfuse.diag import Span
from loopfuse.ir import Affine, Buffer, Dim, Kernel, Load, Loop, Mode, Op, Program, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.passes.base import Remark, Steps
from loopfuse.rewrite import Fresh, Mapper, own, walk
from loopfuse.sizes import ZERO, Poly

DEAR = 4


@dataclass(eq=False)
class Nest:
    """Statements that define `target`; `block` is the body in which they stand, a kernel being a block of its own."""

    body: tuple[Stmt, ...]
    kernel: Kernel
    around: tuple[Loop, ...]
    target: str | None
    loads: frozenset[str]
    span: Span | None

    @property
    def whole(self) -> bool:
        """Whether it is a kernel."""
        return not self.around


@dataclass
class _Merger:
    program: Program
    steps: Steps
    remarks: list[Remark] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    survivors: dict[str, str] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    copies: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.buffers = {b.id: b for b in self.program.buffers}
        self.named = {w for d in self.program.directives for w in re.findall(r"[\w.]+", d.text)}
        self.nests = [n for k in self.program.kernels for n in _nests(k)]
        self.readers: dict[str, set[int]] = {}
        for number, nest in enumerate(self.nests):
            for b in nest.loads:
                self.readers.setdefault(b, set()).add(number)
        self.writers = Counter(id for n in self.nests for id in _stores(n.body))

    def find(self) -> None:
        """Look at every nest, and merge it with an earlier one where they are equal."""
        seen: dict[tuple[int, Key], str] = {}
        for nest in self.nests:
            if not self._eligible(nest):
                continue
            assert nest.target is not None
            key = (id(nest.around[-1]) if nest.around else 0, self._key(nest))
            first = seen.setdefault(key, nest.target)
            if first != nest.target:
                self._equal(self._survivor(first), self.classes.get(first, first), nest)

    def _eligible(self, nest: Nest) -> bool:
        """Whether it wholly defines one buffer and has no effect but that."""
        b = self.buffers.get(nest.target or "")
        if b is None or b.role not in ("temp", "out") or b.scope != "device" or self.writers[b.id] != 1:
            return False
        return not any(_checked(modes) for modes in _modes(nest.body))

    def _key(self, nest: Nest) -> Key:
        assert nest.target is not None
        keys = Keys({**self.classes, nest.target: "its target"}, through=True)
        for loop in nest.around:
            keys.enter(loop)
        b = self.buffers[nest.target]
        return mix(f"nest {b.dtype}", *(keys.poly(p) for p in b.shape), keys.body(nest.body))

    def _equal(self, first: str, name: str, nest: Nest) -> None:
        """The buffer of a nest equals the `first` that is kept so far, of the class `name`."""
        assert nest.target is not None
        a, b = self.buffers[first], self.buffers[nest.target]
        readers, other = (self.readers.setdefault(x.id, set()) for x in (a, b))
        if not _dear(nest.body) and readers.isdisjoint(other):
            self.classes[b.id] = name
            return
        keep_a, keep_b = (x.role == "out" or x.id in self.named for x in (a, b))
        kept, gone = (b, a) if keep_b and not keep_a else (a, b)
        if keep_a and keep_b:
            if not (nest.whole and _folds(nest.body) and self._take(a, b)):
                return
            self.copies[id(nest)] = a.id
        else:
            if kept.window not in (None, gone.window) or not self._take(a, b):
                return
            self.dropped.add(id(nest))
            self.readers[kept.id] = readers | other
            self.survivors[gone.id] = kept.id
            self.buffers[kept.id] = _known(kept, gone)
        self.classes[b.id] = name
        self.remarks.append(Remark(f"`{b.id}` is the same as `{a.id}`, and is computed once", nest.span))

    def _take(self, a: Buffer, b: Buffer) -> bool:
        return self.steps.take(f"compute `{a.id}` and `{b.id}` once")

    # -- the new program ----------------------------------------------------------------------------------------------

    def result(self) -> Program:
        """The program without the nests that are not needed."""
        if not self.dropped and not self.copies:
            return self.program
        names = {b: self._survivor(b) for b in self.survivors if self._survivor(b) != b}
        self._unread(names)
        gone = names.keys() | {n.target for n in self.nests if id(n) in self.dropped} - set(names.values())
        rename = Mapper(lambda e: replace(e, buffer=names[e.buffer]) if isinstance(e, Load) and e.buffer in names else e,
                        stmt=lambda s: replace(s, buffer=names[s.buffer])
                        if isinstance(s, Store) and s.buffer in names else s)  # fmt: skip
        fresh = Fresh(self.program)
        by_kernel: dict[str, list[Nest]] = {}
        for nest in self.nests:
            by_kernel.setdefault(nest.kernel.id, []).append(nest)
        kernels = []
        for kernel in self.program.kernels:
            made = self._kernel(kernel, by_kernel[kernel.id], fresh)
            if made is not None:
                kernels.append(rename.on_kernel(made))
        buffers = tuple(self.buffers[b.id] for b in self.program.buffers if b.id not in gone)
        return replace(self.program, buffers=buffers, kernels=tuple(kernels))

    def _survivor(self, name: str) -> str:
        while (found := self.survivors.get(name, name)) != name:
            name = found
        return name

    def _unread(self, names: dict[str, str]) -> None:
        """Drop also the temporaries whose last reader was dropped."""
        readers: Counter[str] = Counter()
        for nest in self.nests:
            if id(nest) not in self.dropped and id(nest) not in self.copies:
                readers.update({names.get(b, b) for b in nest.loads if b != nest.target})
        readers.update(self.copies.values())
        lost = {b for n in self.nests if id(n) in self.dropped or id(n) in self.copies for b in n.loads}
        for nest in reversed(self.nests):
            b = nest.target
            kept = self.buffers.get(names.get(b or "", b or ""))  # what the nest writes once all names are replaced
            if id(nest) in self.dropped or b is None or b not in lost or kept is None or readers[kept.id]:
                continue
            if kept.role == "temp" and not {b, kept.id} & self.named and self._eligible(nest):
                self.dropped.add(id(nest))
                lost |= nest.loads
                readers.subtract({names.get(c, c) for c in nest.loads if c != b})

    def _kernel(self, kernel: Kernel, nests: list[Nest], fresh: Fresh) -> Kernel | None:
        """The kernel without what is dropped; None where nothing is left."""
        if len(nests) == 1 and nests[0].whole:
            nest = nests[0]
            if id(nest) in self.copies:
                assert nest.target is not None
                return replace(kernel, body=_copy(self.buffers[nest.target], self.copies[id(nest)], fresh))
            return None if id(nest) in self.dropped else kernel
        gone = {id(n.body[0]) for n in nests if id(n) in self.dropped}
        if not gone:
            return kernel
        body = _without(kernel.body, gone)
        return replace(kernel, body=body) if body else None


def merge_nests(program: Program, steps: Steps) -> tuple[Program, list[Remark]]:
    """The program in which equal nests are merged, and what to say of it; the same object where none are equal."""
    merger = _Merger(program, steps)
    merger.find()
    return merger.result(), merger.remarks


def _nests(kernel: Kernel) -> Iterator[Nest]:
    """The nests of a kernel: itself, or the statements in the bodies of its `seq` loops."""
    loops = [s for s in walk(kernel.body) if isinstance(s, Loop) and s.order == "seq"]
    if not loops:
        yield _nest(kernel.body, kernel, ())
        return
    stack: list[tuple[tuple[Stmt, ...], tuple[Loop, ...]]] = [(kernel.body, ())]
    while stack:
        body, around = stack.pop()
        inner = bool(around) and around[-1].order == "seq"
        deeper = []
        for stmt in body:
            holds = isinstance(stmt, Loop) and any(isinstance(s, Loop) and s.order == "seq" for s in walk((stmt,)))
            if isinstance(stmt, Loop) and holds:
                deeper.append((stmt.body, (*around, stmt)))
            else:
                nest = _nest((stmt,), kernel, around or (_NOWHERE,))
                yield nest if inner and isinstance(stmt, Loop) else _apart(nest)
        stack += deeper[::-1]


_NOWHERE = Loop((), ())


def _apart(nest: Nest) -> Nest:
    """The nest as one that is never merged."""
    return replace(nest, target=None)


def _nest(body: tuple[Stmt, ...], kernel: Kernel, around: tuple[Loop, ...]) -> Nest:
    stores = set(_stores(body))
    loads = frozenset().union(*(own(s).names.loads for s in walk(body)))
    target = min(stores) if len(stores) == 1 else None
    return Nest(body, kernel, around, target, loads, body[-1].span if body else kernel.span)


def _stores(body: tuple[Stmt, ...]) -> list[str]:
    return [s.buffer for s in walk(body) if isinstance(s, Store) and not s.absorb]


def _modes(body: tuple[Stmt, ...]) -> Iterator[tuple[Mode | None, ...]]:
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt.modes
        yield from (node.modes for node in own(stmt).nodes if isinstance(node, Load))


def _checked(modes: tuple[Mode | None, ...]) -> bool:
    return any(mode is not None and mode.kind == "checked" for mode in modes)


def _folds(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Loop) and (s.accs or s.order != "par") for s in walk(body))


def _dear(body: tuple[Stmt, ...]) -> bool:
    """Whether computing again costs more than a load."""
    if _folds(body):
        return True
    rows = [OPS[n.op] for s in walk(body) for n in own(s).nodes if isinstance(n, Op)]
    return any(row.special for row in rows) or sum(row.flops for row in rows) >= DEAR


def _known(kept: Buffer, gone: Buffer) -> Buffer:
    """The buffer that stays, with what is known of the elements of either."""
    if gone.range is None or gone.range == kept.range:
        return kept
    if kept.range is None:
        return replace(kept, range=gone.range)
    low, high = (tuple(dict.fromkeys((*a, *b))) for a, b in zip(kept.range, gone.range, strict=True))
    return replace(kept, range=(low, high))


def _copy(target: Buffer, source: str, fresh: Fresh) -> tuple[Stmt, ...]:
    """A nest that copies a whole buffer."""
    dims = tuple(Dim(fresh("i"), (ZERO,), (extent,)) for extent in target.shape)
    subs = tuple(Affine(Poly.of(d.id)) for d in dims)
    value = Load(source, subs, (None,) * len(subs), target.dtype, span=target.span)
    store = Store(target.id, subs, value, span=target.span)
    return (Loop(dims, (store,), span=target.span),) if dims else (store,)


def _without(body: tuple[Stmt, ...], gone: set[int]) -> tuple[Stmt, ...]:
    """The statements without some, and without loops that this leaves empty."""
    found: list[Stmt] = []
    for stmt in body:
        if id(stmt) in gone:
            continue
        if isinstance(stmt, Loop):
            inner = _without(stmt.body, gone)
            if inner or not stmt.body:
                found.append(stmt if inner == stmt.body else replace(stmt, body=inner))
        else:
            found.append(stmt)
    return tuple(found)
