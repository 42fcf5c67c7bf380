"""Small changes to loop IR, most of which make it invalid: what the verifier must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from loopfuse.ir import Affine, Dim, Expr, Load, Loop, Program, Select, Stmt, Store
from loopfuse.rewrite import Mapper, exprs, subexprs, walk_program
from loopfuse.sizes import Poly

Draw = Callable[[st.SearchStrategy[Any]], Any]


def _pick(draw: Draw, items: list[Any]) -> Any:
    return items[draw(st.integers(0, len(items) - 1))] if items else None


def _map_stmt(program: Program, target: Stmt, change: Callable[[Any], Stmt | tuple[Stmt, ...]]) -> Program:
    """Change one statement, known by where it stands."""
    position = next(k for k, s in enumerate(_post_order(program)) if s is target)
    count = iter(range(1 << 30))

    def visit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        return change(stmt) if next(count) == position else stmt

    return Mapper(stmt=visit).on_program(program)


def _post_order(program: Program) -> list[Stmt]:
    """The statements in the order in which a mapper visits them."""
    found: list[Stmt] = []
    Mapper(stmt=lambda s: found.append(s) or s).on_program(program)  # type: ignore[func-returns-value]
    return found


def _subscript(draw: Draw, program: Program) -> Program:
    """Another subscript in a load or store."""
    names = sorted({d.id for s in walk_program(program) if isinstance(s, Loop) for d in s.dims})
    stmts = [s for s in walk_program(program) if isinstance(s, Store) and s.subs and isinstance(s.subs[0], Affine)]
    loads = [n for s in walk_program(program) for n in subexprs(*exprs(s)) if isinstance(n, Load) and n.subs]
    change = draw(st.sampled_from([Poly.of(1), Poly.of(-1), *(Poly.of(n) for n in names)]))

    def other(subs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        axis = draw(st.integers(0, len(subs) - 1))
        sub = subs[axis]
        old = sub.poly if isinstance(sub, Affine) else Poly.of(0)
        new = Affine(old + change if change.is_const else change)
        return (*subs[:axis], new, *subs[axis + 1 :])

    if draw(st.booleans()) or not loads:
        store = _pick(draw, stmts)
        return program if store is None else _map_stmt(program, store, lambda s: replace(s, subs=other(s.subs)))
    load = _pick(draw, loads)
    return Mapper(lambda e: replace(e, subs=other(e.subs)) if e is load else e).on_program(program)


def _swap(draw: Draw, program: Program) -> Program:
    """Two neighbouring statements or kernels the other way round."""
    loops = [s for s in walk_program(program) if isinstance(s, Loop) and len(s.body) > 1]
    if loops and draw(st.booleans()):
        loop = _pick(draw, loops)
        at = draw(st.integers(0, len(loop.body) - 2))
        return _map_stmt(
            program, loop, lambda s: replace(s, body=(*s.body[:at], s.body[at + 1], s.body[at], *s.body[at + 2 :]))
        )
    number = draw(st.integers(0, len(program.kernels) - 1))
    kernel = program.kernels[number]
    if len(kernel.body) > 1:
        at = draw(st.integers(0, len(kernel.body) - 2))
        body = (*kernel.body[:at], kernel.body[at + 1], kernel.body[at], *kernel.body[at + 2 :])
        kernels = [replace(k, body=body) if k is kernel else k for k in program.kernels]
    else:
        kernels = [*program.kernels[1:], program.kernels[0]]
    return replace(program, kernels=tuple(kernels))


def _order(draw: Draw, program: Program) -> Program:
    """A loop of another order."""
    loop = _pick(draw, [s for s in walk_program(program) if isinstance(s, Loop) and not s.accs])
    if loop is None:
        return program
    return _map_stmt(program, loop, lambda s: replace(s, order="par" if s.order == "seq" else "seq"))


def _bounds(draw: Draw, program: Program) -> Program:
    """A loop that starts earlier, or ends later or sooner."""
    loop = _pick(draw, [s for s in walk_program(program) if isinstance(s, Loop)])
    if loop is None:
        return program
    low, high = draw(st.sampled_from([(-1, 0), (0, 1), (0, -1), (1, 0)]))

    def moved(d: Dim) -> Dim:
        return replace(d, lo=tuple(p + low for p in d.lo), hi=tuple(p + high for p in d.hi))

    return _map_stmt(program, loop, lambda s: replace(s, dims=(moved(s.dims[0]), *s.dims[1:])))


def _drop(draw: Draw, program: Program) -> Program:
    """A statement less, or one twice."""
    stmt = _pick(draw, [s for s in walk_program(program) if isinstance(s, Store | Loop)])
    if stmt is None:
        return program
    return _map_stmt(program, stmt, (lambda s: ()) if draw(st.booleans()) else (lambda s: (s, s)))


def _unguard(draw: Draw, program: Program) -> Program:
    """A mode or a guard less."""
    everything = [n for s in walk_program(program) for n in subexprs(*exprs(s))]
    target = _pick(draw, [n for n in everything if isinstance(n, Select) or (isinstance(n, Load) and any(n.modes))])
    if target is None:
        return program

    def bare(e: Expr) -> Expr:
        if e is not target:
            return e
        return e.then if isinstance(e, Select) else replace(e, modes=(None,) * len(e.subs))

    return Mapper(bare).on_program(program)


MUTATIONS = (_subscript, _subscript, _swap, _order, _bounds, _drop, _unguard)


@st.composite
def mutated(draw: Draw, program: Program) -> Program:
    """The program with one or two small changes."""
    for _ in range(draw(st.integers(1, 2))):
        program = draw(st.sampled_from(MUTATIONS))(draw, program)
    return program
