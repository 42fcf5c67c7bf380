"""What kind of fusion the joining of two kernels is, by the table of kinds in docs/fusion.md."""

from __future__ import annotations

from loopfuse.decisions import Kind
from loopfuse.ir import Kernel, Load, Loop, Op, Store
from loopfuse.passes.merge.accesses import Scope
from loopfuse.rewrite import expr_names, subexprs, walk


def contractions(kernel: Kernel) -> list[Loop]:
    """The folds that sum products of two loads whose indices differ."""
    found = []
    for stmt in walk(kernel.body):
        if isinstance(stmt, Loop) and stmt.accs and any(_product(s) for s in walk(stmt.body) if isinstance(s, Store)):
            found.append(stmt)
    return found


def _product(store: Store) -> bool:
    value = store.value
    while isinstance(value, Op) and value.op == "cast":
        value = value.args[0]
    if not store.absorb or not isinstance(value, Op) or value.op != "mul":
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
    if before:
        return "dual contraction" if len(before) > 1 and not folds[1] else "epilogue"
    if after:
        return "prologue"
    return "reduction" if any(folds) else "vertical"
