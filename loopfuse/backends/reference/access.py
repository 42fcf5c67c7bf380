"""Loads and stores: subscripts as regular patterns where they are linear and in range, else as flat positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopfuse.backends.reference.domain import Storage, Value
from loopfuse.backends.reference.frame import Frame, Index, Stray
from loopfuse.backends.reference.modes import RESOLVE
from loopfuse.backends.reference.scope import Linear, Number, Scope, Stored, doubts, linear, number
from loopfuse.diag import CompilerError, Span
from loopfuse.ir import Affine, Expr, Load, Mode, Store
from loopfuse.numerics import Array

Code = Callable[[Frame], Value]
Compile = Callable[[Expr, Scope], Code]


@dataclass(frozen=True, slots=True)
class Sub:
    """A subscript: as a linear form where it is one, and as a closure; `doubt` says where a computed one is unsure."""

    form: Linear | None
    number: Number
    doubt: Callable[[Frame], Array | None] | None
    mode: Mode | None
    extent: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A linear subscript for the quick path: factors of the starts, and of the lengths of the boxes."""

    const: int
    terms: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...]
    extent: int


def subscripts(subs: tuple[Expr, ...], modes: tuple[Mode | None, ...], shape: tuple[int, ...], scope: Scope,
               compile_expr: Compile) -> tuple[Sub, ...]:  # fmt: skip
    """The subscripts of an access to an array of a shape."""
    return tuple(_subscript(s, m, n, scope, compile_expr) for s, m, n in zip(subs, modes, shape, strict=True))


def _subscript(sub: Expr, mode: Mode | None, extent: int, scope: Scope, compile_expr: Compile) -> Sub:
    if isinstance(sub, Affine):
        poly = scope.names.fold(sub.poly)
        return Sub(linear(poly, scope), number(poly, scope), doubts((poly,), scope), mode, extent)
    code, domain = compile_expr(sub, scope), scope.shared.domain
    doubt = (lambda f: domain.doubt(code(f))) if domain.tracks else None
    return Sub(None, lambda f: domain.indices(code(f)), doubt, mode, extent)


class Pattern:
    """The regular pattern of an access whose subscripts are all linear: offset, shape and strides of a view."""

    def __init__(self, subs: tuple[Sub, ...], batch: tuple[Index, ...], scope: Scope, full: bool) -> None:
        self._lines: list[_Line] = []
        self._parts: list[tuple[int, int, int]] = []
        depth, used = scope.depth, {i.axis for i in batch}
        for position, sub in enumerate(subs):
            form = sub.form
            assert form is not None
            spans = [(i, factor * i.step) for i, factor in form.terms if i.axis is not None]
            terms = tuple((i.slot, factor) for i, factor in form.terms)
            self._lines.append(_Line(form.const, terms, tuple((i.slot, by) for i, by in spans), sub.extent))
            for index, by in spans:
                assert index.axis is not None
                self._parts.append((index.axis, position, by))
                used.add(index.axis)
        for place, index in enumerate(batch):
            assert index.axis is not None
            self._parts.append((index.axis, len(subs) + place, 1))
        self._rank = depth if full else max((-a for a in used if a is not None), default=0)
        axes = scope.axes[depth - self._rank :]
        self._slots = tuple(i.slot if full or i.axis in used else -1 for i in axes)
        self._cache: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def offset(self, f: Frame, st: Storage) -> int | None:
        """The position of the first element, or None where some element lies outside or the pattern is broken."""
        start, count, total = f.start, f.count, 0
        for axis, line in enumerate(self._lines):
            first = line.const
            for slot, factor in line.terms:
                first += factor * start[slot]
            least = most = first
            for slot, by in line.spans:
                reach = by * (count[slot] - 1)
                if reach > 0:
                    most += reach
                else:
                    least += reach
            if least < 0 or most >= line.extent:
                return None
            if st.windowed:
                if st.modulus[axis]:
                    if least != most:
                        return None
                    first %= st.modulus[axis]
                else:
                    first -= st.origin[axis]
                    if least < st.origin[axis] or most - st.origin[axis] >= st.shape[axis]:
                        return None
            total += first * st.strides[axis]
        return total

    def shape(self, f: Frame) -> tuple[int, ...]:
        """The shape of the view: 1 along the axes that the subscripts do not follow."""
        count = f.count
        return tuple([count[s] if s >= 0 else 1 for s in self._slots])

    def strides(self, st: Storage) -> tuple[int, ...]:
        """The strides of the view, in elements."""
        known, found = self._cache
        if known is not st.strides or not found:
            made = [0] * self._rank
            for axis, position, by in self._parts:
                made[axis] += by * st.strides[position]
            found = tuple(made)
            self._cache = (st.strides, found)
        return found


class Positions:
    """Flat positions of an access with any subscripts, and where it is not performed after all."""

    def __init__(self, subs: tuple[Sub, ...], stored: Stored, scope: Scope, name: str, span: Span | None) -> None:
        self._subs, self._stored, self._name, self._span = subs, stored, name, span
        self._tracks = scope.shared.domain.tracks
        self._window = _window(stored, scope) if scope.shared.watch else []

    def find(self, f: Frame, st: Storage) -> tuple[Any, list[tuple[Mode, Array]]]:
        """Positions, and for each axis that may be left the mode and where it is not."""
        total: Any = 0
        inside: list[tuple[Mode, Array]] = []
        strays: list[
            tuple[int, Any, Array]
        ] = []  # of each axis that is checked and left: the subscripts, and where they are inside
        for axis, sub in enumerate(self._subs):
            at = sub.number(f)
            keep: Array | None = None
            if sub.mode is None:
                at = self._checked(f, at, sub.extent)
            elif sub.extent == 0 and sub.mode.kind not in ("constant", "checked"):
                at = self._checked(f, at, 0)
            else:
                given = at
                at, keep = RESOLVE[sub.mode.kind](at, sub.extent)
                if keep is not None and not np.all(keep):
                    inside.append((sub.mode, np.asarray(keep)))
                    if sub.mode.kind == "checked":
                        strays.append((axis, given, np.asarray(keep)))
            for low, high, place in self._window:
                if place == axis:
                    self._within(f, at, low(f), high(f), keep)
            if st.windowed:
                if keep is not None:
                    at = np.where(keep, at, st.origin[axis])
                at = np.remainder(at, st.modulus[axis]) if st.modulus[axis] else at - st.origin[axis]
            total = total + at * st.strides[axis]
        for place, index in enumerate(self._stored.batch, len(self._subs)):
            assert index.axis is not None
            total = total + np.arange(f.count[index.slot]).reshape((-1,) + (1,) * (-index.axis - 1)) * st.strides[place]
        self._faults(f, strays)
        return total, inside

    def doubt(self, f: Frame) -> Array | None:
        """Where some computed subscript is undecided."""
        found: Array | None = None
        for sub in self._subs:
            more = sub.doubt(f) if sub.doubt else None
            if more is not None:
                found = more if found is None else found | more
        return found

    def affected(self, f: Frame, shape: tuple[int, ...]) -> Array | None:
        """The elements of an array of `shape` (the batch behind its own axes) that undecided subscripts may mean."""
        doubts = [sub.doubt(f) if sub.doubt else None for sub in self._subs]
        unsure = self.doubt(f)
        if unsure is None or not unsure.any():
            return None
        if f.mask is not None:
            unsure = unsure & f.mask.array()
        unsure = np.broadcast_to(unsure, f.shape)
        key: list[Any] = []
        for sub, doubt in zip(self._subs, doubts, strict=True):
            at = np.clip(sub.number(f), 0, max(sub.extent - 1, 0))
            key.append(slice(None) if doubt is not None else np.broadcast_to(at, f.shape)[unsure])
        for index in self._stored.batch:
            assert index.axis is not None
            place = np.arange(f.count[index.slot]).reshape((-1,) + (1,) * (-index.axis - 1))
            key.append(np.broadcast_to(place, f.shape)[unsure])
        found = np.zeros(shape, dtype=bool)
        if found.size:
            found[tuple(key)] = True
        return found

    def _checked(self, f: Frame, at: Any, extent: int) -> Any:
        """Subscripts that must be in range where the access is performed; harmless ones elsewhere."""
        array = np.asarray(at)
        if array.size and (array.min() < 0 or array.max() >= extent):
            self._within(f, array, 0, extent)
            return np.clip(array, 0, max(extent - 1, 0))
        return at

    def _within(self, f: Frame, at: Any, low: Any, high: Any, keep: Array | None = None) -> None:
        bad = np.asarray((at < low) | (at >= high))
        if keep is not None:
            bad = bad & keep
        if f.mask is not None:
            bad = bad & f.mask.array()
        # What is evaluated beside the outcome of an undecided condition may be out of range; it is not used.
        if not self._tracks and bad.any():
            first = np.broadcast_to(np.asarray(at), bad.shape)[bad][0]
            raise self.violation(f"subscript {first} is outside its axis or window")

    def violation(self, what: str) -> CompilerError:
        """The error for an access that the program may not make."""
        where = f" (`{self._span.text}`, line {self._span.line})" if self._span else ""
        return CompilerError("reference", f"access to `{self._name}`{where}: {what}")

    def _faults(self, f: Frame, strays: list[tuple[int, Any, Array]]) -> None:
        if not strays:
            return
        bad = ~strays[0][2]
        for _, _, keep in strays[1:]:
            bad = bad | ~keep
        if f.mask is not None:
            bad = bad & f.mask.array()
        if bad.any():
            bad = np.broadcast_to(bad, f.shape)
            place = np.unravel_index(int(np.argmax(bad)), bad.shape)
            axis, at = next((a, at) for a, at, keep in strays if not np.broadcast_to(keep, f.shape)[place])
            value = int(np.broadcast_to(np.asarray(at), f.shape)[place])
            f.fault(self._span, self._name, int(np.count_nonzero(bad)), Stray(axis, value, self._subs[axis].extent))


def _window(stored: Stored, scope: Scope) -> list[tuple[Number, Number, int]]:
    """The window's bounds on the axes where all indices that they mention are in scope."""
    found: list[tuple[Number, Number, int]] = []
    for axis, (lows, highs) in enumerate(stored.window or ()):
        for poly in (*lows, *highs):
            if not scope.names.fold(poly).names <= scope.entries.keys():
                break
        else:
            lo, hi = [number(p, scope) for p in lows], [number(p, scope) for p in highs]
            found.append((_most(lo, np.maximum), _most(hi, np.minimum), axis))
    return found


def _most(numbers: list[Number], choose: Any) -> Number:
    def value(f: Frame) -> Any:
        found = numbers[0](f)
        for more in numbers[1:]:
            found = choose(found, more(f))
        return found

    return value


def compile_load(node: Load, scope: Scope, compile_expr: Compile) -> Code:
    """A closure that reads the elements of a load."""
    stored, domain = scope.array(node.buffer), scope.shared.domain
    subs = subscripts(node.subs, node.modes, stored.shape, scope, compile_expr)
    positions = Positions(subs, stored, scope, node.buffer, node.span)
    zero = domain.constant(0, stored.dtype)
    fills = {id(m): domain.constant(m.fill.bits, m.fill.dtype) for m in node.modes if m is not None and m.fill}
    slot, watch, dtype = stored.slot, scope.shared.watch, stored.dtype

    def general(f: Frame, st: Storage) -> Value:
        at, inside = positions.find(f, st)
        if watch:
            _must_be_written(f, st, at, inside, positions)
        value = domain.tainted(st.take(np.asarray(at)), positions.doubt(f)) if 0 not in st.shape else zero
        for mode, keep in reversed(inside):
            value = domain.patch(value, keep, fills.get(id(mode), zero), dtype)
        return value

    if watch or any(s.form is None for s in subs):
        return lambda f: general(f, f.stores[slot])
    pattern = Pattern(subs, stored.batch, scope, False)

    def load(f: Frame) -> Value:
        st = f.stores[slot]
        offset = pattern.offset(f, st)
        if offset is None:
            return general(f, st)
        return st.view(pattern.shape(f), offset, pattern.strides(st))

    return load


def _performed(f: Frame, inside: list[tuple[Mode, Array]]) -> Array | None:
    mask = None if f.mask is None else f.mask.array()
    for _, keep in inside:
        mask = keep if mask is None else mask & keep
    return mask


def _must_be_written(f: Frame, st: Storage, at: Any, inside: list[tuple[Mode, Array]], positions: Positions) -> None:
    if st.written is None or 0 in st.shape:
        return
    missing, mask = ~st.written[np.asarray(at)], _performed(f, inside)
    if np.any(missing if mask is None else missing & mask):
        raise positions.violation("an element is read that was not written")


def compile_store(node: Store, value: Code, scope: Scope, compile_expr: Compile) -> Callable[[Frame], None]:
    """A closure that writes the elements of a store to a buffer."""
    stored, domain = scope.array(node.buffer), scope.shared.domain
    modes = node.modes or (None,) * len(node.subs)
    subs = subscripts(node.subs, modes, stored.shape, scope, compile_expr)
    positions = Positions(subs, stored, scope, node.buffer, node.span)
    slot, watch = stored.slot, scope.shared.watch

    def general(f: Frame, st: Storage) -> None:
        found = domain.tainted(value(f), f.doubt)
        at, inside = positions.find(f, st)
        where = _performed(f, inside)
        if watch:
            _mark_written(f, st, at, where, positions)
        if 0 not in st.shape:
            st.put(np.asarray(at), domain.tainted(found, positions.doubt(f)), f.shape, where)

    if watch or any(s.form is None for s in subs):
        return lambda f: general(f, f.stores[slot])
    pattern = Pattern(subs, stored.batch, scope, True)

    def store(f: Frame) -> None:
        st = f.stores[slot]
        offset = pattern.offset(f, st)
        if offset is None:
            general(f, st)
            return
        where = None if f.mask is None else f.mask.array()
        st.assign(pattern.shape(f), offset, pattern.strides(st), domain.tainted(value(f), f.doubt), where)

    return store


def _mark_written(f: Frame, st: Storage, at: Any, where: Array | None, positions: Positions) -> None:
    if st.written is None or 0 in st.shape:
        return
    at = np.broadcast_to(at, f.shape)
    chosen = at.reshape(-1) if where is None else at[np.broadcast_to(where, f.shape)]
    if not f.quiet and (st.written[chosen].any() or len(np.unique(chosen)) != len(chosen)):
        raise positions.violation("an element is written twice")
    st.written[chosen] = True
