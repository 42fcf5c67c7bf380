"""Declarations and statements, and the door of the checker: a script to a typed program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from loopfuse import ops
from loopfuse.diag import Collector, Source, Span, error
from loopfuse.dtypes import BOOL, DType
from loopfuse.frontend import ast, typed
from loopfuse.frontend.check.core import Failed, cast, parts
from loopfuse.frontend.check.infer import children
from loopfuse.frontend.check.loops import Loops
from loopfuse.frontend.check.modules import read_module
from loopfuse.frontend.check.values import Array, Entry, Function, Module, Poison, Scalar, Scope, WeakFloat, WeakInt
from loopfuse.frontend.parse import parse_recovering
from loopfuse.ir import Affine, Buffer, Const, Dim, Directive, Expr, Load, Op, Require, Select, Size
from loopfuse.sizes import ONE, Poly

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
            return [lhs.name]
        case ast.InputDecl(name=name) | ast.ParamDecl(name=name) | ast.SizeDecl(name=name) | ast.AccumDecl(name=name):
            return [name]
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
                if name not in self.scope.values or not isinstance(node, ast.OutputDecl) or node.value is not None:
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
                self.fail("LF0338", f"`{word}` stands outside a scan", node.span, "not in the body of one")
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
            message = f', "{node.message}"' if node.message else ""
            self.directives.append(Directive("expect", node.cond.span.text + message, span=node.span))

    def require(self, node: ast.Contract) -> None:
        """A condition on sizes and params: checked before the program runs, and known from then on."""
        value = self.expr(node.cond)
        if not isinstance(value, Scalar) or value.dtype != BOOL:
            self.fail(
                "LF0211", "a requirement is a condition", node.cond.span, "not a bool scalar", fix="compare: R % 2 == 1"
            )
        if any(
            isinstance(e, Load) or (isinstance(e, Affine) and not self.is_size(e.poly)) for e in parts((value.expr,))
        ):
            self.fail("LF0601", "a requirement is about sizes and params", node.cond.span, "depends on data or an index",
                      fix=f"check {node.cond.span.text}")  # fmt: skip
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
        if not self.dry:
            text = f"{node.name}({', '.join(a.span.text for a in node.args)})" if node.args else node.name
            self.directives.append(Directive("pragma", text, span=node.span))

    def set_numerics(self, node: ast.Numerics) -> None:
        """`numerics strict|default|fast`."""
        if node.mode not in ("strict", "default", "fast"):
            self.fail("LF0605", f"unknown numerics mode `{node.mode}`", node.span, "modes are strict, default and fast")
        self.numerics = node.mode


class Program(Statements):
    """A whole script."""

    def run(self, script: ast.Script, name: str) -> typed.TypedProgram | None:
        """Check a parsed script; None after errors."""
        for phase in (self.imports, self.functions, self.declare_dims, self.declare_sizes, self.declare_params, self.declare_inputs,
                      self.early_requires, self.param_domains, self.input_domains):  # fmt: skip
            phase(script)
        for node in script.body:
            if not isinstance(node, ast.FnDecl | ast.InputDecl | ast.ParamDecl | ast.Import | ast.SizeDecl):
                self.statement(node)
        if not self.outputs and not self.collector.errors:
            end = Span(script.source, len(script.source.text), len(script.source.text))
            self.report(error("LF0209", "the script has no output", end, "nothing is computed", fix="output y = ..."))
        if self.collector.errors:
            return None
        remarks = tuple(d for d in self.collector.found if d.level != "error")
        checks = tuple(self.marked(c) for c in self.checks)
        return typed.TypedProgram(name, tuple(self.sizes.values()), tuple(self.inputs), tuple(self.params), tuple(self.outputs),
                                  tuple(self.buffers.values()), tuple(self.body), tuple(self.requires), checks, tuple(self.directives),
                                  self.numerics, tuple(self.names), remarks)  # fmt: skip

    def marked(self, check: typed.Check) -> typed.Check:
        """A domain with the mark whether a proof needed it; a range passed on by a definition counts for all domains."""
        buffers = {i.name: i.buffer for i in self.inputs}
        if check.domain_of is None:
            return check
        passed_on = any(b not in buffers.values() for b in self.used_domains)
        used = passed_on or buffers.get(check.domain_of, check.domain_of) in self.used_domains
        return typed.Check(check.buffer, check.text, check.message, check.domain_of, used, check.span)

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
        script = parse_recovering(source, self.collector)
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
            if node.name in self.scope.functions:
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
        if node.name in self.scope.values:
            self.fail(
                "LF0205",
                f"`{node.name}` is defined twice",
                node.name_span,
                "defined again",
                (self.scope.values[node.name].span, "defined here"),
            )
        value = self.expr(node.value)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None or not self.is_size(poly, params=False):
            self.fail("LF0309", "a size is an integer expression of sizes", node.value.span, "not made of sizes and integers",
                      fix=f"param {node.name}: i32 = ... for a run-time number")  # fmt: skip
        if poly.is_const:
            fixed = self.overrides.get(node.name, poly.constant)
            self.add_size(Size(node.name, "compile", fixed, value=fixed, span=node.span), node.name_span, "size")
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
                Size(node.name, "compile", fixed_poly.constant, value=fixed_poly.constant, span=node.span),
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
        if entry is not None:
            self.fail(
                "LF0205", f"`{name}` is defined twice", span, f"already a {entry.what}", (entry.span, "defined here")
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
                    "a param is known only at the call",
                    fix="declare it: size K = ...",
                )
            shape.append(poly)
            fixed = poly.subs(self.known_sizes())
            if fixed.is_const and fixed.constant < 0:
                self.fail("LF0409", "an extent is negative", d.span, f"this is {fixed}")
            if not poly.is_const and poly.name is None:
                self.know(lambda facts, p=poly: facts.assume(Op("ge", (Affine(p), Affine(Poly.of(0))), BOOL)))  # type: ignore[misc]
        buffer = Buffer(self.fresh(node.name), dtype, tuple(shape), "in", span=node.span)
        self.buffers[buffer.id] = buffer
        default = node.source.value if node.source is not None else None
        self.inputs.append(typed.Input(node.name, buffer.id, dtype, default, node.span))
        self.scope.values[node.name] = Entry(
            self.stored(buffer.id, dtype, tuple(shape), ()), node.name_span.to(node.type.span), "input"
        )

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
                self.domain(node.name, cond, (), node.where, node.span)
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
                dims = self.axes(value.shape if isinstance(value, Array) else ())
                subs = tuple(Affine(Poly.of(d.id)) for d in dims)
                e = value.at(subs, ()) if isinstance(value, Array) else value.expr
                self.domain(node.name, e, dims, node.where, node.span)
            held = next(i.buffer for i in self.inputs if i.name == node.name)
            if self.buffers[held].dtype.is_int:
                self.learn_domain(held, e)

        self.each(script, ast.InputDecl, run)

    def domain(self, name: str, e: Expr, dims: tuple[Dim, ...], node: ast.Expr, span: Span) -> None:
        """The definition that evaluates a domain, element by element."""
        subs = tuple(Affine(Poly.of(d.id)) for d in dims)
        buffer = self.declare("domain", BOOL, tuple(d.hi[0] for d in dims), span)
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


def check_script(script: ast.Script, collector: Collector, *, sizes: Mapping[str, int] | None = None, search: Path | None = None,
                 name: str | None = None) -> typed.TypedProgram | None:  # fmt: skip
    """Check a parsed script. Errors, warnings and remarks go to `collector`; None if there are errors.

    `sizes` replaces the values of `size` declarations; `search` is the folder in which `import "file"` looks.
    """
    stem = name or Path(script.source.name).stem or "program"
    return Program(collector, dict(sizes or {}), search).run(script, stem)


def check_source(source: Source, *, sizes: Mapping[str, int] | None = None, search: Path | None = None,
                 collector: Collector) -> typed.TypedProgram | None:  # fmt: skip
    """Parse and check a source; what parses is checked even after syntax errors, and None is returned for any error."""
    script = parse_recovering(source, collector)
    return check_script(script, collector, sizes=sizes, search=search)
