"""Constant propagation and folding.

Needs any valid program. Known are: sizes with a value (of the script, or of `Options.specialise`: specialising to a
shape is nothing else), literals, and arrays declared constant (`Options.frozen`). What follows from them is computed
at the declared width by the op table; branches never taken and loops that never run go; what depends on frozen arrays
alone is computed once, now. An index that takes one value is that value.

Keeps every bit, but for one thing, which is announced: outside `strict`, a factor for each channel behind a
contraction with frozen weights moves into the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loopfuse.diag import UserError, error
from loopfuse.ir import Affine, Program
from loopfuse.passes.base import Options, Outcome, Pass, Steps, steps
from loopfuse.passes.fold import folded
from loopfuse.passes.freeze import Frozen, evaluated, freeze
from loopfuse.passes.trips import single_trips
from loopfuse.passes.weights import scaled
from loopfuse.rewrite import nodes, polys, subexprs, walk_program
from loopfuse.sizes import Poly


def constprop(program: Program, options: Options) -> Outcome:
    """The pass. Its note `frozen` holds the arrays of the frozen buffers by id.

    Raises `UserError`: LF0502, LF0503, LF0504, LF0506, LF0517 where specialised sizes or frozen arrays do not fit.
    """
    taken = steps(options, "constprop")
    program = specialised(program, options.specialise)
    arrays, program = freeze(program, options.frozen)
    program = _settled(program, _numbers(program, taken), taken)
    if not arrays:
        return Outcome(program)
    state = evaluated(Frozen(program, dict(arrays)), taken)
    if program.numerics != "strict":
        state = scaled(state, taken)
    held = {b.id for b in state.program.buffers if b.role == "frozen"}
    known = {id: array for id, array in state.arrays.items() if id in held}
    return Outcome(state.program, tuple(state.remarks), notes={"frozen": known})


PASS = Pass("constprop", "Compute what is constant, and drop branches and loops that it rules out.", constprop)


def specialised(program: Program, values: Mapping[str, int]) -> Program:
    """The program with values for sizes, which stay declared. Raises `UserError` LF0502, LF0506, LF0517."""
    table = {s.id: s for s in program.sizes}
    for name, value in values.items():
        size = table.get(name)
        if size is None:
            raise UserError(error("LF0502", f"the program has no size `{name}`",
                                  notes=[f"its sizes are {', '.join(table)}" if table else "it has no sizes"]))  # fmt: skip
        if size.value not in (None, value):
            raise UserError(error("LF0517", f"the size `{name}` is {size.value}, not {value}", size.span))
        if value % size.multiple or (size.least is not None and value < size.least):
            raise UserError(error("LF0506", f"the size `{name}` cannot be {value}", size.span))
    if all(table[n].value == v for n, v in values.items()):
        return program
    return replace(program, sizes=tuple(replace(s, value=values.get(s.id, s.value)) for s in program.sizes))


def _settled(program: Program, numbers: Mapping[str, int], taken: Steps) -> Program:
    """Everything folded that follows from the sizes and from the indices that take one value."""
    while True:
        after = single_trips(folded(program, numbers, taken), taken.take)
        if after is program:
            return program
        program = after


def _numbers(program: Program, taken: Steps) -> dict[str, int]:
    """The values of the sizes that occur."""
    used = _mentioned(program)
    return {s.id: s.value for s in program.sizes
            if s.value is not None and s.id in used and taken.take(f"the size {s.id} is {s.value}")}  # fmt: skip


def _mentioned(program: Program) -> set[str]:
    """The names in all polynomials."""
    found: set[Poly] = set()
    for b in program.buffers:
        found.update(b.shape)
        for low, high in (*(b.window or ()), *((b.range,) if b.range else ())):
            found.update((*low, *high))
    for stmt in walk_program(program):
        found.update(polys(stmt))
    found.update(n.poly for n in nodes(program) if isinstance(n, Affine))
    for r in program.requires:
        found.update(n.poly for n in subexprs(r.cond) if isinstance(n, Affine))
    return set().union(*(p.names for p in found))
