"""What kind of fusion the joining of two kernels is, by the table of kinds in docs/fusion.md."""

from __future__ import annotations

from loopfuse.decisions import Kind
from loopfuse.ir import Kernel, Load, Loop, Op, Store
from loopfuse.ops import OPS
from loopfuse.passes.merge.accesses import Scope
from loopfuse.rewrite import expr_names, subexprs, walk


def contractions(kernel: Kernel) -> list[Loop]:
    """The folds that sum products of two loads whose indices differ, innermost ones only."""
    found = []
    for stmt in walk(kernel.body):
        if isinstance(stmt, Loop) and stmt.accs:
            own = {a.id for a in stmt.accs}
            if any(_product(s) for s in walk(stmt.body) if isinstance(s, Store) and s.buffer in own):
                found.append(stmt)
    return found


def _product(store: Store) -> bool:
    value = store.value
    while isinstance(value, Op) and value.op == "cast":
        value = value.args[0]
    if not store.absorb or not isinstance(value, Op) or OPS[value.op].arithmetic != "product":
        return False
    sides = []
    for arg in value.args:
        loads = [n for n in subexprs(arg) if isinstance(n, Load)]
        sides.append({name for n in loads for name in expr_names(*n.subs).values})
    return all(sides) and all(a - b for a, b in (sides, sides[::-1]))


def kind_of(a: Kernel, b: Kernel, scope: Scope) -> Kind:
    """The kind of a fusion of `a`, which comes first, with `b`."""
    stored = {n for s in a.body for n in scope.names(s)[0].stores}
    if stored.isdisjoint(n for s in b.body for n in scope.names(s)[0].loads):
        return "horizontal"
    before, after = contractions(a), contractions(b)
    folds = [any(isinstance(s, Loop) and s.accs for s in walk(k.body)) for k in (a, b)]
    if not any(folds):
        return "vertical"
    if before and not folds[1]:
        pair = len(before) > 1 and any(len(s.accs) > 1 for s in before)
        return "dual contraction" if pair else "epilogue"
    if folds == [True, True]:
        return "cascade" if _chained(a, scope) or _chained(b, scope) else "reduction"
    return "prologue" if after else "reduction"


def _chained(kernel: Kernel, scope: Scope) -> bool:
    """Whether a fold of the kernel is followed by a loop that needs what it found."""
    for stmt in walk(kernel.body):
        if isinstance(stmt, Loop):
            folds = [s for s in stmt.body if isinstance(s, Loop) and s.accs]
            loops = [s for s in stmt.body if isinstance(s, Loop)]
            if any(scope.needs(later, fold) for fold in folds for later in loops[loops.index(fold) + 1 :]):
                return True
    return False
