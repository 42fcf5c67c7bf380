"""Functions of the script: signatures, inlining, captured scopes."""

from __future__ import annotations

from loopfuse.diag import Span
from loopfuse.dtypes import CLASSES, DTYPES, DType
from loopfuse.frontend import ast
from loopfuse.frontend.check.arguments import ELSEWHERE, LATER
from loopfuse.frontend.check.builtins import Builtins
from loopfuse.frontend.check.convert import describe
from loopfuse.frontend.check.modules import library
from loopfuse.frontend.check.values import (
    Array,
    Entry,
    Function,
    Module,
    Poison,
    Scalar,
    Scope,
    Tuple,
    Value,
    View,
    WeakFloat,
    WeakInt,
)
from loopfuse.ir import Affine
from loopfuse.sizes import ONE, Poly

DEEPEST_CALL = 64
MOST_CALLS = 20_000  # of a script, those within functions counted as often as they are inlined


class Calls(Builtins):
    """Calls."""

    # -- finding the function -----------------------------------------------------------------------------------------------

    def callee(self, node: ast.Expr) -> Function:
        """The function that a call names; functions have a namespace of their own."""
        if isinstance(node, ast.Attr):
            module = self.scope.module(node.base.id) if isinstance(node.base, ast.Name) else None
            if module is not None:
                return self.member(module, node)
            if node.name == "dtype":
                return Function("dtype", builtin="dtype")
        if not isinstance(node, ast.Name):
            self.expr(node)
            self.fail("LF0219", "only a function can be called", node.span, "this is a value")
        found = self.scope.function(node.id)
        if found is not None:
            return found
        names = self.builtin_names()
        if node.id in names or node.id in LATER:
            return Function(node.id, builtin=node.id)
        entry = self.scope.find(node.id)
        if entry is not None:
            self.fail("LF0219", f"`{node.id}` is not a function", node.span, f"this is {describe(entry.value)}",
                      fix=f"subscripts are written {node.id}[...]")  # fmt: skip
        known = {*names, *self.known_functions()}
        near = self.suggest(node.id, known)
        fix = f"did you mean `{near}`?" if near else None
        fix = ELSEWHERE.get(node.id, fix)
        for name, text in library().items():
            if f"\nfn {node.id}(" in text:
                fix = f"import {name}, then {name}.{node.id}(...)"
        for module in self.known_modules():
            if node.id in module.scope.functions:
                fix = f"import {module.name}, then {module.name}.{node.id}(...)"
        self.fail("LF0202", f"unknown function `{node.id}`", node.span, "not defined here", fix=fix)

    def member(self, module: Module, node: ast.Attr) -> Function:
        """A function of a module."""
        found = module.scope.functions.get(node.name)
        if found is None:
            near = self.suggest(node.name, module.scope.functions)
            self.fail("LF0202", f"module `{module.name}` has no function `{node.name}`", node.name_span, "not defined there",
                      fix=f"did you mean `{module.name}.{near}`?" if near else None)  # fmt: skip
        return found

    def known_functions(self) -> set[str]:
        """All functions of the script in sight."""
        found: set[str] = set()
        scope: Scope | None = self.scope
        while scope:
            found |= scope.functions.keys()
            scope = scope.parent
        return found

    def known_modules(self) -> list[Module]:
        """All imported modules in sight."""
        found: list[Module] = []
        scope: Scope | None = self.scope
        while scope:
            found += scope.modules.values()
            scope = scope.parent
        return found

    # -- the call -------------------------------------------------------------------------------------------------------------

    def call_function(self, function: Function, node: ast.Call) -> Value:
        """Inline a function: bind its parameters, run its statements, return its values."""
        decl = function.decl
        assert decl is not None
        if decl in self.calling or len(self.calling) >= DEEPEST_CALL:
            self.fail("LF0218", f"`{decl.name}` calls itself", node.span, "recursion has no bound here", (decl.name_span, "defined here"),
                      fix="write a scan")  # fmt: skip
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.fail("LF0218", f"the calls of this script come to more than {MOST_CALLS}", node.span, "functions are inlined",
                      fix="name what is used twice with `let`")  # fmt: skip
        positional = [(a.span, self.argument(a)) for a in node.args]
        keywords = {k: (s, self.argument(v)) for k, v, s in node.kwargs}
        inner = Scope(function.scope, isolated=True)
        dims: dict[str, Poly] = {}
        rest: list[tuple[Poly, ...]] = []
        taken = self.distribute_arguments(decl, positional, keywords, node.span)
        self.calling.append(decl)
        self.call_spans.append(node.span)
        before = self.inherited
        self.inherited = before or len(self.guards)
        try:
            with self.inside(inner):
                for param in decl.params:
                    given = taken.get(param.name)
                    if given is not None:
                        value: Value = given[1]
                    elif param.default is not None:
                        value = self.argument(param.default)
                    else:
                        self.fail(
                            "LF0217",
                            f"`{decl.name}` needs `{param.name}`",
                            node.span,
                            "an argument is missing",
                            (param.span, "declared here"),
                        )
                    where = given[0] if given is not None else param.span
                    self.bind_parameter(inner, decl, param, value, where, dims, rest)
                return self.run_body(decl, inner, dims, node.span)
        finally:
            self.inherited = before
            self.calling.pop()
            self.call_spans.pop()

    def run_body(self, decl: ast.FnDecl, inner: Scope, dims: dict[str, Poly], span: Span) -> Value:
        """The statements and values of a function whose parameters are bound."""
        for statement in decl.body:
            self.statement(statement)
        values = tuple(self.expr(v) for v in decl.values)
        for value, type_ in zip(values, decl.returns or (), strict=False):
            self.check_return(decl, value, type_, dims, span)
        if decl.returns is not None and len(decl.returns) != len(values):
            self.fail(
                "LF0221",
                f"`{decl.name}` returns {len(values)} values, not {len(decl.returns)}",
                decl.name_span,
                "declared otherwise",
            )
        return values[0] if len(values) == 1 else Tuple(values)

    def statement(self, node: ast.Stmt) -> None:
        """Run a statement."""
        raise AssertionError("given by Statements")

    def argument(self, node: ast.Expr) -> Value:
        """An argument: arrays that cost something are stored, so that using a parameter twice costs nothing."""
        if isinstance(node, ast.Name) and self.scope.find(node.id) is None:
            function = self.scope.function(node.id)
            if function is not None:
                return function
            if node.id in self.builtin_names():
                return Function(node.id, builtin=node.id)
        if isinstance(node, ast.Attr) and isinstance(node.base, ast.Name) and self.scope.find(node.base.id) is None:
            module = self.scope.module(node.base.id)
            if module is not None:
                return self.member(module, node)
        value = self.expr(node)
        if isinstance(value, Array) and not value.free:
            return self.materialise(value, "arg", node.span)
        if isinstance(value, Scalar) and not self.equation and self.needed((value.expr,)):
            return self.materialise(value, "arg", node.span)
        return value

    def distribute_arguments(self, decl: ast.FnDecl, positional: list[tuple[Span, Value]], keywords: dict[str, tuple[Span, Value]],
                             span: Span) -> dict[str, tuple[Span, Value]]:  # fmt: skip
        """Arguments by parameter name."""
        names = [p.name for p in decl.params]
        usage = f"{decl.name}({', '.join(names)})"
        if len(positional) > len(names):
            self.fail("LF0217", f"`{decl.name}` takes at most {len(names)} arguments", span, f"{len(positional)} given",
                      (decl.name_span, "defined here"), fix=usage)  # fmt: skip
        taken = dict(zip(names, positional, strict=False))
        for key, given in keywords.items():
            if key not in names:
                near = self.suggest(key, names)
                self.fail("LF0217", f"`{decl.name}` has no parameter `{key}`", given[0], f"did you mean `{near}`?" if near else "unknown",
                          (decl.name_span, "defined here"), fix=usage)  # fmt: skip
            if key in taken:
                self.fail("LF0217", f"`{key}` is given twice", given[0], "given before", fix=usage)
            taken[key] = given
        return taken

    # -- parameters -------------------------------------------------------------------------------------------------------------

    def bind_parameter(self, scope: Scope, decl: ast.FnDecl, param: ast.FnParam, value: Value, where: Span,
                       dims: dict[str, Poly], rest: list[tuple[Poly, ...]]) -> None:  # fmt: skip
        """Check an argument against the parameter's type and bind both the name and the dims."""
        if isinstance(value, Poison):
            self.poisoned(value, where)
        if param.type is not None:
            value = self.suit_type(scope, decl, param, value, where, dims, rest)
        scope.values[param.name] = Entry(value, param.span, "parameter")

    def suit_type(self, scope: Scope, decl: ast.FnDecl, param: ast.FnParam, value: Value, where: Span,
                  dims: dict[str, Poly], rest: list[tuple[Poly, ...]]) -> Value:  # fmt: skip
        """An argument of the parameter's type."""
        type_ = param.type
        assert type_ is not None
        also = ((param.span, f"parameter `{param.name}` of {decl.name}"),)
        kinds = self.head_kinds(type_)
        if isinstance(value, View):
            array: Value = value.array
        else:
            array = value
        if isinstance(array, WeakInt | WeakFloat) and type_.dims is None:
            if isinstance(kinds, DType):
                return (
                    Scalar(self.typed(array, kinds, where))
                    if not isinstance(array, WeakInt) or kinds.is_float
                    else value
                )
            return value
        if not isinstance(array, Array | Scalar):
            self.fail("LF0222", f"`{param.name}` cannot be {describe(value)}", where, f"needs {type_.span.text}", *also)
        fits = array.dtype == kinds if isinstance(kinds, DType) else array.dtype.kind in kinds
        if not fits:
            self.fail("LF0222", f"`{param.name}` is {array.dtype}, needs {type_.head}", where, f"this is {describe(array)}", *also,
                      fix=f"convert it: {type_.head if isinstance(kinds, DType) else 'f32'}({where.text})")  # fmt: skip
        shape = array.shape if isinstance(array, Array) else ()
        if type_.dims is not None:
            self.unify(scope, param, type_, shape, where, dims, rest, describe(array))
        elif shape:
            self.fail(
                "LF0222",
                f"`{param.name}` is an array",
                where,
                f"needs a scalar {type_.head}",
                *also,
                fix=f"{type_.head}[...] takes arrays",
            )
        return value

    def head_kinds(self, type_: ast.TypeExpr) -> DType | tuple[str, ...]:
        """What the head of a parameter's type admits."""
        if type_.head in CLASSES:
            return CLASSES[type_.head]
        return self.dtype_named(type_)

    def dtype_named(self, type_: ast.TypeExpr) -> DType:
        """The dtype that a type names."""
        found = DTYPES.get(type_.head)
        if found is None:
            near = self.suggest(type_.head, (*DTYPES, *CLASSES))
            complex_ = type_.head in ("c64", "c128", "complex", "complex64", "complex128")
            alias = {"float": "f32", "double": "f64", "int": "i32", "long": "i64", "half": "f16", "float32": "f32", "float64": "f64",
                     "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "int64": "i64", "uint8": "u8", "byte": "u8",
                     "num": "f32", "any": "f32", "str": "", "string": ""}.get(type_.head)  # fmt: skip
            message = f"unknown dtype `{type_.head}`" + (": carry real and imaginary part" if complex_ else "")
            fix = f"did you mean `{alias or near}`?" if (alias or near) and not complex_ else None
            self.fail(
                "LF0201",
                message,
                type_.head_span,
                "not a dtype of the language",
                notes=(f"the dtypes are {' '.join(DTYPES)}",),
                fix=fix,
            )
        return found

    def unify(self, scope: Scope, param: ast.FnParam, type_: ast.TypeExpr, shape: tuple[Poly, ...], where: Span,
              dims: dict[str, Poly], rest: list[tuple[Poly, ...]], what: str) -> None:  # fmt: skip
        """Match a shape with the dims of a parameter; a name not seen before in this signature takes the extent."""
        assert type_.dims is not None
        own = list(type_.dims)
        dots = next((k for k, d in enumerate(own) if isinstance(d, ast.Rest)), None)
        fixed = len(own) - (dots is not None)
        if len(shape) < fixed or (dots is None and len(shape) != fixed):
            self.fail("LF0222", f"`{param.name}` has {len(shape)} axes, needs {type_.span.text}", where, f"this is {what}",
                      (param.span, "declared here"))  # fmt: skip
        if dots is not None:
            lead = shape[dots : len(shape) - (fixed - dots)]
            if rest and not self.same_lead(rest[0], lead):
                self.fail("LF0402", "the leading axes of two arguments differ", where, f"[{', '.join(map(str, lead))}] here",
                          notes=("`...` in two parameters means equal leading axes",))  # fmt: skip
            rest.append(lead)
            shape = (*shape[:dots], *shape[len(shape) - (fixed - dots) :])
            own.pop(dots)
        for dim, extent in zip(own, shape, strict=True):
            assert not isinstance(dim, ast.Rest)
            self.unify_dim(scope, param, dim, extent, where, dims)

    def same_lead(self, a: tuple[Poly, ...], b: tuple[Poly, ...]) -> bool:
        """Whether two runs of leading axes are equal; one may be shorter, for a vector beside a batch."""
        return len(a) == len(b) and all(self.same(x, y) for x, y in zip(a, b, strict=True))

    def unify_dim(
        self, scope: Scope, param: ast.FnParam, dim: ast.Expr, extent: Poly, where: Span, dims: dict[str, Poly]
    ) -> None:
        """Match one extent."""
        if isinstance(dim, ast.Name) and dim.id == "_":
            return
        if (
            isinstance(dim, ast.Name)
            and dim.id not in dims
            and (dim.id not in scope.values or scope.values[dim.id].what != "parameter")
        ):
            dims[dim.id] = extent
            scope.values[dim.id] = Entry(WeakInt(Affine(extent)), dim.span, "dim")
            return
        value = self.expr(dim)
        poly = value.poly if isinstance(value, WeakInt) else None
        if poly is None:
            self.fail("LF0309", "a dim must be made of sizes", dim.span, f"this is {describe(value)}")
        if (extent == ONE and poly != ONE) or not self.require_equal(
            poly, extent, f"`{param.name}` must have this extent", where
        ):
            self.fail("LF0222", f"`{param.name}` has extent {extent}, needs {dim.span.text} = {poly}", where, "extents differ",
                      (dim.span, f"{dim.span.text} is {poly} in this call"))  # fmt: skip

    def check_return(
        self, decl: ast.FnDecl, value: Value, type_: ast.TypeExpr, dims: dict[str, Poly], span: Span
    ) -> None:
        """A returned value against the declared type."""
        kinds = self.head_kinds(type_)
        element = self.element(value, span)
        if isinstance(element, WeakInt | WeakFloat):
            return
        fits = element.dtype == kinds if isinstance(kinds, DType) else element.dtype.kind in kinds
        shape = element.shape if isinstance(element, Array) else ()
        own = type_.dims or ()
        dots = any(isinstance(d, ast.Rest) for d in own)
        if not fits or (not dots and len(own) != len(shape)) or len(shape) < len(own) - 1:
            self.fail("LF0221", f"`{decl.name}` returns {describe(element)}, declared {type_.span.text}", type_.span, "declared here",
                      (span, "in this call"))  # fmt: skip
        tail = [d for d in own if not isinstance(d, ast.Rest)]
        if dots:
            first = next(k for k, d in enumerate(own) if isinstance(d, ast.Rest))
            shape = (*shape[:first], *shape[len(shape) - (len(tail) - first) :])
        for dim, extent in zip(tail, shape, strict=True):
            found = self.expr(dim)
            poly = found.poly if isinstance(found, WeakInt) else None
            if poly is not None and not self.require_equal(poly, extent, "the declared extent of a result", dim.span):
                self.fail("LF0221", f"`{decl.name}` returns extent {extent}, declared {dim.span.text} = {poly}", dim.span, "declared here",
                          (span, "in this call"))  # fmt: skip
