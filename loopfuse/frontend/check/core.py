"""The checker's state: diagnostics, facts, fresh names, what has been emitted so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from loopfuse.diag import Collector, Diagnostic, Fix, Level, Span, error
from loopfuse.dtypes import BOOL, DType
from loopfuse.frontend import typed
from loopfuse.frontend.ast import Call, FnDecl
from loopfuse.frontend.ast import Expr as Ast
from loopfuse.frontend.check.values import Scope, Value
from loopfuse.ir import Affine, Buffer, Const, Dim, Directive, Expr, Load, Op, Ref, Require, Select, Size
from loopfuse.prove import Facts
from loopfuse.sizes import Poly


class Failed(Exception):
    """A diagnostic was added; what was being checked has no value. Caught at the statement."""


@dataclass(frozen=True, slots=True)
class Trip:
    """An enclosing scan: the index of its trips and their number."""

    index: str
    count: Poly


@dataclass
class Core:
    """State shared by all parts of the checker; each part is a class that derives from the one before."""

    collector: Collector
    overrides: dict[str, int] = field(default_factory=dict)
    search: Path | None = None

    def __post_init__(self) -> None:
        # `facts` are all that holds here; `bare` the same without the conditions of lazy arms around.
        self.facts = self.bare = Facts.empty()
        self.common: list[Callable[[Facts], Facts]] = []
        self.guards: tuple[Expr, ...] = ()
        self.guarded = False
        self.dry = False
        self.unreported: list[Diagnostic] = []
        self.taken: dict[str, int] = {}
        self.dims: dict[str, Dim] = {}
        self.trips: tuple[Trip, ...] = ()
        self.equation = False
        self.folds: dict[str, typed.Fold] = {}
        self.lets: dict[str, Expr] = {}
        # The definition in hand: the name and where its right side stands.
        self.defining: tuple[str, Span] | None = None
        self.data_bounds = False
        self.body: list[typed.Stmt] = []
        self.sizes: dict[str, Size] = {}
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[typed.Input] = []
        self.params: list[typed.Param] = []
        self.outputs: list[typed.Output] = []
        self.requires: list[Require] = []
        self.checks: list[typed.Check] = []
        self.directives: list[Directive] = []
        self.names: list[tuple[str, str]] = []
        self.used_domains: set[str] = set()
        self.numerics = "default"
        self.calling: list[FnDecl] = []
        self.calls = 0
        self.call_spans: list[Span] = []
        # How many conditions were around when the outermost call under any began: arrays passed to it may need them.
        self.inherited = 0
        self.open_reductions: list[Call] = []
        self.scope = Scope()

    # -- to be given by later parts -------------------------------------------------------------------------------

    def expr(self, node: Ast) -> Value:
        """The value of an expression."""
        raise AssertionError("given by Exprs")

    # -- diagnostics ------------------------------------------------------------------------------------------------

    def report(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic, with the call that led into a function of the library."""
        if self.dry:
            self.unreported.append(diagnostic)
            return
        self.collector.add(diagnostic)

    def fail(self, code: str, message: str, span: Span | None = None, label: str = "", *also: tuple[Span | None, str],
             notes: Iterable[str] = (), helps: Iterable[str] = (), fix: str | Fix | None = None) -> NoReturn:  # fmt: skip
        """Report an error and give up on what is being checked."""
        if self.call_spans and span and span.source is not self.call_spans[0].source:
            also = (*also, (self.call_spans[0], "in this call"))
        self.report(error(code, message, span, label, *also, notes=notes, helps=helps, fix=fix))
        raise Failed

    def warn(self, code: str, message: str, span: Span | None, label: str = "", *also: tuple[Span | None, str],
             fix: str | None = None, level: Level = "warning") -> None:  # fmt: skip
        """Report a warning or a remark and go on."""
        self.report(error(code, message, span, label, *also, fix=fix, level=level))

    def suggest(self, name: str, known: Iterable[str]) -> str | None:
        """The known name nearest to a misspelt one."""
        near = get_close_matches(name, list(known), 1, 0.6)
        return near[0] if near else None

    # -- names --------------------------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """An id for a name of the source, never given before: `x`, then `x.1`, `x.2`."""
        if self.dry:
            return f"{name}?"
        count = self.taken.get(name, -1) + 1
        self.taken[name] = count
        return name if count == 0 else f"{name}.{count}"

    def index(
        self, name: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...], span: Span | None = None, given: str = ""
    ) -> Dim:
        """A new loop index, known to the facts; `given` is an id made before."""
        dim = Dim(given or self.fresh(name), lo, hi, span=span)
        self.dims[dim.id] = dim
        self.update(lambda facts: facts.index(dim.id, lo, hi))
        return dim

    # -- facts --------------------------------------------------------------------------------------------------------

    def update(self, fact: Callable[[Facts], Facts]) -> None:
        """Add a fact here; outside lazy arms both sets are one."""
        same = self.facts is self.bare
        self.facts = fact(self.facts)
        self.bare = self.facts if same else fact(self.bare)

    def know(self, fact: Callable[[Facts], Facts]) -> None:
        """Add a fact that holds from now on, in every context."""
        if self.dry:
            return
        self.common.append(fact)
        self.update(fact)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Facts and guards added inside are forgotten after, but those of `know` stay."""
        facts, bare, count, guards = self.facts, self.bare, len(self.common), self.guards
        try:
            yield
        finally:
            self.facts, self.bare, self.guards = facts, bare, guards
            for fact in self.common[count:]:
                self.update(fact)

    @contextmanager
    def under(self, cond: Expr, truth: bool = True) -> Iterator[None]:
        """Inside, `cond` holds (or does not): proofs may use it, and what they let through is marked as guarded."""
        with self.context():
            self.facts = self.facts.assume(cond, truth)
            self.guards = (*self.guards, cond if truth else Op("not", (cond,), BOOL, span=cond.span))
            yield

    @contextmanager
    def watch(self) -> Iterator[Callable[[], bool]]:
        """Yields a question: has a proof since then needed the conditions around?"""
        before = self.guarded
        self.guarded = False
        try:
            yield lambda: self.guarded
        finally:
            self.guarded = self.guarded or before

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Inside, nothing is reported, emitted or required: used to ask for a shape."""
        before = self.dry
        self.dry = True
        try:
            with self.context():
                yield
        finally:
            self.dry = before

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[Scope]:
        """Evaluate in another scope."""
        before = self.scope
        self.scope = scope
        try:
            yield scope
        finally:
            self.scope = before

    def require_nonneg(self, poly: Poly, why: str, span: Span | None) -> bool:
        """Whether `poly >= 0` is proved or can be required of sizes and params; then it is known from now on."""
        if self.facts.nonneg(poly):
            return True
        if self.facts.negative(poly) or not self.is_size(poly):
            return False
        if not self.dry:
            cond = Op("ge", (Affine(poly), Affine(Poly.of(0))), BOOL, span=span)
            self.requires.append(Require(cond, why, implied=True, span=span))
            self.warn("LF0703", f"requires {condition(poly)}", span, why, level="remark")
            self.know(lambda facts: facts.assume(cond))
        return True

    def require_equal(self, a: Poly, b: Poly, why: str, span: Span | None) -> bool:
        """Whether two extents are equal, or differ only through a floor division and can be required equal."""
        if a == b or self.facts.zero(a - b):
            return True
        difference = a - b
        if self.facts.unequal(a, b) or not any(difference.quotients()) or not self.is_size(difference):
            return False
        if not self.dry:
            cond = Op("eq", (Affine(a), Affine(b)), BOOL, span=span)
            self.requires.append(Require(cond, why, implied=True, span=span))
            self.warn("LF0703", f"requires {a} == {b}", span, why, level="remark")
            self.know(lambda facts: facts.assume(cond))
        return True

    def is_size(self, poly: Poly, params: bool = True) -> bool:
        """Whether a polynomial mentions sizes (and, if `params`, integer params) only."""
        return all(n in self.sizes and (params or self.sizes[n].origin != "param") for n in poly.names)


def condition(poly: Poly) -> str:
    """`poly >= 0` with the negative terms on the right, as a person would write it."""
    left = Poly(tuple((m, c) for m, c in poly.terms if c > 0))
    right = Poly(tuple((m, -c) for m, c in poly.terms if c < 0))
    return f"{left} >= {right}"


def refs(exprs: Iterable[Expr | None]) -> set[str]:
    """The ids of all Refs in the expressions."""
    return {e.id for e in parts(exprs) if isinstance(e, Ref)}


def index_names(exprs: Iterable[Expr | None]) -> set[str]:
    """All names in the polynomials of the expressions."""
    found: set[str] = set()
    for e in parts(exprs):
        if isinstance(e, Affine):
            found |= e.poly.names
    return found


def parts(exprs: Iterable[Expr | None]) -> Iterator[Expr]:
    """Every expression inside the given ones, each object once."""
    stack = [e for e in exprs if e is not None]
    seen: set[int] = set()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        match e:
            case Op(args=args):
                stack.extend(args)
            case Load(subs=subs):
                stack.extend(subs)
            case Select(cond=cond, then=then, other=other):
                stack.extend((cond, then, other))
            case Const() | Affine() | Ref():
                pass


def fold_exprs(fold: typed.Fold) -> tuple[Expr | None, ...]:
    """The expressions of a fold."""
    return (fold.value, fold.where, fold.guard, fold.at, *(e for _, e in fold.lets))


def conjunction(conds: Iterable[Expr | None]) -> Expr | None:
    """All of the conditions, lazily from left to right; None for none."""
    result: Expr | None = None
    for cond in conds:
        if cond is not None:
            result = cond if result is None else Select(result, cond, Const(0, BOOL), span=cond.span)
    return result


def cast(e: Expr, dtype: DType, implied: bool = True) -> Expr:
    """`e` converted to `dtype`; nothing where it already has that type and the cast is not the user's."""
    if e.dtype == dtype:
        return e
    return Op("cast", (e,), dtype, implied=implied, span=e.span)
