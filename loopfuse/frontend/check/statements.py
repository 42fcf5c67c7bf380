"""Statements in order: contracts, hints, and what happens after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loopfuse.diag import Span
from loopfuse.dtypes import BOOL
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.core import Failed, parts
from loopfuse.frontend.check.infer import children
from loopfuse.frontend.check.loops import Loops
from loopfuse.frontend.check.values import Array, Entry, Poison, Scalar, WeakInt
from loopfuse.ir import Affine, Const, Directive, Expr, Load, Op, Ref, Require

PRAGMAS = ("materialize", "fuse", "nofuse", "split", "tf32")


def names_in(node: ast.Expr) -> Iterator[ast.Name]:
    """The names in an expression."""
    stack: list[ast.Expr | ast.Slice | ast.NewAxis | ast.Rest] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, ast.Name):
            yield item
        stack.extend(children(item))


def defined(node: ast.Stmt) -> list[str]:
    """The value names that a statement defines."""
    match node:
        case ast.LetDecl(lhs=lhs) if lhs.names:
            return [n for n, _ in lhs.names]
        case ast.LetDecl(lhs=lhs) | ast.OutputDecl(lhs=lhs):
            return [] if node.value is None else [lhs.name]
        case ast.InputDecl(name=name) | ast.ParamDecl(name=name) | ast.SizeDecl(name=name) | ast.AccumDecl(name=name):
            return [name]
        case ast.Import(alias=alias):
            return [alias]
        case ast.ScanDecl(carries=carries, body=body):
            return [c.name for c in carries] + [e.name for e in body if isinstance(e, ast.Emit)]
        case _:
            return []


class Statements(Loops):
    """Statements in order, each failing on its own."""

    def guarded_statement(self, run: Callable[[], None]) -> None:
        """Run a part; an error in it has been reported and ends only that part."""
        try:
            run()
        except Failed:
            if self.calling or self.dry:
                raise

    def statement(self, node: ast.Stmt) -> None:
        """Run a statement; after an error what it defines is poisoned, so that one mistake gives one message."""
        try:
            self.run_statement(node)
        except Failed:
            if self.calling or self.dry:
                raise
            for name in defined(node):
                self.scope.values[name] = Entry(Poison(), None)

    def run_statement(self, node: ast.Stmt) -> None:
        """One statement."""
        match node:
            case ast.LetDecl():
                self.let(node)
            case ast.OutputDecl():
                self.top_level(node, "output")
                self.output(node)
            case ast.ScanDecl():
                self.scan(node)
            case ast.AccumDecl():
                self.accum(node)
            case ast.SizeDecl():
                self.local_size(node)
            case ast.Contract():
                self.contract_statement(node)
            case ast.Pragma():
                self.pragma(node)
            case ast.Numerics():
                self.set_numerics(node)
            case ast.Next() | ast.Emit():
                word = "next" if isinstance(node, ast.Next) else "emit"
                self.fail("LF0115", f"`{word}` stands outside a scan", node.span, "not in the body of one")
            case ast.FnDecl() | ast.InputDecl() | ast.ParamDecl() | ast.Import():
                self.top_level(node, "this statement")

    def top_level(self, node: ast.Stmt, what: str) -> None:
        """Refuse a declaration inside a function or a scan."""
        if self.calling or self.trips:
            self.fail(
                "LF0208", f"{what} belongs to the top level of a script", node.span, "inside a function or a scan"
            )

    def local_size(self, node: ast.SizeDecl) -> None:
        """`size` in a function: a name for an integer expression of sizes."""
        if not self.calling:
            return
        poly = self.extent_arg(node.value)
        self.scope.values[node.name] = Entry(WeakInt(Affine(poly)), node.name_span, "size")

    # -- contracts ----------------------------------------------------------------------------------------------------------

    def contract_statement(self, node: ast.Contract) -> None:
        """`require` in a function, `check`, `expect`."""
        if node.kind == "require":
            if self.calling:
                self.require(node)
        elif node.kind == "check":
            self.check(node)
        else:
            self.top_level(node, "`expect`")
            text = self.expectation(node.cond)
            message = f', "{node.message}"' if node.message else ""
            self.directives.append(Directive("expect", text + message, span=node.span))

    def expectation(self, node: ast.Expr) -> str:
        """`kernels <= 1`, `fused(a, b)`, `unmaterialized(t)`, as text over buffers; the names must be definitions."""
        match node:
            case ast.Compare(operands=(ast.Name(id="kernels"), ast.Number() as count), ops=("<=" | "==" | "<",)):
                if not count.span.text.isdecimal() or int(count.span.text) < 1 + (node.ops[0] == "<"):
                    self.fail(
                        "LF0606",
                        "a program takes a whole number of kernels, at least one",
                        count.span,
                        "no such number",
                    )
                return node.span.text
            case ast.Call(fn=ast.Name(id="fused" | "unmaterialized" as what), args=args, kwargs=(), gen=None) if args:
                found = []
                for arg in args:
                    if not isinstance(arg, ast.Name):
                        self.fail("LF0606", "an expectation names definitions", arg.span, "not a name")
                    found.append(self.computed(arg, "LF0606"))
                if what == "fused" and len(set(found)) < 2:
                    self.fail("LF0606", "`fused` is about two definitions or more", node.span, "names only one")
                return f"{what}({', '.join(found)})"
            case _:
                self.fail("LF0606", "nothing that can be expected", node.span, "not one of the forms",
                          fix="expect kernels <= 1, expect fused(a, b), or expect unmaterialized(t)")  # fmt: skip

    def require(self, node: ast.Contract) -> None:
        """A condition on sizes and params: checked before the program runs, and known from then on."""
        value = self.expr(node.cond)
        if not isinstance(value, Scalar) or value.dtype != BOOL:
            self.fail(
                "LF0211", "a requirement is a condition", node.cond.span, "not a bool scalar", fix="compare: R % 2 == 1"
            )
        about = list(parts((value.expr,)))
        if any(isinstance(e, Load | Ref) or (isinstance(e, Affine) and not self.is_size(e.poly)) for e in about):
            text = node.cond.span.text
            named = {n.id: self.scope.find(n.id) for n in names_in(node.cond)}
            # A param that is no integer is a value in memory, as data is.
            param = next((name for name, entry in named.items() if entry and entry.what == "param"), None)
            self.fail("LF0601", "a requirement is about sizes and integer params", node.cond.span, "depends on data or an index"
                      if param is None else "depends on a param that is no integer, on data or an index",
                      fix=f"check {text}" if param is None else f"a domain: param {param}: ... where {text}")  # fmt: skip
        self.add_require(value.expr, node.message or "", node.span)

    def add_require(self, cond: Expr, message: str, span: Span) -> None:
        """Record a requirement, unless it is known to hold; one that can never hold is an error."""
        known = self.evaluated(cond)
        if known is False:
            self.fail(
                "LF0603",
                "a requirement can never hold",
                span,
                "false for the sizes given" + (f": {message}" if message else ""),
            )
        if known is None and not self.dry:
            self.requires.append(Require(cond, message, span=span))
            self.know(lambda facts: facts.assume(cond))

    def evaluated(self, cond: Expr) -> bool | None:
        """The truth of a condition whose sizes are all fixed."""
        match cond:
            case Const(bits=bits):
                return bool(bits)
            case Op(op="and" | "or", args=(a, b)):
                left, right = self.evaluated(a), self.evaluated(b)
                decisive = cond.op == "or"
                if left is decisive or right is decisive:
                    return decisive
                return None if left is None or right is None else not decisive
            case Op(op="not", args=(a,)):
                inner = self.evaluated(a)
                return None if inner is None else not inner
            case Op(op=op, args=(Affine(poly=a), Affine(poly=b))) if op in ("eq", "ne", "lt", "le", "gt", "ge"):
                fixed = self.known_sizes()
                x, y = a.subs(fixed), b.subs(fixed)
                if not (x.is_const and y.is_const):
                    return None
                p, q = x.constant, y.constant
                return {"eq": p == q, "ne": p != q, "lt": p < q, "le": p <= q, "gt": p > q, "ge": p >= q}[op]
            case _:
                return None

    def check(self, node: ast.Contract) -> None:
        """A condition on values, run by `loopfuse check`."""
        if self.trips or self.equation:
            self.fail(
                "LF0208", "`check` belongs to the top level of a script", node.span, "inside a scan or an equation"
            )
        e = self.contract_element(node)
        buffer = self.declare("check", BOOL, (), node.span)
        self.define(buffer, (), (), e, node.span)
        if not self.dry:
            self.checks.append(typed.Check(buffer, node.cond.span.text, node.message or "", span=node.span))

    def pragma(self, node: ast.Pragma) -> None:
        """A hint, kept as text; the definitions that it names must exist."""
        if node.name not in PRAGMAS:
            near = self.suggest(node.name, PRAGMAS)
            self.fail(
                "LF0604",
                f"unknown pragma `{node.name}`",
                node.span,
                f"known: {', '.join(PRAGMAS)}",
                fix=f"did you mean `{near}`?" if near else None,
            )
        for arg in node.args:
            for name in names_in(arg) if node.name != "split" else list(names_in(node.args[0])):
                self.name(name)
        least = {"fuse": 2, "nofuse": 2, "materialize": 1}.get(node.name, 0)
        if least:
            named = {self.computed(a, "LF0604") for a in node.args if isinstance(a, ast.Name)}
            if len(named) < least:
                wanted = "two definitions or more" if least == 2 else "a definition"
                self.fail("LF0604", f"`pragma {node.name}` names {wanted}", node.span, f"names {len(named)}")
        if not self.dry:
            words = [self.buffer_name(a) if isinstance(a, ast.Name) and (k == 0 or node.name != "split") else a.span.text
                     for k, a in enumerate(node.args)]  # fmt: skip
            text = f"{node.name}({', '.join(words)})" if node.args else node.name
            self.directives.append(Directive("pragma", text, span=node.span))

    def computed(self, node: ast.Name, code: str) -> str:
        """The buffer of a definition, for a directive about kernels: an input has none."""
        found = self.buffer_name(node)
        if any(entry.buffer == found for entry in self.inputs):
            self.fail(code, f"`{node.id}` is an input: no kernel computes it", node.span, "name a definition")
        return found

    def buffer_name(self, node: ast.Name) -> str:
        """The buffer that a name stands for here, which passes know it by; the name itself where it is none."""
        value = self.name(node)
        if isinstance(value, Scalar) and isinstance(value.expr, Load) and not value.expr.subs:
            return value.expr.buffer
        return (value.buffer or node.id) if isinstance(value, Array) else node.id

    def set_numerics(self, node: ast.Numerics) -> None:
        """`numerics strict|default|fast`."""
        if node.mode not in ("strict", "default", "fast"):
            self.fail("LF0605", f"unknown numerics mode `{node.mode}`", node.span, "modes are strict, default and fast")
        self.numerics = node.mode
