"""Sharing: from a nest of terms to statements, with a let for every value that is used more than once.

A let stands in the innermost block around all uses. Operations are total, so they may be evaluated where they are not
needed; a load may not. A term with a load that is only used lazily (in an arm of a `Select`, in the body of a fold) is
therefore shared only inside that arm or body; in an arm, which has no place for a let, small terms are repeated, and
large ones are named in the block around under the arm's condition. Expressions that grow too tall are cut by lets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from loopfuse.diag import CompilerError
from loopfuse.dtypes import BOOL
from loopfuse.frontend.regions import Block, Region, Write, meet
from loopfuse.frontend.terms import FALSE, Node
from loopfuse.ir import Const, Expr, Let, Loop, Op, Ref, Select, Stmt, Store
from loopfuse.rewrite import rebuild

# Expressions of more levels are cut.
TALLEST = 60
# Terms of at most this many nodes are repeated in lazy arms.
SMALL = 12

_VALUE, _BODY, _PATH = range(3)
_Task = tuple[Node, Region, int]
_Key = tuple[int, Region, int]


def emit(root: Block, fresh: Callable[[], str]) -> tuple[Stmt, ...]:
    """The statements of a unit; `fresh` gives the ids of lets."""
    lets = _Lets(root, fresh)
    if lets.plan():
        return lets.statements(root, lets.shared)
    return lets.statements(root, lambda n, region: n.expr)


class _Lets:
    """The decisions for one unit, and what has been emitted of it."""

    def __init__(self, root: Block, fresh: Callable[[], str]) -> None:
        self.root, self.fresh = root, fresh
        self.bodies: dict[Block, Region] = {}
        self.headers: dict[Block, Region] = {}
        self.seeds: list[tuple[Node, Region]] = []
        self.running = 0
        self.nodes: dict[int, Node] = {}
        self.degree: dict[int, int] = defaultdict(int)
        self.forced: set[int] = set()
        self.heavy: set[int] = set()
        self.arms: dict[tuple[int, Region, int], Region] = {}
        self.uses: dict[int, dict[Region, int]] = defaultdict(lambda: defaultdict(int))
        # Where the let stands that a use at a region refers to; and the uses in a block of lets of the blocks around.
        self.target: dict[tuple[int, Region], Region] = {}
        self.needs: dict[Block, list[tuple[Node, Region]]] = defaultdict(list)
        self.built: dict[_Key, Expr] = {}
        self.named: dict[tuple[int, Region], Ref] = {}
        self.out: dict[Block, list[Stmt]] = {}
        for block in _blocks(root):
            self._enter(block)

    def _enter(self, block: Block) -> None:
        around = None if block.parent is None else self.bodies[block.parent]
        region = self.bodies[block] = Region(around, block)
        self.running |= block.running
        if block.where is not None:
            header = self.headers[block] = Region(around, block, block)
            self.seeds.append((block.where, header))
        for item in block.items:
            if isinstance(item, Write):
                self.seeds.extend((n, region) for n in item.terms)

    # -- which terms become lets --------------------------------------------------------------------------------------

    def plan(self) -> bool:
        """Decide where lets stand; False where there are none."""
        stack = []
        for n, _ in self.seeds:
            self.degree[n.id] += 1
            stack.append(n)
        while stack:
            n = stack.pop()
            if n.id not in self.nodes:
                self.nodes[n.id] = n
                for a in n.args:
                    self.degree[a.id] += 1
                    stack.append(a)
        if all(n.height <= TALLEST and (n.plain or self.degree[i] == 1) for i, n in self.nodes.items()):
            return False
        order = sorted(self.nodes)
        self._mark(order)
        for n, region in self.seeds:
            self.uses[n.id][region] += 1
        for number in reversed(order):
            self._decide(self.nodes[number])
        return bool(self.target)

    def _mark(self, order: list[int]) -> None:
        """Find the terms at which tall expressions are cut, and those that hold what a lazy arm may have to name."""
        height: dict[int, int] = {}
        for number in order:
            n = self.nodes[number]
            levels = 1 + max((height[a.id] for a in n.args), default=0)
            if levels > TALLEST and not n.plain:
                self.forced.add(number)
                levels = 1
            height[number] = levels
            large = n.size > SMALL and self.degree[number] > 1
            if n.reads and (large or number in self.forced or any(a.id in self.heavy for a in n.args)):
                self.heavy.add(number)

    def _decide(self, n: Node) -> None:
        """Choose the lets of a term whose uses are all known, and pass its uses on to its operands."""
        uses = self.uses.pop(n.id)
        targets: dict[Region, None] = {}
        if not n.plain and not n.mask & self.running:
            movable = {r: c for r, c in uses.items() if r.header is None or not n.mask & r.header.mask}
            for group, target in self._groups(n, movable):
                targets[target] = None
                for r in group:
                    del uses[r]
                    self.target[n.id, r] = target
                    self._need(n, r, target)
        for region, count in (*((t, 1) for t in targets), *uses.items()):
            self._spread(n, region, min(count, 2))

    def _groups(self, n: Node, uses: dict[Region, int]) -> Iterator[tuple[dict[Region, int], Region]]:
        """Sets of uses that one let serves, with the region of the let."""
        forced = n.id in self.forced
        small = n.size <= SMALL and not forced
        pending = [uses]
        while pending:
            group = pending.pop()
            if not group or (not forced and sum(group.values()) < 2):
                continue
            common = meet(group)
            if not n.reads:
                yield group, self.bodies[common.block]
            elif common.header is None:
                if common in _certain(group) and (common.is_block or not small):
                    yield group, common
                elif common.is_block or not small:
                    parts: dict[Region, dict[Region, int]] = defaultdict(dict)
                    for r, count in group.items():
                        if r is not common:
                            parts[r.at_depth(common.depth + 1)][r] = count
                    pending.extend(p for part, p in parts.items() if part.is_block or not small)

    def _need(self, n: Node, use: Region, target: Region) -> None:
        """Note that the loop around a use, in the block of the let, comes after the let."""
        block = use.inside
        if block is target.block:
            return
        while block.parent is not None and block.parent is not target.block:
            block = block.parent
        self.needs[block].append((n, use))

    def _spread(self, n: Node, region: Region, count: int) -> None:
        for k, a in enumerate(n.args):
            self.uses[a.id][self._operand(n, region, k)] += count
        if n.lazy and any(a.id in self.heavy for a in n.args[1:]) and not n.args[0].plain:
            self.forced.add(n.args[0].id)

    def _operand(self, n: Node, region: Region, k: int) -> Region:
        """The region in which an operand is evaluated."""
        if k == 0 or not n.lazy:
            return region
        found = self.arms.get((n.id, region, k))
        if found is None:
            found = Region(region, region.inside, region.header, n.args[0], n.sense(k))
            self.arms[n.id, region, k] = found
        return found

    # -- statements ---------------------------------------------------------------------------------------------------

    def statements(self, block: Block, value: Callable[[Node, Region], Expr]) -> tuple[Stmt, ...]:
        """The body of a block."""
        out = self.out[block] = []
        region = self.bodies[block]
        for item in block.items:
            if isinstance(item, Write):
                subs = tuple(value(n, region) for n in item.subs)
                stored = value(item.value, region)
                at = None if item.at is None else value(item.at, region)
                modes = item.modes if any(item.modes) else ()
                out.append(Store(item.buffer, subs, stored, item.absorb, at, modes, span=item.span))
                continue
            for n, use in self.needs[item]:
                value(n, use)
            where = None if item.where is None else value(item.where, self.headers[item])
            body = self.statements(item, value)
            out.append(Loop(item.dims, body, item.order, item.accs, where, span=item.span))
        return tuple(out)

    def shared(self, n: Node, region: Region) -> Expr:
        """The expression of a term at a region; lets that it needs are emitted before."""
        stack: list[_Task] = [(n, region, _VALUE)]
        built = self.built
        while stack:
            task = stack[-1]
            m, at, kind = task
            key = (m.id, at, kind)
            if key in built:
                stack.pop()
                continue
            waiting = [t for t in self._before(*task) if (t[0].id, t[1], t[2]) not in built]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            built[key] = self._make(m, at, kind)
        return built[n.id, region, _VALUE]

    def _before(self, n: Node, region: Region, kind: int) -> Iterable[_Task]:
        """What must be built before a task."""
        if kind == _PATH:
            around = region.parent
            assert around is not None and region.cond is not None
            return ((region.cond, around, _VALUE), *self._path(around))
        if kind == _VALUE:
            target = self.target.get((n.id, region))
            if target is not None:
                return () if (n.id, target) in self.named else ((n, target, _BODY), *self._path(target))
        return ((a, self._operand(n, region, k), _VALUE) for k, a in enumerate(n.args))

    def _path(self, region: Region) -> tuple[_Task, ...]:
        return () if region.cond is None else ((region.cond, region, _PATH),)

    def _make(self, n: Node, region: Region, kind: int) -> Expr:
        if kind == _PATH:
            return self._condition(region)
        if kind == _VALUE:
            target = self.target.get((n.id, region))
            if target is not None:
                return self._named(n, target)
        return rebuild(
            n.expr, tuple(self.built[a.id, self._operand(n, region, k), _VALUE] for k, a in enumerate(n.args))
        )

    def _named(self, n: Node, target: Region) -> Ref:
        """The let of a term, emitted where it is not yet."""
        found = self.named.get((n.id, target))
        if found is None:
            value = self.built[n.id, target, _BODY]
            if target.cond is not None:
                path = self.built[target.cond.id, target, _PATH]
                value = Select(path, value, Const(0, value.dtype), span=value.span)
            found = self.named[n.id, target] = self._let(value, target)
        return found

    def _condition(self, region: Region) -> Expr:
        """The condition under which a lazy operand is read; false wherever the regions around are not evaluated."""
        cond, around = region.cond, region.parent
        assert cond is not None and around is not None
        value = self.built[cond.id, around, _VALUE]
        false_outside = around.is_block or self.target.get((cond.id, around)) is around
        if not region.sense:
            value = Op("not", (value,), BOOL, span=value.span)
            false_outside = around.is_block
        if not false_outside and around.cond is not None:
            value = Select(self.built[around.cond.id, around, _PATH], value, FALSE, span=value.span)
        return value if isinstance(value, Ref | Const) else self._let(value, region)

    def _let(self, value: Expr, region: Region) -> Ref:
        name = self.fresh()
        out = self.out.get(region.block)
        if out is None:
            raise CompilerError("lower", f"the let `{name}` is needed before its block")
        out.append(Let(name, value, span=value.span))
        return Ref(name, value.dtype, span=value.span)


def _blocks(root: Block) -> Iterator[Block]:
    """All blocks, outer ones first."""
    stack = [root]
    while stack:
        block = stack.pop()
        yield block
        stack.extend(item for item in reversed(block.items) if isinstance(item, Block))


def _certain(group: Iterable[Region]) -> set[Region]:
    """The regions whose evaluation is sure to evaluate one of the uses: those of the uses, and those of which two lazy
    operands, under one condition and its opposite, both are."""
    found = set(group)
    pending = list(found)
    senses: dict[tuple[Region, int], set[bool]] = defaultdict(set)
    while pending:
        region = pending.pop()
        around = region.parent
        if region.cond is None or around is None or around in found:
            continue
        met = senses[around, region.cond.id]
        met.add(region.sense)
        if len(met) == 2:
            found.add(around)
            pending.append(around)
    return found
