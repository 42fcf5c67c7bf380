"""The random programs are as varied as they claim to be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import ir_inputs, ir_programs

from loopfuse.dtypes import DTYPES
from loopfuse.ir import Affine, Const, Load, Loop, Op, Program, Ref, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.rewrite import exprs, subexprs, walk_program

MODES = {"edge", "constant", "wrap", "reflect", "symmetric", "checked"}
WANTED = {
    *(f"dtype {name}" for name in DTYPES),
    *(f"mode {name}" for name in MODES),
    *(f"monoid {name}" for name in MONOIDS),
    *(f"role {name}" for name in ("in", "param", "out", "temp", "frozen")),
    *(f"origin {name}" for name in ("shape", "compile", "param", "plan")),
    *(f"node {name}" for name in ("Const", "Affine", "Ref", "Load", "Op", "Select", "Let", "Store", "Loop")),
    *(f"order {name}" for name in ("par", "seq", "prefix")),
    *(f"value {name}" for name in ("nan", "inf", "-0.0")),
    "several accumulators", "array accumulator", "computed subscript", "checked store", "where", "repair", "position",
    "window", "local", "range", "require", "directive", "implied cast", "let in an Affine", "several bounds", "step",
    "data in a bound", "imperfect nest", "rank 0", "rank 3", "extent 0", "extent 1", "several dims", "numerics strict",
}  # fmt: skip


def expression_features(program: Program) -> set[str]:
    found: set[str] = set()
    lets = {s.id for s in walk_program(program) if hasattr(s, "value") and not isinstance(s, Store)}
    for stmt in walk_program(program):
        for node in subexprs(*exprs(stmt)):
            found |= {f"node {type(node).__name__}", f"dtype {node.dtype}"}
            if isinstance(node, Op):
                found.add(f"op {node.op}")
                found |= {"implied cast"} if node.implied else set()
            elif isinstance(node, Load):
                found |= {f"mode {m.kind}" for m in node.modes if m}
                found |= {"computed subscript"} if any(isinstance(s, Op | Ref) for s in node.subs) else set()
            elif isinstance(node, Affine):
                found |= {"let in an Affine"} if node.poly.names & lets else set()
            elif isinstance(node, Const) and node.dtype.name == "f32":
                named = {0x7FC00000: "nan", 0x7F800000: "inf", 0x80000000: "-0.0"}
                found |= {f"value {named[node.bits]}"} if node.bits in named else set()
    return found


def statement_features(program: Program) -> set[str]:
    found: set[str] = set()
    lets = {s.id for s in walk_program(program) if hasattr(s, "value") and not isinstance(s, Store)}
    for stmt in walk_program(program):
        found.add(f"node {type(stmt).__name__}")
        if isinstance(stmt, Loop):
            bounds = [p for d in stmt.dims for p in (*d.lo, *d.hi)]
            has = {
                "several accumulators": len(stmt.accs) > 1,
                "array accumulator": any(a.shape for a in stmt.accs),
                "repair": any(a.repair for a in stmt.accs),
                "where": stmt.where is not None,
                "several bounds": any(len(d.lo) > 1 or len(d.hi) > 1 for d in stmt.dims),
                "step": any(not d.step.is_const or d.step.constant != 1 for d in stmt.dims),
                "data in a bound": any(p.names & lets for p in bounds),
                "several dims": len(stmt.dims) > 1,
                "imperfect nest": len(stmt.body) > 1 and any(isinstance(s, Loop) for s in stmt.body),
            }
            found |= {name for name, holds in has.items() if holds} | {f"order {stmt.order}"}
            found |= {f"monoid {a.monoid}" for a in stmt.accs}
        elif isinstance(stmt, Store):
            found |= {"position"} if stmt.at is not None else set()
            found |= {"checked store"} if any(stmt.modes) else set()
    return found


def declaration_features(program: Program) -> set[str]:
    found = {f"origin {s.origin}" for s in program.sizes} | {f"numerics {program.numerics}"}
    for b in program.buffers:
        found |= {f"role {b.role}", f"dtype {b.dtype}", f"rank {len(b.shape)}", b.scope}
        found |= {f"extent {p.constant}" for p in b.shape if p.is_const}
        found |= {"window"} if b.window else set()
        found |= {"range"} if b.range else set()
    return found | ({"require"} if program.requires else set()) | ({"directive"} if program.directives else set())


def test_everything_occurs() -> None:
    found: set[str] = set()

    @settings(max_examples=250, deadline=None, derandomize=True, database=None)
    @given(ir_programs())
    def collect(program: Program) -> None:
        found.update(expression_features(program), statement_features(program), declaration_features(program))

    collect()
    assert WANTED - found == set()
    assert sum(f"op {name}" in found for name in OPS) > 0.75 * len(OPS)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_inputs_fit(data) -> None:
    program = data.draw(ir_programs())
    sizes, arrays = data.draw(ir_inputs(program))
    assert sizes.keys() == {s.id for s in program.sizes}
    for s in program.sizes:
        assert s.least is None or sizes[s.id] >= s.least
        assert sizes[s.id] % s.multiple == 0
        assert s.value in (None, sizes[s.id])
    given_ = [b for b in program.buffers if b.role in ("in", "param", "frozen")]
    assert arrays.keys() == {b.id for b in given_}
    for b in given_:
        assert arrays[b.id].shape == tuple(p.value(sizes) for p in b.shape)
        assert arrays[b.id].dtype == b.dtype.numpy
        for bound in b.range[1] if b.range else ():
            assert (arrays[b.id] <= bound.value(sizes)).all()
