"""Sharing: from a nest of terms to statements, with a let for every value that is used more than once.

A let stands in the innermost block around all uses. Operations are total, so they may be evaluated where they are not
needed; a load may not. A term with a load that is only used lazily (in an arm of a `Select`, in the body of a fold) is
therefore shared only inside that arm or body. In an arm, which has no place for a let, small terms are repeated. Large
ones are named in the block around, and there their loads have modes that make them total: what they yield outside the
array is never used. Expressions that grow too tall are cut by lets, in the same way.

A load whose mode is `checked` is never made total, for that would hide a fault; terms with such loads are repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from loopfuse.frontend.lifting import plainly
from loopfuse.frontend.regions import Block, Region, Write, meet
from loopfuse.frontend.terms import Node
from loopfuse.ir import Affine, Buffer, Const, Expr, Let, Load, Loop, Mode, Ref, Stmt, Store
from loopfuse.rewrite import rebuild
from loopfuse.sizes import ZERO

# Expressions of more levels are cut.
TALLEST = 60
# Terms of at most this many nodes are repeated in lazy arms.
SMALL = 12

# A term at a region; with False its let is built, with True its expression.
_Task = tuple[Node, Region, bool]


def emit(root: Block, fresh: Callable[[], str], buffers: Mapping[str, Buffer]) -> tuple[Stmt, ...]:
    """The statements of a unit; `fresh` gives the ids of lets."""
    lets = _Lets(root, fresh, buffers)
    if lets.plan():
        return lets.statements(root, lets.shared)
    return lets.statements(root, lambda n, region: n.expr)


class _Lets:
    """The decisions for one unit, and what has been emitted of it."""

    def __init__(self, root: Block, fresh: Callable[[], str], buffers: Mapping[str, Buffer]) -> None:
        self.root, self.fresh, self.buffers = root, fresh, buffers
        self.bodies: dict[Block, Region] = {}
        self.headers: dict[Block, Region] = {}
        self.totals: dict[Block, Region] = {}
        self.seeds: list[tuple[Node, Region]] = []
        self.running = 0
        self.nodes: dict[int, Node] = {}
        self.forced: set[int] = set()
        self.arms: dict[tuple[int, Region, int], Region] = {}
        self.uses: dict[int, dict[Region, int]] = {}
        # Where the let stands that a use at a region refers to; and the uses in a block of lets of the blocks around.
        self.target: dict[tuple[int, Region], Region] = {}
        self.needs: dict[Block, list[tuple[Node, Region]]] = {}
        # The terms that are lets or hold one.
        self.changed: set[int] = set()
        self.built: dict[tuple[int, Region, bool], Expr] = {}
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
        nodes, twice, stack = self.nodes, False, [n for n, _ in self.seeds]
        for n in stack:
            twice |= n.id in nodes and not n.plain
            nodes[n.id] = n
        stack = list(nodes.values())
        while stack:
            for a in stack.pop().args:
                if a.id not in nodes:
                    nodes[a.id] = a
                    stack.append(a)
                elif not a.plain:
                    twice = True
        if not twice and all(n.height <= TALLEST for n, _ in self.seeds):
            return False
        order = sorted(nodes)
        self._cut(order)
        for n, region in self.seeds:
            self._use(n, region, 1)
        for number in reversed(order):
            self._decide(nodes[number])
        for number in order:
            n = nodes[number]
            if any(a.id in self.changed for a in n.args):
                self.changed.add(number)
        return bool(self.target)

    def _cut(self, order: list[int]) -> None:
        """Find the terms at which tall expressions are cut."""
        if all(n.height <= TALLEST for n, _ in self.seeds):
            return
        height: dict[int, int] = {}
        for number in order:
            n = self.nodes[number]
            levels = 1 + max((height[a.id] for a in n.args), default=0)
            if levels > TALLEST and not n.plain:
                self.forced.add(number)
                levels = 1
            height[number] = levels

    def _use(self, n: Node, region: Region, count: int) -> None:
        uses = self.uses.get(n.id)
        if uses is None:
            self.uses[n.id] = {region: count}
        else:
            uses[region] = uses.get(region, 0) + count

    def _decide(self, n: Node) -> None:
        """Choose the lets of a term whose uses are all known, and pass its uses on to its operands."""
        uses = self.uses.pop(n.id)
        if (
            not n.plain
            and not n.mask & self.running
            and (len(uses) > 1 or n.id in self.forced or max(uses.values()) > 1)
        ):
            movable = {r: c for r, c in uses.items() if r.header is None or not n.mask & r.header.mask}
            targets: dict[Region, None] = {}
            for group, target in self._groups(n, movable):
                targets[target] = None
                for r in group:
                    del uses[r]
                    self.target[n.id, r] = target
                    self._need(n, r, target)
            for target in targets:
                self.changed.add(n.id)
                self._spread(n, target, 1)
        for region, count in uses.items():
            self._spread(n, region, min(count, 2))

    def _groups(self, n: Node, uses: dict[Region, int]) -> Iterator[tuple[Iterable[Region], Region]]:
        """Sets of uses that one let serves, with the region of the let."""
        forced = n.id in self.forced
        pending = [uses]
        while pending:
            group = pending.pop()
            if not group or (not forced and sum(group.values()) < 2):
                continue
            common = meet(group)
            if not n.reads:
                yield group, self.bodies[common.block]
            elif common.is_block and common in _certain(group):
                yield group, common
            else:
                inner: dict[Region, dict[Region, int]] = defaultdict(dict)
                lazy: dict[Region, int] = {}
                for r, count in group.items():
                    if r.inside is not common.inside and r.header is None:
                        inner[r.at_depth(common.depth + 1)][r] = count
                    elif r.header is None:
                        lazy[r] = count
                pending.extend(inner.values())
                large = n.size > SMALL and sum(lazy.values()) > 1
                if lazy and (large or forced) and not n.checked:
                    yield lazy, self._total(common.inside)

    def _total(self, block: Block) -> Region:
        """The region of a block in which loads are total."""
        found = self.totals.get(block)
        if found is None:
            found = self.totals[block] = Region(self.bodies[block], block, total=True)
        return found

    def _need(self, n: Node, use: Region, target: Region) -> None:
        """Note that the loop around a use, in the block of the let, comes after the let."""
        block = use.inside
        if block is target.block:
            return
        while block.parent is not None and block.parent is not target.block:
            block = block.parent
        self.needs.setdefault(block, []).append((n, use))

    def _spread(self, n: Node, region: Region, count: int) -> None:
        if n.lazy:
            for k, a in enumerate(n.args):
                self._use(a, self._operand(n, region, k), count)
        else:
            for a in n.args:
                self._use(a, region, count)

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
                subs = tuple([value(n, region) for n in item.subs])
                stored = value(item.value, region)
                if item.let:
                    out.append(Let(item.buffer, stored, span=item.span))
                    continue
                at = None if item.at is None else value(item.at, region)
                modes = item.modes if any(item.modes) else ()
                out.append(Store(item.buffer, subs, stored, item.absorb, at, modes, span=item.span))
                continue
            for n, use in self.needs.get(item, ()):
                value(n, use)
            where = None if item.where is None else value(item.where, self.headers[item])
            body = self.statements(item, value)
            out.append(Loop(item.dims, body, item.order, item.accs, where, span=item.span))
        return tuple(out)

    def shared(self, n: Node, region: Region) -> Expr:
        """The expression of a term at a region; lets that it needs are emitted before."""
        if n.id not in self.changed:
            return n.expr
        built = self.built
        stack: list[_Task] = [(n, region, False)]
        while stack:
            m, at, whole = stack[-1]
            key = (m.id, at, whole)
            if key in built:
                stack.pop()
                continue
            target = None if whole else self.target.get((m.id, at))
            waiting: list[_Task] = []
            if target is None:
                waiting = [t for t in self._operands(m, at) if (t[0].id, t[1], False) not in built]
            elif (m.id, target) not in self.named and (m.id, target, True) not in built:
                waiting = [(m, target, True)]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            built[key] = self._expr(m, at) if target is None else self._name(m, target)
        return built[n.id, region, False]

    def _operands(self, n: Node, region: Region) -> list[_Task]:
        """The operands that are not as they were."""
        return [
            (a, self._operand(n, region, k), False)
            for k, a in enumerate(n.args)
            if a.id in self.changed or (region.total and a.reads)
        ]

    def _expr(self, n: Node, region: Region) -> Expr:
        """The expression of a term whose operands are built."""
        made = n.expr
        if n.id in self.changed or (region.total and n.reads):
            operands = [
                self.built.get((a.id, self._operand(n, region, k), False), a.expr) for k, a in enumerate(n.args)
            ]
            made = rebuild(n.expr, tuple(operands))
        return self._made_total(made, region) if region.total and isinstance(made, Load) else made

    def _name(self, n: Node, target: Region) -> Ref:
        """The let of a term, emitted where it is not yet."""
        found = self.named.get((n.id, target))
        if found is None:
            value, id = self.built[n.id, target, True], self.fresh()
            self.out[target.block].append(Let(id, value, span=value.span))
            found = self.named[n.id, target] = Ref(id, value.dtype, span=value.span)
        return found

    def _made_total(self, load: Load, region: Region) -> Load:
        """A load that reads zero outside. Axes that a window moves along are left: their subscripts are the trips."""
        held = self.buffers.get(load.buffer)
        if held is None:
            return load
        known = {d.id: d for block in (self.root, *region.block.chain()) for d in block.dims}
        fill = Mode("constant", Const(0, load.dtype))
        modes = list(load.modes)
        for k, (sub, extent) in enumerate(zip(load.subs, held.shape, strict=True)):
            moves = held.window is not None and held.window[k] != ((ZERO,), (extent,))
            safe = isinstance(sub, Affine) and plainly(known, sub.poly, extent)
            if modes[k] is None and not moves and not safe:
                modes[k] = fill
        return Load(load.buffer, load.subs, tuple(modes), load.dtype, span=load.span)


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
