"""Integer expressions as exact polynomials; what is not polynomial becomes an atom named by its structure.

Arithmetic wraps at its width, so an operation is exact only where its value fits the type: proved by ranges, or taken
for granted for the small multiples of indices, sizes and params that 32 and 64 bits are made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from loopfuse.constants import to_number
from loopfuse.dtypes import DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.prove.bounds import extremes
from loopfuse.prove.entail import proves_fast
from loopfuse.prove.state import NO_TAGS, Opaque, State, Tags
from loopfuse.sizes import ONE, Poly

Value = tuple[Poly, Tags]
_TAME = frozenset(
    ("minimum", "maximum", "clip", "abs", "sign", "bitand", "bitor", "bitxor", "floordiv", "mod", "shr", "popcount",
     "where")
)  # fmt: skip
_DEPTH = 5  # definitions looked through inside each other
_DEEPEST = 40  # operations inside each other that are still read
_DEEPEST_DEFINITION = 20


def readable(e: Expr, definition: bool = False) -> bool:
    """Whether an expression is shallow enough to be read (recursively) by the prover."""
    level = [e]
    for _ in range(_DEEPEST_DEFINITION if definition else _DEEPEST):
        below: list[Expr] = []
        for at in level:
            if isinstance(at, Op):
                below += at.args
            elif isinstance(at, Load):
                below += at.subs
            elif isinstance(at, Select):
                below += (at.cond, at.then, at.other)
        if not below:
            return True
        level = below
    return False


@contextmanager
def deeper(state: State) -> Iterator[None]:
    """One more definition inside the definitions that are looked through."""
    state.ctx.depth += 1
    try:
        yield
    finally:
        state.ctx.depth -= 1


def may_look(state: State) -> bool:
    """Whether another definition may be looked through here."""
    return state.ctx.depth < _DEPTH


def integer(state: State, e: Expr) -> Value | None:
    """The value of an integer expression and what that rests on; None for bools and floats."""
    if isinstance(e, Affine):
        return e.poly, NO_TAGS
    if not e.dtype.is_int:
        return None
    key = ("integer", e)
    found: Value | None = state.memo.get(key)
    if found is None:
        found = state.memo[key] = _integer(state, e)
    return found


def _integer(state: State, e: Expr) -> Value:
    if isinstance(e, Const):
        return Poly.of(int(to_number(e.bits, e.dtype))), NO_TAGS
    if isinstance(e, Ref):
        state.ctx.opaque.setdefault(e.id, Opaque(e, frozenset((e.id,)), True))
        return Poly.of(e.id), NO_TAGS
    if isinstance(e, Load):
        inside = looked_through(state, e)
        if inside is not None and e.buffer not in state.ranges:
            with deeper(state):
                value = integer(state, inside)
            if value is not None:
                return value
        return _atom(state, e), NO_TAGS
    if isinstance(e, Op) and e.op in _EXACT:
        exact = _EXACT[e.op](state, e)
        if exact is not None:
            poly, tags = exact
            why = fits(state, poly, e.dtype)
            if why is not None:
                return poly, tags | why
    return _atom(state, e), NO_TAGS


# -- exact operations -------------------------------------------------------------------------------------------------


def _arguments(state: State, e: Op) -> tuple[list[Poly], Tags] | None:
    polys, tags = [], NO_TAGS
    for arg in e.args:
        value = integer(state, arg)
        if value is None:
            return None
        polys.append(value[0])
        tags |= value[1]
    return polys, tags


def _arithmetic(combine: Callable[..., Poly | None]) -> Callable[[State, Op], Value | None]:
    def exact(state: State, e: Op) -> Value | None:
        args = _arguments(state, e)
        poly = combine(*args[0]) if args else None
        return (poly, args[1]) if args and poly is not None else None

    return exact


def _power(base: Poly, exponent: Poly) -> Poly | None:
    if not exponent.is_const or not 0 <= exponent.constant <= 4:
        return None
    result = ONE
    for _ in range(exponent.constant):
        result = result * base
    return result


def _divided(state: State, e: Op) -> Value | None:
    """`//`, `%` and `>>` where the divisor is proved not to be zero (which would give zero)."""
    args = _arguments(state, e)
    if args is None:
        return None
    (num, den), tags = args
    if e.op == "shr":
        if not den.is_const or not 0 <= den.constant < e.dtype.bits:
            return None
        return num // (1 << den.constant), tags
    why = NO_TAGS if den.is_const else proves_fast(state, den - 1)
    if why is None:
        return None
    return (num // den if e.op == "floordiv" else num % den), tags | why


def _shifted(state: State, e: Op) -> Value | None:
    args = _arguments(state, e)
    if args is None or not args[0][1].is_const or not 0 <= args[0][1].constant < e.dtype.bits:
        return None
    return args[0][0] * (1 << args[0][1].constant), args[1]


def _cast(state: State, e: Op) -> Value | None:
    return integer(state, e.args[0])


def _inverted(state: State, e: Op) -> Value | None:
    value = integer(state, e.args[0])
    if value is None:
        return None
    return (e.dtype.greatest if e.dtype.kind == "uint" else -1) - value[0], value[1]


_EXACT: dict[str, Callable[[State, Op], Value | None]] = {
    "add": _arithmetic(lambda a, b: a + b),
    "sub": _arithmetic(lambda a, b: a - b),
    "mul": _arithmetic(lambda a, b: a * b),
    "neg": _arithmetic(lambda a: -a),
    "pow": _arithmetic(_power),
    "floordiv": _divided,
    "mod": _divided,
    "shr": _divided,
    "shl": _shifted,
    "cast": _cast,
    "invert": _inverted,
}


def fits(state: State, poly: Poly, dtype: DType) -> Tags | None:
    """Why the exact value fits the type, or None."""
    poly = state.normal(poly)
    if poly.is_const:
        return NO_TAGS if dtype.least <= poly.constant <= dtype.greatest else None
    granted = dtype.bits >= 32 and _modest(poly, dtype)
    if granted and not state.depends_on_data(poly):
        return NO_TAGS if dtype.kind == "int" else proves_fast(state, poly)
    low = proves_fast(state, poly - dtype.least)
    if low is None:
        return None
    high = proves_fast(state, Poly.of(dtype.greatest) - poly)
    if high is not None:
        return low | high
    if not granted:
        return None
    for bound, tags in extremes(state, poly, state.is_size, upper=True):
        if _modest(bound, dtype):
            return low | tags
    return None


def _modest(poly: Poly, dtype: DType) -> bool:
    """Whether the factors are those of index arithmetic, not of a hash that is meant to wrap."""
    most = 1 << (16 if dtype.bits <= 32 else 31)
    return all(abs(c) <= most for m, c in poly.terms if m) and abs(poly.constant) <= dtype.greatest // 2


# -- definitions ------------------------------------------------------------------------------------------------------


def looked_through(state: State, e: Load) -> Expr | None:
    """The definition of the element that is read, or None."""
    if e.buffer not in state.defs or any(e.modes) or not may_look(state):
        return None
    indices, value = state.defs[e.buffer]
    if len(indices) != len(e.subs):
        return None
    mapping: dict[str, Poly] = {}
    for name, sub in zip(indices, e.subs, strict=True):
        poly = integer(state, sub)
        if poly is None or poly[1]:
            return None
        mapping[name] = poly[0]
    if not mapping:
        return value
    place = f"{e.buffer}[{', '.join(map(str, mapping.values()))}]"
    return _instantiate(state, value, mapping, place)


def _instantiate(state: State, e: Expr, mapping: Mapping[str, Poly], place: str) -> Expr:
    """The expression with the indices replaced; values that belong to the definition are renamed by its place."""

    def affine(poly: Poly) -> Poly:
        values: dict[str, Poly] = {}
        for name in poly.names:
            if name in mapping:
                values[name] = mapping[name]
            elif name in state.lets and may_look(state):
                with deeper(state):
                    let = integer(state, state.lets[name])
                    exact = let is not None and not let[1]
                    values[name] = affine(let[0]) if let and exact else Poly.of(_local(state, name, mapping, place))
            elif _is_local(state, name):
                values[name] = Poly.of(_local(state, name, mapping, place))
        return poly.subs(values)

    def walk(e: Expr) -> Expr:
        if isinstance(e, Affine):
            return Affine(affine(e.poly), span=e.span)
        if isinstance(e, Load):
            return replace(e, subs=tuple(map(walk, e.subs)))
        if isinstance(e, Op):
            return replace(e, args=tuple(map(walk, e.args)))
        if isinstance(e, Select):
            return Select(walk(e.cond), walk(e.then), walk(e.other), span=e.span)
        if isinstance(e, Ref):
            if e.id in state.lets and may_look(state):
                with deeper(state):
                    return walk(state.lets[e.id])
            name = _local(state, e.id, mapping, place)
            state.ctx.opaque.setdefault(name, Opaque(Ref(name, e.dtype), _names_of(mapping) | {name}, True))
            return Ref(name, e.dtype, span=e.span)
        return e

    with deeper(state):
        return walk(e)


def _names_of(mapping: Mapping[str, Poly]) -> frozenset[str]:
    return frozenset[str]().union(*(p.names for p in mapping.values()))


def _is_local(state: State, name: str) -> bool:
    return not (name in state.loops or state.is_size(name))


def _local(state: State, name: str, mapping: Mapping[str, Poly], place: str) -> str:
    """The name of a value that belongs to one element of a definition."""
    found = f"{name}@{place}"
    state.ctx.instances.setdefault(found, (name, dict(mapping)))
    return found


# -- atoms ------------------------------------------------------------------------------------------------------------


def _atom(state: State, e: Expr) -> Poly:
    """The atom that stands for an expression: the same one for the same structure."""
    ctx = state.ctx
    parts: tuple[Expr, ...]
    if isinstance(e, Load):
        parts, head, form = e.subs, e.buffer, "{}[{}]"
    elif isinstance(e, Op):
        parts, head, form = e.args, e.op if e.op not in ("cast", "bits") else e.dtype.name, "{}({})"
    else:
        assert isinstance(e, Select)
        parts, head, form = (e.cond, e.then, e.other), "select", "{}({})"
    inner = tuple(value[0] if (value := integer(state, part)) else part for part in parts)
    key = (type(e), head, e.dtype, inner, e.modes if isinstance(e, Load) else ())
    name = ctx.keys.get(key)
    if name is None:
        shown = ", ".join(str(p) if isinstance(p, Poly) else "..." for p in inner)
        name = form.format(head, shown if len(shown) <= 80 else "...")
        while name in ctx.opaque:
            name += "'"
        names, data = expr_names(state, e)
        # a value that may have wrapped is no index any more: what is taken for granted of those does not hold of it
        data = data or (isinstance(e, Op) and e.op not in _TAME)
        ctx.keys[key] = name
        ctx.opaque[name] = Opaque(e, names, data)
    return Poly.of(name)


def expr_names(state: State, e: Expr) -> tuple[frozenset[str], bool]:
    """All names in an expression, and whether a value that is read occurs."""
    names: set[str] = set()
    data = False
    stack = [e]
    while stack:
        at = stack.pop()
        if isinstance(at, Affine):
            names |= state.ctx.free_names(at.poly)
            data = data or state.depends_on_data(state.normal(at.poly))
        elif isinstance(at, Ref):
            names.add(at.id)
            data = data or at.id not in state.subst or state.depends_on_data(state.subst[at.id])
        elif isinstance(at, Load):
            data = True
            stack += at.subs
        elif isinstance(at, Op):
            stack += at.args
        elif isinstance(at, Select):
            stack += (at.cond, at.then, at.other)
    return frozenset(names), data
