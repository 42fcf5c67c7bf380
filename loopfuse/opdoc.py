"""docs/ops.md, made from the op table: `python -m loopfuse.opdoc > docs/ops.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from loopfuse.dtypes import BF16, F16, F32, F64, I32, DType
from loopfuse.oprow import Kinds, Values
from loopfuse.ops import MONOIDS, OPS, Laws, OpRow, Spelling

_INTRODUCTION = """# Operations

This page is made from the op table (`loopfuse/ops.py`) by `python -m loopfuse.opdoc`; do not edit it. A test compares
the two, and another tests every claim made here at every element type.

Every operation is total and acts element by element. Operands have one common type, which is also the result's unless
the table says otherwise. Integers wrap at their width, floats follow IEEE 754 and round once, to nearest even; f16 and
bf16 are computed in a wider type and rounded. NaN stands for any NaN: payloads are not kept by arithmetic.
"""

_LAWS = """## Laws

Laws hold bit for bit at the kinds named, and nowhere else: for each law that is missing here, distribution aside, a
test has a counterexample. *Identity* e: `x op e` is x; *absorbing* z: `x op z` is z; *equal operands*: `x op x` is always that.
`least` and `greatest` are the ends of the type, `ones` has all bits set.
"""

_ERRORS = """## Errors and cost

Bounds in units in the last place of the exact result (`0.5`: correctly rounded, `exact`: no rounding), for compiled
code and for the reference alike; those of functions are from the CUDA manual, plus the half unit by which it counts
from the correctly rounded result, and were confirmed on an H200 at every f32 number. *Jumps* marks operations whose
result jumps where float operands vary smoothly. The cost is that of f32: floating-point operations, and slots of the
special-function unit.
"""

_APPROXIMATIONS = """## Approximate forms

Used in `fast`, and elsewhere where their error is seen not to reach the stored result. The error is so many units in
the last place, plus those for each unit of the operand's magnitude up to 256, plus an absolute part.
"""

_MONOIDS = """## Reductions

The identity is where an accumulator starts, and what an element that is left out contributes. The types are those of
the values; an accumulator that *widens* is i64 or u64 for integers and bool, and f32 for f16 and bf16.
"""


def document() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _operations(), _LAWS, _laws(), _ERRORS, _errors(), _APPROXIMATIONS, _approximations(),
             _MONOIDS, _monoids()]  # fmt: skip
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(r) for r in rows)]) + "\n"


def _kinds(kinds: Kinds) -> str:
    names = {"bool": "bool", "uint": "unsigned", "int": "signed", "float": "float"}
    if set(kinds) >= {"uint", "int"}:
        names = names | {"uint": "integer", "int": ""}
    return " ".join(names[k] for k in kinds if names[k])


def written(row: OpRow) -> str:
    """How an operation is written in the language, on operands named as in its description."""
    names = {"clip": "x, low, high", "where": "c, a, b", "fma": "a, b, c", "atan2": "y, x", "bits": "x, dtype"}
    if row.infix:
        return f"`a {row.infix} b`"
    if row.prefix:
        return f"`{row.prefix} a`" if row.prefix.isalpha() else f"`{row.prefix}a`"
    if row.surface:
        return f"`{row.surface}({names.get(row.name, 'a, b' if row.arity == 2 else 'x')})`"
    return "`dtype(x)`"


def _operations() -> str:
    gives = {"same": "", "bool": "bool", "explicit": "stated"}
    return _table(
        ("operation", "written", "level", "types", "result", "meaning"),
        (
            (row.name, written(row), str(row.precedence or ""), _kinds(row.kinds), gives[row.gives], row.doc)
            for row in OPS.values()
        ),
    )


def _values(values: Values) -> str:
    return ", ".join(f"{value} ({_kinds(kinds)})" for kinds, value in values)


def _laws() -> str:
    rows = []
    for row in OPS.values():
        laws = row.laws
        over = "; ".join(f"over {name} ({_kinds(kinds)})" for name, kinds in laws.distributes)
        plain = (laws.commutative, laws.associative, laws.idempotent, laws.involution)
        cells = [
            *(_kinds(k) for k in plain),
            _values(laws.identity),
            _values(laws.absorbing),
            _values(laws.cancels),
            over,
        ]
        if laws != Laws():
            rows.append((row.name, *cells))
    head = ("operation", "commutative", "associative", "idempotent", "involution", "identity", "absorbing",
            "equal operands", "distributes")  # fmt: skip
    turned = [
        (row.name, f"f(a {h.source} b) = f(a) {h.image} f(b)", _kinds(h.kinds), "" if h.pole is None else str(h.pole))
        for row in OPS.values()
        for h in row.homomorphisms
    ]
    return _table(head, rows) + "\n" + _table(("f", "turns", "at", "pole"), turned)


def _bound(row: OpRow, dtype: DType) -> str:
    ulp = row.ulp(dtype)
    return "exact" if ulp == 0 else f"{ulp:.4g}"


def _errors() -> str:
    def bounds(row: OpRow) -> Sequence[str]:
        if "float" not in row.kinds or row.gives == "bool":
            return ("",) * 4
        return [_bound(row, d) for d in (F16, BF16, F32, F64)]

    def spelled(row: OpRow) -> str:
        dtype = F32 if "float" in row.kinds else I32 if "int" in row.kinds else None
        first = next((s for s in row.cuda if dtype is None or (s.rank(dtype) and not s.approx)), row.cuda[0])
        return f"`{_example(first)}`"

    return _table(
        ("operation", "f16", "bf16", "f32", "f64", "jumps", "flops", "special", "CUDA (f32, else i32)"),
        (
            (row.name, *bounds(row), "yes" if row.switches else "", str(row.flops), str(row.special), spelled(row))
            for row in OPS.values()
        ),
    )


def _example(spelling: Spelling) -> str:
    return spelling.text.format("a", "b", "c", T="T", W="W")


def _approximations() -> str:
    rows = []
    for row in OPS.values():
        for s in row.approximations(F32):
            low, high = s.domain
            where = "" if s.domain == Spelling.everywhere() else f"{low:.4g} to {high:.4g}"
            absolute = f"{s.absolute:.3g}" if s.absolute else ""
            growth = f"{s.growth:g}" if s.growth else ""
            rows.append(
                (row.name, f"`{_example(s)}`", f"{s.ulp:g}", growth, absolute, where, "yes" if s.flushes else "")
            )
    return _table(("operation", "CUDA (f32)", "ulp", "for each unit", "absolute", "within", "denormals lost"), rows)


def _monoids() -> str:
    return _table(
        ("reduction", "types", "combines by", "identity", "widens", "in a scatter", "meaning"),
        (
            (m.name, _kinds(m.kinds), m.op, _values(m.start), "yes" if m.widens else "",
             f"`{m.update}`" if m.update else "", m.doc)
            for m in MONOIDS.values()
        ),
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(document())
