"""Facts, conditions and subscripts for tests of the prover, written as Python expressions."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from loopfuse.constants import constant
from loopfuse.dtypes import BOOL, DTYPES, F32, I64, DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.prove import Facts
from loopfuse.sizes import ONE, Poly

_OPS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.BitAnd: "bitand",
    ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shl", ast.RShift: "shr", ast.Pow: "pow", ast.Div: "div",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
_AFFINE = {"add": Poly.__add__, "sub": Poly.__sub__, "mul": Poly.__mul__, "floordiv": Poly.__floordiv__,
           "mod": Poly.__mod__}  # fmt: skip


class Terms:
    """Reads expressions; `arrays` gives the element types of buffers and `refs` those of Refs, others are integers."""

    def __init__(self, arrays: Mapping[str, str] | None = None, refs: Mapping[str, str] | None = None) -> None:
        self.arrays = {n: DTYPES[d] for n, d in (arrays or {}).items()}
        self.refs = {n: DTYPES[d] for n, d in (refs or {}).items()}

    def poly(self, text: str | int) -> Poly:
        """A polynomial."""
        e = self.expr(str(text))
        assert isinstance(e, Affine), text
        return e.poly

    def expr(self, text: str) -> Expr:
        """An expression; sizes, indices and literals take the type of the other operand."""
        return self._at(ast.parse(text.strip(), mode="eval").body)

    def _at(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool(v)):
                return Const(int(v), BOOL)
            case ast.Constant(value=int(v)):
                return Affine(Poly.of(v))
            case ast.Constant(value=float(v)):
                return Const(constant(v, F32), F32)
            case ast.Name(id=name):
                return Ref(name, self.refs[name]) if name in self.refs else Affine(Poly.of(name))
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return self._op("sub", [Affine(Poly.of(0)), self._at(x)])
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return Op("not", (self._at(x),), BOOL)
            case ast.UnaryOp(op=ast.Invert(), operand=x):
                return Op("invert", (self._at(x),), self._at(x).dtype)
            case ast.BinOp(left=a, op=op, right=b):
                return self._op(_OPS[type(op)], [self._at(a), self._at(b)])
            case ast.BoolOp(op=op, values=values):
                result = self._at(values[0])
                for value in values[1:]:
                    result = Op("and" if isinstance(op, ast.And) else "or", (result, self._at(value)), BOOL)
                return result
            case ast.Compare(left=left, ops=ops, comparators=rights):
                sides = [self._at(left), *map(self._at, rights)]
                parts = [self._op(_OPS[type(o)], [sides[k], sides[k + 1]]) for k, o in enumerate(ops)]
                result = parts[0]
                for part in parts[1:]:
                    result = Op("and", (result, part), BOOL)
                return result
            case ast.IfExp(test=c, body=a, orelse=b):
                then, other = self._same([self._at(a), self._at(b)])
                return Select(self._at(c), then, other)
            case ast.Subscript(value=ast.Name(id=name), slice=sub):
                subs = tuple(map(self._at, sub.elts if isinstance(sub, ast.Tuple) else [sub]))
                return Load(name, subs, (None,) * len(subs), self.arrays[name])
            case ast.Call(func=ast.Name(id=name), args=args):
                values = [self._at(a) for a in args]
                if name == "where":
                    then, other = self._same(values[1:])
                    return Op("where", (values[0], then, other), then.dtype)
                if name in DTYPES:
                    return Op("cast", (values[0],), DTYPES[name])
                return self._op(name, values)
        raise AssertionError(ast.dump(node))

    def _same(self, args: Sequence[Expr]) -> list[Expr]:
        dtype = next((a.dtype for a in args if not isinstance(a, Affine)), I64)
        return [self._as(a, dtype) for a in args]

    def _as(self, e: Expr, dtype: DType) -> Expr:
        if e.dtype == dtype:
            return e
        if isinstance(e, Affine) and e.poly.is_const:
            return Const(constant(e.poly.constant, dtype), dtype)
        return Op("cast", (e,), dtype)

    def _op(self, op: str, args: Sequence[Expr]) -> Expr:
        polys = [a.poly for a in args if isinstance(a, Affine)]
        if op in _AFFINE and len(polys) == len(args):
            return Affine(_AFFINE[op](*polys))
        same = self._same(args)
        compares = op in ("eq", "ne", "lt", "le", "gt", "ge")
        return Op(op, tuple(same), BOOL if compares else same[-1].dtype)


def known(
    terms: Terms,
    sizes: str = "",
    require: str = "",
    loops: str = "",
    where: str = "",
    ranges: Mapping[str, tuple[str, str]] | None = None,
    defs: Mapping[str, tuple[str, str]] | None = None,
    refs: Mapping[str, tuple[str, str]] | None = None,
    lets: Mapping[str, str] | None = None,
) -> Facts:
    """Facts from text.

    `sizes`: names, `K=5` with a value, `p?` a param without a lower bound. `require` and `where`: conditions parted by
    `;`, a leading `else` for one that does not hold. `loops`: `i in 0..N; k in i+1..i+d by 2`.
    """
    facts = Facts.empty()
    for word in sizes.split():
        name, _, value = word.partition("=")
        if name.endswith("?"):
            facts = facts.size(name[:-1], least=None)
        else:
            facts = facts.size(name, value=int(value) if value else None)
    for condition in filter(None, map(str.strip, require.split(";"))):
        facts = facts.assume(terms.expr(condition))
    for buffer, (lo, hi) in (ranges or {}).items():
        facts = facts.value_range(buffer, (terms.poly(lo),), (terms.poly(hi),))
    for buffer, (indices, value) in (defs or {}).items():
        facts = facts.define(buffer, tuple(indices.split()), terms.expr(value))
    for name, (lo, hi) in (refs or {}).items():
        facts = facts.ref_range(name, (terms.poly(lo),), (terms.poly(hi),))
    for loop in filter(None, map(str.strip, loops.split(";"))):
        name, _, span = loop.partition(" in ")
        span, _, step = span.partition(" by ")
        lo, hi = span.split("..")
        facts = facts.index(name, (terms.poly(lo),), (terms.poly(hi),), terms.poly(step) if step else ONE)
    for name, value in (lets or {}).items():
        facts = facts.let(name, terms.expr(value))
    for condition in filter(None, map(str.strip, where.split(";"))):
        truth = not condition.startswith("else ")
        facts = facts.assume(terms.expr(condition.removeprefix("else ")), truth)
    return facts
