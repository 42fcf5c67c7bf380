"""Arrays made from a word: `randn`, `uniform(0, 1)`, `zeros`, a number.

A specification is parsed before its shape is known and made afterwards. Each input has a random stream of its own,
derived from the seed and the input's name, so that adding an input changes no other.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loopfuse.constants import constant, from_bits, vanishes
from loopfuse.diag import Span, UserError, error
from loopfuse.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]
Scalar = int | float | bool
MOST_DIGITS = 1000  # of a number that is given as a text


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of every element: inclusive bounds, strict where `open_lo` or `open_hi`; None is no bound."""

    lo: float | int | None = None
    hi: float | int | None = None
    open_lo: bool = False
    open_hi: bool = False


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Request:
    """What an input needs: its name, shape, element type, what its domain says, and the seed of the run."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    bounds: Bounds = NO_BOUNDS
    seed: int = 0

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def stream(self) -> np.random.Generator:
        """The input's own random stream."""
        key = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:16], "little")
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, key])))


class Supplier(Protocol):
    """Data whose shape is that of the input it is given to: a generator, or a file without a header."""

    @property
    def text(self) -> str:
        """What the user wrote."""

    def elements(self, dtype: DType) -> int | None:
        """How many elements of `dtype` there are, where that is fixed."""

    def make(self, request: Request) -> Array:
        """The array; raises `UserError` where it cannot be made."""


# -- specifications ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """A generator with its arguments, or (kind `value`) a literal number for an input without axes."""

    kind: str
    args: tuple[Scalar, ...]
    text: str
    span: Span | None = None

    def elements(self, dtype: DType) -> int | None:
        """Any number; a literal is one."""
        return None

    def make(self, request: Request) -> Array:
        """The array, C-contiguous, of the shape and type asked for."""
        if self.kind == "value" and request.shape:
            raise _bad(self, f"`{request.name}` has {len(request.shape)} axes; a number is for an input without axes",
                       fix=f"{request.name}=const({self.text})")  # fmt: skip
        return MAKERS[self.kind](self, request)


def parse_spec(text: str, span: Span | None = None) -> Spec | None:
    """The specification in `text`, or None where it reads as a file name. Raises `UserError` on bad arguments."""
    text = text.strip()
    number = parse_number(text)
    if number is not None:
        return Spec("value", (number,), text, span)
    match = re.fullmatch(r"([a-z]+)\s*(?:\((.*)\))?", text)
    if match is None or match[1] not in ARGUMENTS:
        return None
    kind, inside = match[1], (match[2] or "").strip()
    args: list[Scalar] = []
    for part in inside.split(",") if inside else []:
        value = parse_number(part.strip())
        if value is None:
            raise UserError(error("LF0516", f"`{part.strip()}` in `{text}` is not a number", span))
        args.append(value)
    least, most, form = ARGUMENTS[kind]
    if not least <= len(args) <= most:
        raise UserError(error("LF0516", f"`{text}` has {len(args)} arguments", span, fix=form))
    return Spec(kind, tuple(args), text, span)


def parse_number(text: str) -> Scalar | None:
    """A number as the language writes one (`3`, `-1e-5`, `0x1f`, `true`, `inf`), or None."""
    if len(text) > MOST_DIGITS:
        return None
    words: dict[str, Scalar] = {"true": True, "false": False, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf,
                                "nan": math.nan, "pi": math.pi}  # fmt: skip
    if text in words:
        return words[text]
    if re.fullmatch(r"[+-]?([0-9]+|0x[0-9a-fA-F]+|0b[01]+)", text):
        sign = -1 if text[0] == "-" else 1
        digits = text.lstrip("+-")
        return sign * (int(digits, 0) if digits[:2].lower() in ("0x", "0b") else int(digits))
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return float(text)
    return None


def fit(value: Scalar, dtype: DType) -> Array | None:
    """`value` as a 0-d array of `dtype` (floats round to nearest), or None where the type cannot hold it.

    A float never becomes an integer, a number never becomes a bool, and a finite number never becomes infinite or,
    unless it is zero, zero.
    """
    if isinstance(value, bool) != (dtype.kind == "bool") or (dtype.is_int and not isinstance(value, int)):
        return None
    try:
        bits = constant(value, dtype)
    except ValueError:
        return None
    made = np.asarray(from_bits(bits, dtype))
    overflows = dtype.is_float and np.isinf(made) and (isinstance(value, int) or math.isfinite(value))
    return None if overflows or vanishes(value, dtype) else made


def _bad(spec: Spec, message: str, fix: str | None = None) -> UserError:
    return UserError(error("LF0516", f"`{spec.text}`: {message}", spec.span, fix=fix))


# -- makers -----------------------------------------------------------------------------------------------------------


def _work_type(dtype: DType) -> type[np.float32] | type[np.float64]:
    return np.float64 if dtype.bits == 64 else np.float32


def _need_float(spec: Spec, request: Request, instead: str) -> None:
    if not request.dtype.is_float:
        raise _bad(spec, f"`{request.name}` is {request.dtype}, and {spec.kind} makes floats",
                   fix=f"{request.name}={instead}")  # fmt: skip


def _randn(spec: Spec, request: Request) -> Array:
    _need_float(spec, request, "randint(0, 10)")
    mean: Scalar = spec.args[0] if spec.args else 0
    std: Scalar = spec.args[1] if len(spec.args) > 1 else 1
    if not std >= 0:
        raise _bad(spec, f"a standard deviation of {std} has no meaning", fix=f"randn({mean}, 1)")
    work = _work_type(request.dtype)
    made = request.stream().standard_normal(request.shape, dtype=work)
    with np.errstate(all="ignore"):
        return np.asarray(made * work(std) + work(mean)).astype(request.dtype.numpy)


def _uniform(spec: Spec, request: Request) -> Array:
    _need_float(spec, request, "randint(0, 10)")
    if len(spec.args) == 1:
        raise _bad(spec, "needs two bounds or none", fix="uniform(lo, hi)")
    lo, hi = spec.args or (0, 1)
    if not (lo <= hi and math.isfinite(lo) and math.isfinite(hi)):
        raise _bad(spec, "the first bound must be finite and at most the second")
    work = _work_type(request.dtype)
    made = request.stream().random(request.shape, dtype=work)
    with np.errstate(all="ignore"):
        return np.asarray(made * work(hi - lo) + work(lo)).astype(request.dtype.numpy)


def _randint(spec: Spec, request: Request) -> Array:
    lo, hi = spec.args
    if not (isinstance(lo, int) and isinstance(hi, int) and lo < hi):
        raise _bad(spec, "the bounds must be integers, the first (inclusive) below the second (exclusive)")
    if fit_all((lo, hi - 1), request.dtype) is None:
        raise _bad(spec, f"{lo} to {hi - 1} does not fit in {request.dtype}")
    return _integers(request, lo, hi - 1)


def fit_all(values: tuple[int, ...], dtype: DType) -> tuple[int, ...] | None:
    """`values` when `dtype` holds each exactly, else None; a bool holds 0 and 1."""
    if dtype.is_float:
        fits = all(abs(v) <= 1 << dtype.mantissa for v in values)
    else:
        fits = all(dtype.least <= v <= dtype.greatest for v in values)
    return values if fits else None


def _integers(request: Request, least: int, greatest: int) -> Array:
    """Integers from `least` to `greatest`, both inclusive, in the type of the request."""
    kind = np.uint64 if greatest > np.iinfo(np.int64).max else np.int64
    made = request.stream().integers(least, greatest, request.shape, dtype=kind, endpoint=True)
    return np.asarray(made).astype(request.dtype.numpy)


def _constant(spec: Spec, request: Request, value: Scalar) -> Array:
    if request.dtype.kind == "bool" and value in (0, 1):
        value = bool(value)
    made = fit(value, request.dtype)
    if made is None:
        raise _bad(spec, f"{value} does not fit in {request.dtype}")
    return np.full(request.shape, made, request.dtype.numpy)


def _iota(spec: Spec, request: Request) -> Array:
    if request.count and fit_all((request.count - 1,), request.dtype) is None:
        raise _bad(spec, f"{request.count} elements do not count exactly in {request.dtype}")
    return np.arange(request.count, dtype=np.int64).astype(request.dtype.numpy).reshape(request.shape)


def _auto(spec: Spec, request: Request) -> Array:
    """Values of an ordinary size that respect the bounds, which leave some (see `leaves_nothing`)."""
    dtype, bounds = request.dtype, request.bounds
    if dtype.is_float:
        return _auto_float(request)
    if bounds.lo is None and bounds.hi is None and dtype.bits > 8:
        return _integers(request, 0, 3)  # subscripts of most arrays; of the small types every value
    lo, hi = _whole_ends(bounds, dtype)
    if bounds.lo is None and bounds.hi is not None:
        lo = max(lo, hi - 100)
    elif bounds.hi is None and bounds.lo is not None:
        hi = min(hi, lo + 100)
    return _integers(request, lo, hi) if request.count else np.zeros(request.shape, dtype.numpy)


def _auto_float(request: Request) -> Array:
    bounds, stream, work = request.bounds, request.stream(), _work_type(request.dtype)
    if bounds.lo is not None and bounds.hi is not None:
        # 0.01 to 0.99 of the way: rounding never reaches an open end.
        part = 0.01 + 0.98 * stream.random(request.shape, dtype=work)
        made = bounds.lo + part * (bounds.hi - bounds.lo)
    else:
        made = stream.standard_normal(request.shape, dtype=work)
        # Never so near to an open end that rounding reaches it.
        if bounds.lo is not None:
            made = bounds.lo + np.maximum(np.exp(made), abs(bounds.lo) * 2.0 ** (3 - request.dtype.mantissa))
        elif bounds.hi is not None:
            made = bounds.hi - np.maximum(np.exp(made), abs(bounds.hi) * 2.0 ** (3 - request.dtype.mantissa))
    return np.asarray(made).astype(request.dtype.numpy)


def ends(bounds: Bounds, dtype: DType) -> Array:
    """The least and the greatest element of a domain, as far as it has them; they are in the wrong order where it is empty."""
    kind = dtype.numpy
    if not dtype.is_float:
        least, greatest = _whole_ends(bounds, dtype)
        if least > greatest:
            return np.asarray([dtype.greatest, dtype.least], kind)
        return np.asarray([least] * (bounds.lo is not None) + [greatest] * (bounds.hi is not None), kind)
    found: list[Any] = []
    for bound, is_open, way in ((bounds.lo, bounds.open_lo, 1), (bounds.hi, bounds.open_hi, -1)):
        if bound is not None:
            near = np.asarray(bound).astype(kind)
            found.append(np.nextafter(near, np.asarray(way * np.inf, kind)) if is_open else near)
    return np.asarray(found, kind)


def _whole_ends(bounds: Bounds, dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type within bounds; the first is greater where there is none."""
    least, greatest = int(dtype.least), int(dtype.greatest)
    if bounds.lo is not None:
        lo = math.ceil(bounds.lo)
        least = max(least, lo + (bounds.open_lo and lo == bounds.lo))
    if bounds.hi is not None:
        hi = math.floor(bounds.hi)
        greatest = min(greatest, hi - (bounds.open_hi and hi == bounds.hi))
    return least, greatest


def leaves_nothing(bounds: Bounds, dtype: DType) -> bool:
    """Whether no element of a type lies within the bounds."""
    found = ends(bounds, dtype)
    return len(found) == 2 and bool(found[0] > found[1])


MAKERS: dict[str, Callable[[Spec, Request], Array]] = {
    "value": lambda spec, request: _constant(spec, request, spec.args[0]),
    "const": lambda spec, request: _constant(spec, request, spec.args[0]),
    "zeros": lambda spec, request: _constant(spec, request, 0),
    "ones": lambda spec, request: _constant(spec, request, 1),
    "randn": _randn,
    "uniform": _uniform,
    "randint": _randint,
    "iota": _iota,
    "auto": _auto,
}

# The least and greatest number of arguments, and the form to show.
ARGUMENTS: dict[str, tuple[int, int, str]] = {
    "randn": (0, 2, "randn or randn(mean, std)"),
    "uniform": (0, 2, "uniform or uniform(lo, hi)"),
    "randint": (2, 2, "randint(lo, hi), hi exclusive"),
    "zeros": (0, 0, "zeros"),
    "ones": (0, 0, "ones"),
    "iota": (0, 0, "iota"),
    "const": (1, 1, "const(value)"),
    "auto": (0, 0, "auto"),
}
