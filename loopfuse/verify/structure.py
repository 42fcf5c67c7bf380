"""Invariants of names, types and shapes: what can be said of a statement without following memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from loopfuse.dtypes import BOOL, DTYPES, I64, DType
from loopfuse.ir import Acc, Affine, Buffer, Const, Expr, Load, Loop, Mode, Op, Ref, Select, Store
from loopfuse.ops import MONOIDS, OPS
from loopfuse.printer import RESERVED, WORD, print_expr
from loopfuse.prove import Facts
from loopfuse.rewrite import polys, subexprs
from loopfuse.sizes import Poly
from loopfuse.verify.layout import Layout, Site

Problem = tuple[str, Site | None]

# The modes, and whether they have a fill.
MODES = {"edge": False, "constant": True, "wrap": False, "reflect": False, "symmetric": False, "checked": False}


# -- declarations -----------------------------------------------------------------------------------------------------


def identifiers(v: Layout) -> Iterator[Problem]:
    """Ids are words, and each means one thing; only an index may recur, in loops that do not enclose one another."""
    for id, found in v.scopes.items():
        if not WORD.fullmatch(id) or id in RESERVED:
            yield f"`{id}` is no id", None
        for a, b in pairwise(found):
            if a.kind != "index" or b.kind != "index" or b.start < a.end:
                yield f"`{id}` is defined twice, as {a.kind} and as {b.kind}", None
    kernels = [k.id for k in v.program.kernels]
    for id in kernels:
        if not WORD.fullmatch(id) or id in RESERVED:
            yield f"`{id}` is no id", None
    if len(set(kernels)) < len(kernels):
        yield f"kernel `{next(k for k in kernels if kernels.count(k) > 1)}` is defined twice", None


def sizes(v: Layout) -> Iterator[Problem]:
    """A size is an integer that its own declaration allows."""
    for s in v.program.sizes:
        if s.origin not in ("shape", "compile", "param", "plan"):
            yield f"size `{s.id}` has the unknown origin `{s.origin}`", None
        if not s.dtype.is_int or s.dtype == DTYPES["u64"]:
            yield f"size `{s.id}` is {s.dtype}", None
        if s.multiple < 1:
            yield f"size `{s.id}` is a multiple of {s.multiple}", None
        elif s.value is not None and (s.value % s.multiple or (s.least is not None and s.value < s.least)):
            yield f"size `{s.id}` cannot be {s.value}", None
    if v.program.numerics not in ("strict", "default", "fast"):
        yield f"unknown numerics `{v.program.numerics}`", None


def buffers(v: Layout) -> Iterator[Problem]:
    """Shapes and ranges are over sizes; only temporaries have windows (over sizes and indices) or are local."""
    known = {s.id for s in v.program.sizes}
    indices = {id for id, found in v.scopes.items() if any(d.kind == "index" for d in found)}
    for b in v.program.buffers:
        if b.role not in ("in", "param", "out", "temp", "frozen") or b.scope not in ("device", "local"):
            yield f"buffer `{b.id}` is {b.role} {b.scope}", None
        for name in sorted(_names(b.shape) - known):
            yield f"the shape of `{b.id}` mentions `{name}`, which is no size", None
        if b.role != "temp" and (b.scope == "local" or b.window is not None):
            yield f"`{b.id}` is {b.role} and has a window or is local", None
        if b.window is not None:
            if len(b.window) != len(b.shape):
                yield f"the window of `{b.id}` has {len(b.window)} axes, its shape {len(b.shape)}", None
            if not all(low and high for low, high in b.window):
                yield f"an interval of the window of `{b.id}` has no bound", None
            for name in sorted(_names(p for i in b.window for side in i for p in side) - known - indices):
                yield f"the window of `{b.id}` mentions `{name}`", None
        if b.range is not None:
            if not b.dtype.is_int:
                yield f"`{b.id}` is {b.dtype} and has a range", None
            for name in sorted(_names(p for side in b.range for p in side) - known):
                yield f"the range of `{b.id}` mentions `{name}`, which is no size", None


def requires(v: Layout) -> Iterator[Problem]:
    """A requirement is a bool over sizes and params."""
    known = {s.id for s in v.program.sizes}
    params = {b.id for b in v.program.buffers if b.role == "param"}
    for r in v.program.requires:
        if r.cond.dtype != BOOL:
            yield f"the requirement `{print_expr(r.cond)}` is {r.cond.dtype}", None
        for node in subexprs(r.cond):
            ok = not isinstance(node, Ref)
            if isinstance(node, Affine):
                ok = node.poly.names <= known
            elif isinstance(node, Load):
                ok = node.buffer in params
            if not ok:
                yield f"the requirement `{print_expr(r.cond)}` mentions `{print_expr(node)}`", None
        yield from ((problem, None) for problem in _types(subexprs(r.cond), {}))


def _names(polys: Iterable[Poly]) -> set[str]:
    return set().union(*(p.names for p in polys))


# -- names ------------------------------------------------------------------------------------------------------------


def names(v: Layout) -> Iterator[Problem]:
    """What a statement mentions is defined before it in an enclosing block; bounds mention outer names only."""
    for site in v.sites:
        stmt = site.stmt
        at = site.inside
        for poly in polys(stmt):
            yield from _poly_names(v, poly, site, site.position)
        for node in site.nodes:
            if isinstance(node, Affine):
                yield from _poly_names(v, node.poly, site, at)
            elif isinstance(node, Ref):
                found = v.visible(node.id, at)
                if found is None or found.is_array or found.kind in ("size", "index"):
                    yield f"`{node.id}` is no value here", site
                elif found.dtype != node.dtype:
                    yield f"`{node.id}` is {found.dtype}, not {node.dtype}", site
            elif isinstance(node, Load):
                found = v.visible(node.buffer, at)
                if found is None or not found.is_array:
                    yield f"`{node.buffer}` is no array here", site
                elif found.dtype != node.dtype:
                    yield f"`{node.buffer}` holds {found.dtype}, not {node.dtype}", site
        if isinstance(stmt, Store) and v.visible(stmt.buffer, site.position) is None:
            yield f"`{stmt.buffer}` is not defined here", site


def _poly_names(v: Layout, poly: Poly, site: Site, at: int) -> Iterator[Problem]:
    """The names of a polynomial are sizes, indices and integer lets."""
    for name in sorted(poly.names):
        found = v.visible(name, at)
        if found is None:
            yield f"`{name}` in `{poly}` is not defined here", site
        elif found.kind in ("buffer", "acc") or not found.dtype.is_int or found.dtype == DTYPES["u64"]:
            yield f"`{name}` in `{poly}` is no size, index or integer let", site


# -- types and ranks --------------------------------------------------------------------------------------------------


def types(v: Layout) -> Iterator[Problem]:
    """Operands have the types that the op table asks for; what is stored has the type of its target."""
    seen: dict[int, Expr] = {}
    for site in v.sites:
        stmt = site.stmt
        yield from ((problem, site) for problem in _types(site.nodes, seen))
        if isinstance(stmt, Loop):
            if stmt.where is not None and stmt.where.dtype != BOOL:
                yield f"the condition of the loop is {stmt.where.dtype}", site
            for acc in stmt.accs:
                yield from ((problem, site) for problem in _acc_types(acc))
                if acc.repair is not None:
                    yield from ((problem, site) for problem in _types(subexprs(acc.repair), seen))
        elif isinstance(stmt, Store):
            target = v.visible(stmt.buffer, site.position)
            wanted = target.node.dtype if target and isinstance(target.node, Acc | Buffer) else stmt.value.dtype
            if stmt.value.dtype != wanted:
                yield f"`{stmt.buffer}` holds {wanted}, the value is {stmt.value.dtype}", site
            if stmt.at is not None and stmt.at.dtype != I64:
                yield f"the position is {stmt.at.dtype}", site


def _acc_types(acc: Acc) -> Iterator[str]:
    monoid = MONOIDS.get(acc.monoid)
    if monoid is not None:
        wrong = OPS[monoid.op].problem((acc.dtype, acc.dtype), BOOL if monoid.positional else acc.dtype)
        if acc.dtype.kind not in monoid.kinds or wrong:
            yield f"`{acc.id}`: `{acc.monoid}` is not defined for {acc.dtype}"


def _types(nodes: Iterable[Expr], seen: dict[int, Expr]) -> Iterator[str]:
    """The problems of nodes; those in `seen` were looked at before."""
    for node in nodes:
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, Op):
            row = OPS.get(node.op)
            wrong = row.problem([a.dtype for a in node.args], node.dtype) if row else f"unknown operation `{node.op}`"
            if wrong:
                yield wrong
            if node.implied and node.op != "cast":
                yield f"`{node.op}` is marked as implied"
        elif isinstance(node, Select):
            if node.cond.dtype != BOOL:
                yield f"the condition of a select is {node.cond.dtype}"
            if node.then.dtype != node.other.dtype:
                yield f"the arms of a select are {node.then.dtype} and {node.other.dtype}"
        elif isinstance(node, Load):
            yield from _access(node.subs, node.modes, node.dtype)
        elif isinstance(node, Const):
            yield from _const(node)


def _const(node: Const) -> Iterator[str]:
    if not 0 <= node.bits < 1 << node.dtype.bits:
        yield f"the bits {node.bits:#x} are not those of a {node.dtype}"


def _access(subs: tuple[Expr, ...], modes: tuple[Mode | None, ...], dtype: DType | None) -> Iterator[str]:
    """Subscripts are i64; a mode an axis; a fill, of the element type, only and always with `constant`."""
    for sub in subs:
        if sub.dtype != I64:
            yield f"the subscript `{print_expr(sub)}` is {sub.dtype}"
    for mode in modes:
        if mode is None:
            continue
        if mode.kind not in MODES:
            yield f"unknown mode `{mode.kind}`"
        elif MODES[mode.kind] != (mode.fill is not None):
            yield f"`{mode.kind}` {'needs a' if MODES[mode.kind] else 'takes no'} fill"
        if dtype is None and mode.kind != "checked":
            yield f"a store has the mode `{mode.kind}`"
        if mode.fill is not None:
            yield from _const(mode.fill)
            if dtype is not None and mode.fill.dtype != dtype:
                yield f"the fill is {mode.fill.dtype}, the elements are {dtype}"


def ranks(v: Layout) -> Iterator[Problem]:
    """An access has a subscript an axis, and a load a mode (or None) an axis."""
    for site in v.sites:
        stmt = site.stmt
        at = site.inside
        for node in site.nodes:
            if isinstance(node, Load):
                found = v.visible(node.buffer, at)
                if found is not None and (len(node.subs) != len(found.shape) or len(node.modes) != len(found.shape)):
                    yield f"`{node.buffer}` has {len(found.shape)} axes, not {len(node.subs)}", site
        if isinstance(stmt, Store):
            found = v.visible(stmt.buffer, site.position)
            if found is not None and (
                len(stmt.subs) != len(found.shape) or len(stmt.modes) not in (0, len(found.shape))
            ):
                yield f"`{stmt.buffer}` has {len(found.shape)} axes, not {len(stmt.subs)}", site
            yield from ((problem, site) for problem in _access(stmt.subs, stmt.modes, None))


# -- loops and roles --------------------------------------------------------------------------------------------------


def loops(v: Layout) -> Iterator[Problem]:
    """A loop has an index; its bounds are given, its steps positive."""
    facts = size_facts(v)
    for site in v.sites:
        if not isinstance(site.stmt, Loop):
            continue
        if not site.stmt.dims:
            yield "the loop has no index", site
        if site.stmt.order not in ("par", "seq", "prefix"):
            yield f"the loop has the unknown order `{site.stmt.order}`", site
        for dim in site.stmt.dims:
            if not dim.lo or not dim.hi:
                yield f"`{dim.id}` has no bounds", site
            if not (dim.step.constant > 0 if dim.step.is_const else facts.nonneg(dim.step - 1)):
                yield f"the step `{dim.step}` of `{dim.id}` is not positive", site


def size_facts(v: Layout) -> Facts:
    """What the declarations of sizes and the requirements say."""
    facts = Facts.empty()
    for s in v.program.sizes:
        facts = facts.size(s.id, s.least, max(s.multiple, 1), s.value, s.dtype.greatest if s.dtype != I64 else None)
    for r in v.program.requires:
        facts = facts.assume(r.cond)
    return facts


def roles(v: Layout) -> Iterator[Problem]:
    """Only outputs and temporaries are stored to, every output is; a local buffer belongs to one kernel."""
    declared = {b.id: b for b in v.program.buffers}
    used: dict[str, set[int]] = {}
    for id, accesses in (*v.stores.items(), *v.loads.items()):
        used.setdefault(id, set()).update(a.site.kernel for a in accesses)
    for id, stores in v.stores.items():
        if id in declared and declared[id].role not in ("out", "temp"):
            yield f"`{id}` is {declared[id].role} and stored to", stores[0].site
    for b in v.program.buffers:
        if b.role == "out" and b.id not in v.stores:
            yield f"the output `{b.id}` is never written", None
        if b.scope == "local" and len(used.get(b.id, ())) > 1:
            yield f"the local buffer `{b.id}` is used in several kernels", None
