"""`Code` as JSON and back. Names of the classes stand in the text, and no others are ever made from it.

A span is kept as the name of its source and two offsets; on reading it is put together with the source of that name, and
left out where none is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from loopfuse.diag import CompilerError, Source, Span
from loopfuse.dtypes import DTYPES, DType
from loopfuse.emit.code import (
    Chosen,
    Code,
    Fault,
    Fill,
    KernelCode,
    Launch,
    Memory,
    Number,
    Param,
    Pointer,
    Repeat,
    TileMap,
    Tiling,
)
from loopfuse.outside import read_json
from loopfuse.sizes import Atom, Poly, Quot

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Chosen, Code, KernelCode, Launch, Fill, Repeat, Memory, Fault, Pointer, Number, Param, TileMap, Tiling)
}


def to_json(code: Code) -> str:
    """The text of a `Code`."""
    return json.dumps(to_plain(code), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, sources: Iterable[Source] = ()) -> Code:
    """The `Code` of a text that `to_json` made. Raises ValueError for another text."""
    return from_plain(read_json(text), sources)


def to_plain(code: Code) -> dict[str, Any]:
    """A `Code` as what JSON can hold."""
    found: dict[str, Any] = _plain(code)
    return found


def from_plain(plain: object, sources: Iterable[Source] = ()) -> Code:
    """The `Code` that `to_plain` made into `plain`. Raises ValueError for anything else."""
    try:
        found = _Reader({s.name: s for s in sources}).value(plain)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise ValueError(f"this is no record of a program: {why!r}") from why
    if not isinstance(found, Code):
        raise ValueError("this is the record of something else than a program")
    return found


# -- writing ----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """JSON of a value: `{"is": class, field: value}` without fields at their defaults; tuples are lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Poly):
        return {"poly": _terms(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, Span):
        return {"span": [value.source.name, value.start, value.end]}
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    if isinstance(value, dict):
        return {"map": {key: _plain(item) for key, item in value.items()}}
    if type(value).__name__ not in _KINDS:
        raise CompilerError("cuda", f"a {type(value).__name__} in a program cannot be recorded")
    kept = {f.name: _plain(item) for f in fields(value) if (item := getattr(value, f.name)) != _default(f)}
    return {"is": type(value).__name__, **kept}


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _terms(poly: Poly) -> Any:
    """A number for a constant, else `[coefficient, atoms...]` a term; a quotient is `[numerator, denominator]`."""
    if poly.is_const:
        return poly.constant
    return [[c, *(a if isinstance(a, str) else [_terms(a.num), _terms(a.den)] for a in m)] for m, c in poly.terms]


# -- reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    def value(self, plain: Any) -> Any:
        """The value of a piece of JSON; None for a span whose source is not known."""
        if isinstance(plain, list):
            found = [self.value(item) for item in plain]
            return tuple(v for v, p in zip(found, plain, strict=True) if v is not None or p is None)
        if not isinstance(plain, dict):
            return plain
        if "is" in plain:
            return _KINDS[plain["is"]](**{k: self.value(v) for k, v in plain.items() if k != "is"})
        ((kind, content),) = plain.items()
        if kind == "poly":
            return self.poly(content)
        if kind == "dtype":
            return DTYPES[content]
        if kind == "span":
            name, start, end = content
            return Span(self.sources[name], start, end) if name in self.sources else None
        if kind == "set":
            return frozenset(content)
        if kind == "map":
            return {key: self.value(item) for key, item in content.items()}
        raise ValueError(f"nothing is recorded as `{kind}`")

    def poly(self, plain: Any) -> Poly:
        """A polynomial, from the terms as they were: they are in normal form."""
        if isinstance(plain, int):
            return Poly.of(plain)
        return Poly(tuple((tuple(self.atom(a) for a in atoms), int(c)) for c, *atoms in plain))

    def atom(self, plain: Any) -> Atom:
        """A name or a quotient."""
        return plain if isinstance(plain, str) else Quot(*map(self.poly, plain))
