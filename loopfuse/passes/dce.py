"""Dead code: what no output needs.

Needs any valid program. A computation stays if an output depends on it, however far, or if it may report a fault (a
`checked` access). Everything else goes: stores, temporaries, lets, accumulators, loops, kernels. Inputs stay declared,
since they are the program's signature; a remark says which are not used. A recurrence that only feeds itself goes;
one of which a part is read stays whole, since every element of a buffer is written. Keeps every bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loopfuse.ir import Acc, Buffer, Kernel, Let, Load, Loop, Program, Stmt, Store
from loopfuse.passes.base import Options, Outcome, Pass, Remark, steps
from loopfuse.rewrite import expr_names, exprs, own, polys


def dce(program: Program, options: Options) -> Outcome:
    """The pass. A step is a name that goes, with all that computes it."""
    taken = steps(options, "dce")
    uses = _uses(program)
    live = uses.reach(uses.roots)
    kept = set(live)
    for name in uses.order:
        if name not in kept and not taken.take(f"nothing needs `{name}`"):
            kept |= uses.reach({name})
    after = _swept(program, uses, kept)
    idle = [b for b in program.buffers if b.role in ("in", "param") and b.id not in live]
    remarks = tuple(
        Remark(f"the {'param' if b.role == 'param' else 'input'} `{b.id}` is not used", b.span) for b in idle
    )
    return Outcome(after, remarks)


PASS = Pass("dce", "Remove what no output needs.", dce)


@dataclass
class _Uses:
    """Which names each name needs. `order`: the names that statements compute, and temporaries, in textual order.

    A statement computes the name that it defines; the stores to a buffer together compute it. `roots` are needed
    whatever becomes of the rest; `fixed` are the statements that may report a fault.
    """

    needs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    roots: set[str] = field(default_factory=set)
    order: dict[str, None] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)

    def reach(self, names: set[str]) -> set[str]:
        """The names, and what they need, and so on."""
        found, waiting = set(names), list(names)
        while waiting:
            for name in self.needs.get(waiting.pop(), ()):
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return found


def _uses(program: Program) -> _Uses:
    uses = _Uses()
    uses.roots |= {b.id for b in program.buffers if b.role == "out"}
    for r in program.requires:
        uses.roots |= expr_names(r.cond).all
    for b in program.buffers:
        if b.role in ("temp", "frozen"):
            uses.order[b.id] = None
    for kernel in program.kernels:
        _collect(kernel, uses)
    return uses


def _collect(kernel: Kernel, uses: _Uses) -> None:
    """What the statements of a kernel need; those around a statement are needed by it."""
    stack: list[tuple[Iterator[Stmt], set[str]]] = [(iter(kernel.body), set())]
    while stack:
        rest, around = stack[-1]
        stmt = next(rest, None)
        if stmt is None:
            stack.pop()
            continue
        mine = _mentioned(stmt) | around
        if isinstance(stmt, Loop):
            for acc in stmt.accs:
                uses.order[acc.id] = None
                uses.needs[acc.id] |= mine | _repair_needs(acc)
            stack.append((iter(stmt.body), mine))
        else:
            name = stmt.id if isinstance(stmt, Let) else stmt.buffer
            uses.order[name] = None
            uses.needs[name] |= mine
        if _may_fault(stmt):
            uses.fixed.add(id(stmt))
            uses.roots |= mine
            if not isinstance(stmt, Loop):
                uses.roots.add(stmt.id if isinstance(stmt, Let) else stmt.buffer)


def _mentioned(stmt: Stmt) -> set[str]:
    """The names in a statement's own expressions and bounds; of a loop, without the repairs."""
    found: set[str] = set().union(*(p.names for p in polys(stmt)))
    roots = [r for r in (stmt.where,) if r is not None] if isinstance(stmt, Loop) else list(exprs(stmt))
    return found | expr_names(*roots).all


def _repair_needs(acc: Acc) -> set[str]:
    """The accumulators that a repair looks at."""
    names = expr_names(acc.repair).all if acc.repair is not None else frozenset[str]()
    return {n.removesuffix(".old").removesuffix(".new") for n in names} | set(names)


def _may_fault(stmt: Stmt) -> bool:
    """Whether an access of the statement itself reports a fault where it goes outside."""
    modes = list(stmt.modes) if isinstance(stmt, Store) else []
    for node in own(stmt).nodes:
        if isinstance(node, Load):
            modes += node.modes
    return any(m is not None and m.kind == "checked" for m in modes)


# -- removing ---------------------------------------------------------------------------------------------------------


def _swept(program: Program, uses: _Uses, kept: set[str]) -> Program:
    """The program with only what computes a kept name; the same object where that is all."""
    kernels = tuple(k for k in (_kernel(k, uses, kept) for k in program.kernels) if k.body)
    buffers = tuple(b for b in program.buffers if _stays(b, kept))
    if len(buffers) == len(program.buffers) and len(kernels) == len(program.kernels):
        buffers = program.buffers
        if all(a is b for a, b in zip(kernels, program.kernels, strict=True)):
            return program
    return replace(program, buffers=buffers, kernels=kernels)


def _stays(buffer: Buffer, kept: set[str]) -> bool:
    return buffer.role not in ("temp", "frozen") or buffer.id in kept


def _kernel(kernel: Kernel, uses: _Uses, kept: set[str]) -> Kernel:
    root: list[Stmt] = []
    stack: list[tuple[Loop | None, Iterator[Stmt], list[Stmt]]] = [(None, iter(kernel.body), root)]
    while True:
        loop, rest, made = stack[-1]
        stmt = next(rest, None)
        if isinstance(stmt, Loop):
            stack.append((stmt, iter(stmt.body), []))
        elif stmt is not None:
            name = stmt.id if isinstance(stmt, Let) else stmt.buffer
            if name in kept or id(stmt) in uses.fixed:
                made.append(stmt)
        elif loop is not None:
            stack.pop()
            stack[-1][2].extend(_loop(loop, made, uses, kept))
        else:
            same = len(made) == len(kernel.body) and all(a is b for a, b in zip(made, kernel.body, strict=True))
            return kernel if same else replace(kernel, body=tuple(made))


def _loop(loop: Loop, made: list[Stmt], uses: _Uses, kept: set[str]) -> list[Stmt]:
    """A loop with what is left of its body, or nothing."""
    accs = tuple(a for a in loop.accs if a.id in kept)
    if not made and not accs and id(loop) not in uses.fixed:
        return []
    same = len(accs) == len(loop.accs) and len(made) == len(loop.body)
    if same and all(a is b for a, b in zip(made, loop.body, strict=True)):
        return [loop]
    return [replace(loop, accs=accs, body=tuple(made))]
