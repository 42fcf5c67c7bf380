"""Declarations: modules, functions, sizes, params, inputs, and the conditions known from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from loopfuse import ops
from loopfuse.diag import Span, error
from loopfuse.dtypes import BOOL, DType
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.core import Failed, cast, parts
from loopfuse.frontend.check.modules import read_module
from loopfuse.frontend.check.statements import Statements, defined, names_in
from loopfuse.frontend.check.values import Array, Entry, Function, Module, Poison, Scalar, Scope, WeakFloat, WeakInt
from loopfuse.frontend.parse import parse_module
from loopfuse.ir import Affine, Buffer, Const, Dim, Expr, Load, Op, Select, Size
from loopfuse.prove import Facts
from loopfuse.sizes import ONE, Poly


class Declarations(Statements):
    """What holds for a whole script, whatever the order of its statements."""

    def each(self, script: ast.Script, kind: type, run: Callable[[ast.Stmt], None]) -> None:
        """Run over the statements of a kind, each failing on its own."""
        for node in script.body:
            if isinstance(node, kind):
                try:
                    run(node)
                except Failed:
                    for name in defined(node):
                        self.scope.values[name] = Entry(Poison(), None)

    # -- modules and functions ------------------------------------------------------------------------------------------------

    def imports(self, script: ast.Script) -> None:
        """Read the imported modules."""

        def run(node: ast.Stmt) -> None:
            assert isinstance(node, ast.Import)
            self.scope.modules[node.alias] = self.load_module(node, self.search, ())

        self.each(script, ast.Import, run)

    def load_module(self, node: ast.Import, search: Path | None, within: tuple[str, ...]) -> Module:
        """A module of the library or of a file: functions, constant sizes and imports."""
        source = read_module(node, search)
        if isinstance(source, str):
            self.fail("LF0230", source, node.span, "not found")
        if source.name in within:
            self.fail(
                "LF0231", f"module `{node.module}` imports itself", node.span, " -> ".join((*within, source.name))
            )
        before = len(self.collector.errors)
        script = parse_module(source, self.collector)
        if len(self.collector.errors) > before:
            raise Failed
        scope = Scope()
        module = Module(node.alias, scope)
        for item in script.body:
            match item:
                case ast.FnDecl():
                    scope.functions[item.name] = Function(item.name, item, scope)
                case ast.Import():
                    folder = Path(source.name).parent if node.path else None
                    scope.modules[item.alias] = self.load_module(item, folder, (*within, source.name))
                case ast.SizeDecl():
                    with self.inside(scope):
                        poly = self.extent_arg(item.value)
                    scope.values[item.name] = Entry(WeakInt(Affine(poly)), item.name_span, "size")
                case _:
                    self.fail("LF0232", "a module holds functions, sizes and imports only", item.span, "not in a module",
                              (node.span, "imported here"))  # fmt: skip
        return module

    def functions(self, script: ast.Script) -> None:
        """All functions are known before the first statement."""

        def run(node: ast.Stmt) -> None:
            assert isinstance(node, ast.FnDecl)
            known = self.scope.functions.get(node.name)
            if known is not None and known.decl is not None:
                self.fail("LF0205", f"function `{node.name}` is defined twice", node.name_span, "defined again")
            seen: set[str] = set()
            for p in node.params:
                if p.name in seen:
                    self.fail("LF0205", f"parameter `{p.name}` stands twice", p.span, "here again")
                seen.add(p.name)
            self.scope.functions[node.name] = Function(node.name, node, self.scope)

        self.each(script, ast.FnDecl, run)

    # -- sizes ----------------------------------------------------------------------------------------------------------------

    def declare_dims(self, script: ast.Script) -> None:
        """The names in the types of inputs that nothing else declares are sizes bound by the inputs."""
        declared = {n for node in script.body if isinstance(node, ast.SizeDecl | ast.ParamDecl) for n in defined(node)}
        for node in script.body:
            if not isinstance(node, ast.InputDecl):
                continue
            for dim in node.type.dims or ():
                if isinstance(dim, ast.Rest):
                    continue
                for name in names_in(dim):
                    if name.id not in declared and name.id not in self.sizes and name.id != "_":
                        self.add_size(Size(name.id, "shape", 0, span=name.span), name.span, "dim")

    def add_size(self, size: Size, span: Span, what: str) -> None:
        """A size, as a value and as a fact."""
        self.sizes[size.id] = size
        self.taken.setdefault(size.id, 0)
        self.scope.values[size.id] = Entry(WeakInt(Affine(Poly.of(size.id))), span, what)
        self.know(lambda facts: facts.size(size.id, size.least, size.multiple, size.value))

    def declare_sizes(self, script: ast.Script) -> None:
        """`size`: a constant (which `-D` may replace) or an integer expression of other sizes."""
        pending = {n.name: n for n in script.body if isinstance(n, ast.SizeDecl)}
        order: list[ast.SizeDecl] = []
        state: dict[str, int] = {}

        def visit(name: str) -> None:
            node = pending[name]
            state[name] = 1
            for used in names_in(node.value):
                if used.id in pending and state.get(used.id) == 1:
                    self.fail("LF0227", f"size `{name}` depends on itself", node.span, f"through `{used.id}`")
                if used.id in pending and used.id not in state:
                    visit(used.id)
            state[name] = 2
            order.append(node)

        for name in pending:
            if name not in state:
                try:
                    visit(name)
                except Failed:
                    for n in pending:
                        self.scope.values.setdefault(n, Entry(Poison(), None))
                    return
        for node in order:
            self.each(ast.Script(script.source, (node,)), ast.SizeDecl, self.declare_size)
        for name in self.overrides:
            if name not in pending:
                near = self.suggest(name, pending)
                self.report(
                    error(
                        "LF0505",
                        f"-D {name}: the script has no `size {name}`",
                        fix=f"did you mean -D {near}?" if near else "dims are given by --dims",
                    )
                )

    def declare_size(self, node: ast.Stmt) -> None:
        """One `size`."""
        assert isinstance(node, ast.SizeDecl)
        self.fresh_name(node.name, node.name_span)
        value = self.expr(node.value)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None or not self.is_size(poly, params=False):
            self.fail("LF0309", "a size is an integer expression of sizes", node.value.span, "not made of sizes and integers",
                      fix=f"param {node.name}: i32 = ... for a run-time number")  # fmt: skip
        if poly.is_const:
            fixed = self.overrides.get(node.name, poly.constant)
            self.add_size(
                Size(node.name, "compile", min(fixed, 0), value=fixed, span=node.span), node.name_span, "size"
            )
            return
        if node.name in self.overrides:
            self.fail(
                "LF0505",
                f"-D {node.name}: this size is derived",
                node.span,
                f"it is {poly}",
                fix="set the sizes it is made of",
            )
        fixed_poly = poly.subs(self.known_sizes())
        if fixed_poly.is_const:
            self.add_size(
                Size(node.name, "compile", min(fixed_poly.constant, 0), value=fixed_poly.constant, span=node.span),
                node.name_span,
                "size",
            )
        else:
            self.scope.values[node.name] = Entry(WeakInt(Affine(poly)), node.name_span, "size")

    # -- params and inputs ------------------------------------------------------------------------------------------------------

    def declare_params(self, script: ast.Script) -> None:
        """`param`: a scalar of the call."""
        self.each(script, ast.ParamDecl, self.declare_param)

    def declare_param(self, node: ast.Stmt) -> None:
        """One `param`."""
        assert isinstance(node, ast.ParamDecl)
        self.fresh_name(node.name, node.name_span)
        dtype = self.dtype_named(node.type)
        if node.type.dims:
            self.fail(
                "LF0228",
                "a param is a scalar",
                node.type.span,
                "this is an array type",
                fix=f"input {node.name}: {node.type.span.text}",
            )
        default = None if node.default is None else self.param_default(node.default, dtype)
        self.params.append(typed.Param(node.name, dtype, default, node.span))
        if dtype.is_int and dtype.name != "u64":
            self.sizes[node.name] = Size(node.name, "param", dtype.least, dtype=dtype, span=node.span)
            self.taken.setdefault(node.name, 0)
            self.know(lambda facts: facts.size(node.name, dtype.least, greatest=dtype.greatest))
            value: Scalar | Array = Scalar(cast(Affine(Poly.of(node.name)), dtype))
        else:
            buffer = Buffer(self.fresh(node.name), dtype, (), "param", span=node.span)
            self.buffers[buffer.id] = buffer
            value = self.stored(buffer.id, dtype, (), ())
        self.scope.values[node.name] = Entry(value, node.name_span, "param")

    def param_default(self, node: ast.Expr, dtype: DType) -> int | float | bool:
        """The default of a param: a constant that its type holds."""
        value = self.expr(node)
        if isinstance(value, Scalar) and isinstance(value.expr, Const) and value.dtype == dtype:
            e: Expr = value.expr
        elif isinstance(value, WeakInt | WeakFloat):
            e = self.folded(self.typed(value, dtype, node.span))
        else:
            self.fail("LF0225", f"the default is not {dtype}", node.span, "needs a constant of that type")
        if not isinstance(e, Const):
            self.fail("LF0406", "the default of a param is a constant", node.span, "not known here")
        held = ops.from_bits(e.bits, dtype)
        return bool(held) if dtype == BOOL else int(held) if dtype.is_int else float(held)

    def folded(self, e: Expr) -> Expr:
        """A polynomial of fixed sizes as a constant."""
        if isinstance(e, Op) and e.op == "cast" and isinstance(e.args[0], Affine):
            poly = e.args[0].poly.subs(self.known_sizes())
            if poly.is_const:
                return self.literal(poly.constant, e.dtype, e.span)
        return e

    def fresh_name(self, name: str, span: Span) -> None:
        """Indices, arrays, sizes and params share one namespace."""
        entry = self.scope.values.get(name)
        if entry is not None and not isinstance(entry.value, Poison):
            self.fail(
                "LF0205", f"`{name}` is defined twice", span, f"already {entry.described}", (entry.span, "defined here")
            )

    def declare_inputs(self, script: ast.Script) -> None:
        """`input`."""
        self.each(script, ast.InputDecl, self.declare_input)

    def declare_input(self, node: ast.Stmt) -> None:
        """One `input`."""
        assert isinstance(node, ast.InputDecl)
        self.fresh_name(node.name, node.name_span)
        dtype = self.dtype_named(node.type)
        shape: list[Poly] = []
        for d in node.type.dims or ():
            if isinstance(d, ast.Rest):
                self.fail(
                    "LF0229",
                    "an input has a fixed number of axes",
                    d.span,
                    "`...` is for parameters of functions",
                    fix="name each axis: f32[B, T, D]",
                )
            value = self.expr(d)
            poly = value.poly if isinstance(value, WeakInt) else None
            if poly is None or not self.is_size(poly, params=False):
                self.fail(
                    "LF0309",
                    "an extent must be made of sizes",
                    d.span,
                    "not made of sizes and integers"
                    if isinstance(d, ast.Number | ast.String)
                    else "a param is known only at the call",
                    fix="declare it: size K = ...",
                )
            shape.append(poly)
            fixed = poly.subs(self.known_sizes())
            if fixed.is_const and fixed.constant < 0:
                self.fail("LF0409", "an extent is negative", d.span, f"this is {fixed}")
            if not poly.is_const and poly.name is None:
                cond = Op("ge", (Affine(poly), Affine(Poly.of(0))), BOOL)
                self.know(partial(Facts.assume, cond=cond))
        buffer = Buffer(self.fresh(node.name), dtype, tuple(shape), "in", span=node.span)
        self.buffers[buffer.id] = buffer
        default = node.source.value if node.source is not None else None
        self.inputs.append(typed.Input(node.name, buffer.id, dtype, default, node.span))
        value_of = self.stored(buffer.id, dtype, tuple(shape), ())
        self.scope.values[node.name] = Entry(value_of, node.name_span, "input", type=node.type)

    # -- conditions known from the start ------------------------------------------------------------------------------------------

    def early_requires(self, script: ast.Script) -> None:
        """The requirements hold for the whole script, wherever they stand."""

        def run(node: ast.Stmt) -> None:
            assert isinstance(node, ast.Contract)
            if node.kind == "require":
                self.require(node)

        self.each(script, ast.Contract, run)

    def param_domains(self, script: ast.Script) -> None:
        """`where` of a param: a requirement for an integer one, a check on a value for any other."""

        def run(node: ast.Stmt) -> None:
            assert isinstance(node, ast.ParamDecl)
            if node.where is None:
                return
            cond = self.condition(node.where)
            if any(isinstance(e, Load) for e in parts((cond,))):
                self.domain(node.name, cond, (), (), (), node.where, node.span)
            else:
                self.add_require(cond, f"param {node.name} where {node.where.span.text}", node.span)

        self.each(script, ast.ParamDecl, run)

    def input_domains(self, script: ast.Script) -> None:
        """`where` of an input: a condition on every element."""

        def run(node: ast.Stmt) -> None:
            assert isinstance(node, ast.InputDecl)
            if node.where is None:
                return
            value = self.truth(self.expr(node.where), node.where.span)
            with self.context():
                shape = value.shape if isinstance(value, Array) else ()
                dims, subs = self.axes(shape)
                e = value.at(subs, ()) if isinstance(value, Array) else value.expr
                self.domain(node.name, e, shape, dims, subs, node.where, node.span)
            held = next(i.buffer for i in self.inputs if i.name == node.name)
            if self.buffers[held].dtype.is_int:
                self.learn_domain(held, e)

        self.each(script, ast.InputDecl, run)

    def domain(self, name: str, e: Expr, shape: tuple[Poly, ...], dims: tuple[Dim, ...], subs: tuple[Expr, ...], node: ast.Expr,
               span: Span) -> None:  # fmt: skip
        """The definition that evaluates a domain, element by element."""
        buffer = self.declare("domain", BOOL, shape, span)
        self.define(buffer, dims, subs, e, span)
        self.checks.append(typed.Check(buffer, node.span.text, f"domain of {name}", name, span=node.span))

    def learn_domain(self, buffer: str, e: Expr) -> None:
        """The bounds that a domain puts on every element of an integer input."""
        lows: list[Poly] = []
        highs: list[Poly] = []
        for part in conjuncts(e):
            match part:
                case Op(op=op, args=(a, b)) if op in ("lt", "le", "gt", "ge", "eq"):
                    if op in ("gt", "ge"):
                        a, b, op = b, a, {"gt": "lt", "ge": "le"}[op]
                    strict = ONE if op == "lt" else Poly.of(0)
                    low, high = self.bound_of(a), self.bound_of(b)
                    if is_element(a, buffer) and high is not None:
                        highs.append(high - strict)
                        if op == "eq":
                            lows.append(high)
                    elif is_element(b, buffer) and low is not None:
                        lows.append(low + strict)
                        if op == "eq":
                            highs.append(low)
        if lows or highs:
            held = self.buffers[buffer]
            lo, hi = tuple(lows), tuple(highs)
            self.buffers[buffer] = Buffer(held.id, held.dtype, held.shape, held.role, range=(lo, hi), span=held.span)
            self.know(lambda facts: facts.value_range(buffer, lo, hi))

    def bound_of(self, e: Expr) -> Poly | None:
        """An expression of sizes, params and constants as a polynomial."""
        if isinstance(e, Const) and e.dtype.is_int:
            return Poly.of(int(ops.from_bits(e.bits, e.dtype)))
        if isinstance(e, Op) and e.op == "cast" and e.implied:
            return self.bound_of(e.args[0])
        poly = e.poly if isinstance(e, Affine) else None
        return poly if poly is not None and self.is_size(poly) else None


def conjuncts(e: Expr) -> Iterator[Expr]:
    """The conditions that all hold where `e` does."""
    match e:
        case Op(op="and", args=args):
            for a in args:
                yield from conjuncts(a)
        case Select(cond=cond, then=then, other=Const(bits=0)):
            yield from conjuncts(cond)
            yield from conjuncts(then)
        case _:
            yield e


def is_element(e: Expr, buffer: str) -> bool:
    """Whether an expression is an element of a buffer, perhaps widened."""
    while isinstance(e, Op) and e.op == "cast" and e.implied:
        e = e.args[0]
    return isinstance(e, Load) and e.buffer == buffer
