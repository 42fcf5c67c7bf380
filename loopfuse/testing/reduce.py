"""From a failure to one that a person can read: statements and operations are taken out, extents and values made small,
as long as the same stage still fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from loopfuse.bind import Given, fitted, unsettled
from loopfuse.contracts import bounds_of
from loopfuse.diag import CompilerError, Source, UserError
from loopfuse.dtypes import DTYPES, of_numpy
from loopfuse.frontend import ast
from loopfuse.frontend.fmt import format_source
from loopfuse.frontend.lint import walk
from loopfuse.frontend.parse import parse
from loopfuse.generate import Array, Bounds
from loopfuse.passes import selection
from loopfuse.testing.data import bounds_of_param
from loopfuse.testing.simpler import blocks, grounds, rank, simpler
from loopfuse.testing.trial import Case, Failure, Setting, Subject, again, subject

EXPRESSIONS = (ast.Binary, ast.Unary, ast.Compare, ast.IfElse, ast.Call, ast.Subscript, ast.Attr, ast.ArrayLit,
               ast.Comprehension)  # fmt: skip
PLAIN = (ast.Name, ast.Number, ast.Bool)
MOST_TRIES = 600
FEW_ELEMENTS = 24
MOST_BLOCKS = 64  # stretches of an array that are tried by themselves
Progress = Callable[[int], None]
Keep = Callable[[int, int], Array]  # the places that stay, of so many, where the extent becomes smaller


class Reducer:
    """Makes a failure smaller. Ends after `seconds`, or `tries` trials."""

    def __init__(self, failure: Failure, setting: Setting, seconds: float = 30.0, tries: int = MOST_TRIES,
                 progress: Progress | None = None) -> None:  # fmt: skip
        runners = {n: r for n, r in setting.runners.items() if n == failure.where}
        self.failure, self.setting = failure, replace(setting, runners=runners, passes=_passes(failure, setting))
        self.end, self.left, self.progress = time.monotonic() + seconds, tries, progress
        self.tried = {failure.case.text}
        self.refuted: set[int] = set()
        self.kept: tuple[tuple[str, str], Subject | None] | None = None

    @property
    def case(self) -> Case:
        """The smallest case so far."""
        return self.failure.case

    @property
    def over(self) -> bool:
        """Whether there is no time left."""
        return self.left <= 0 or time.monotonic() > self.end

    def run(self) -> Failure:
        """The smallest failure that was found."""
        if self.failure.what in ("refused", "hang"):  # nothing was run, or each try would take the whole time
            return self.failure
        if self.try_case(self.case) is False:
            return self.failure  # it does not happen again: nothing is to be learnt from changing it
        self.try_case(replace(self.case, costed=self.case.sizes))
        before: tuple[object, ...] = ()
        while before != self.key() and not self.over:
            before = self.key()
            self.text()
            self.levels()
            self.extents()
            self.params()
            self.values()
        return replace(self.failure, case=replace(self.case, text=tidy(self.case.text)))

    def key(self) -> tuple[object, ...]:
        """What changes when anything was made smaller."""
        data = [a.tobytes() for a in self.case.arrays.values()]
        return self.case.text, tuple(self.case.sizes.items()), tuple(self.case.params.items()), tuple(data)

    def try_case(self, case: Case) -> bool:
        """Whether a case fails in the same way; it then is the smallest."""
        if self.over:
            return False
        mark = _mark(case)
        if mark in self.refuted:  # a round after one in which something else became smaller
            return False
        self.left -= 1
        same = case.text == self.case.text and case.compiled == self.case.compiled
        found = again(case, self.setting, self._made() if same else None).like(self.failure)
        if found is None:
            self.refuted.add(mark)
            return False
        self.failure = found
        if self.progress is not None:
            self.progress(len(case.text))
        return True

    # -- the text -----------------------------------------------------------------------------------------------------

    def text(self) -> None:
        """Take out of the text what can be. What a script says itself stays as it says it: of a check that fails only the
        statements that have no part in it go, and what it requires stays, since other data is none of its faults."""
        edited = (comments, statements, outputs, expressions, types, dims)
        for edits in (parts,) if self.failure.what in ("check", "outside") else edited:
            progress = True
            while progress and not self.over:
                progress = False
                for text in edits(self.case.text):
                    if text not in self.tried and not self.over:
                        self.tried.add(text)
                        if self.try_case(self.with_text(text)):
                            progress = True
                            break

    def with_text(self, text: str) -> Case:
        """The case with another text; arrays take the types that it declares."""
        arrays: dict[str, Array] = {}
        for name, array in self.case.arrays.items():
            match = re.search(rf"\binput {name}: (\w+)", text)
            dtype = DTYPES.get(match[1]) if match else None
            if dtype is None or of_numpy(array.dtype) == dtype:
                arrays[name] = array
            else:
                with np.errstate(all="ignore"):
                    arrays[name] = array.astype(dtype.numpy)
        return replace(self.case, text=text, arrays=arrays)

    # -- the data -----------------------------------------------------------------------------------------------------

    def levels(self) -> None:
        """Arrays become constant, as a whole or along an axis: of a row that must be so, few extents are left with elements
        that are merely near to one another."""
        for name, array in list(self.case.arrays.items()):
            for axis in (None, *range(array.ndim)[::-1]) if array.size > 1 else ():
                first = array.flat[0] if axis is None else np.take(array, [0], axis)
                if self.over or self.with_array(name, np.array(np.broadcast_to(first, array.shape))):
                    break

    def extents(self) -> None:
        """Smaller extents, by leaving off what is at the ends of arrays, or before a stretch of them."""
        for name in list(self.case.sizes):
            while self._smaller(name) and not self.over:
                pass

    def _smaller(self, name: str) -> bool:
        """Whether a size became smaller, alone or with others that the requirements tie to it."""
        extent = self.case.sizes.get(name, 0)
        nearly = extent - 1 if extent <= FEW_ELEMENTS else 7 * extent // 8
        wished = sorted({1, 2, 3, 4, 5, extent // 2, -(-extent // 2), 3 * extent // 4, nearly} & set(range(extent)))
        tried: set[tuple[int, ...]] = set()
        for smaller in wished:
            sizes = self._fitted({**self.case.sizes, name: smaller})
            if sizes is None or (as_key := tuple(sizes.values())) in tried:
                continue
            tried.add(as_key)
            for keep in (_head, _tail, _both_ends):
                case = self.cut(sizes, keep)
                if case is not None and self.try_case(case):
                    return True
        return False

    def _fitted(self, wished: Mapping[str, int], params: Mapping[str, Any] | None = None) -> dict[str, int] | None:
        """The sizes that are nearest to those wished for, where they are smaller than those that are there."""
        made = self._made()
        if made is None:
            return None
        typed = made.checked.typed
        known = self.case.params if params is None else params
        params = {p.name: known[p.name] for p in typed.params if p.name in known}
        try:
            free = set(unsettled(typed, Given({}, params)))
            found = fitted(typed, Given({}, params), {n: v for n, v in wished.items() if n in free})
        except (UserError, KeyError):
            return None
        sizes = {n: (found or {}).get(n, v) for n, v in self.case.sizes.items()}
        less = found is not None and all(v <= self.case.sizes[n] for n, v in sizes.items())
        return sizes if less and sizes != self.case.sizes else None

    def cut(self, sizes: Mapping[str, int], keep: Keep) -> Case | None:
        """The case with smaller sizes; `keep` says what stays of axes that are such a size, of others it is the beginning."""
        made = self._made()
        if made is None:
            return None
        typed = made.checked.typed
        known = {s.id: s.value for s in typed.sizes if s.value is not None} | dict(self.case.params) | dict(sizes)
        buffers = {b.id: b for b in typed.buffers}
        arrays: dict[str, Array] = {}
        for entry in typed.inputs:
            array, shape = self.case.arrays.get(entry.name), buffers[entry.buffer].shape
            if array is None:
                return None
            extents = [max(0, int(p.value(known))) for p in shape]
            if any(new > there for new, there in zip(extents, array.shape, strict=True)):
                return None
            for axis, (poly, extent) in enumerate(zip(shape, extents, strict=True)):
                places = (keep if poly.name in sizes else _head)(array.shape[axis], extent)
                array = np.take(array, places, axis)
            arrays[entry.name] = np.ascontiguousarray(array).reshape(extents)
        costed = None if self.case.costed is None else (
            dict(sizes) if self.case.costed == self.case.sizes else self.case.costed
        )  # fmt: skip
        return replace(self.case, arrays=arrays, sizes=dict(sizes), costed=costed)

    def _made(self) -> Subject | None:
        """The script of the case, checked; data changes more often than it."""
        key = (self.case.text, self.case.name)
        if self.kept is None or self.kept[0] != key:
            try:
                case = self.case
                self.kept = key, subject(case.text, case.name, case.folder, compiled=case.compiled)
            except (UserError, CompilerError):
                self.kept = key, None
        return self.kept[1]

    def params(self) -> None:
        """Params as the script has them, where it fails with these too; else plain ones."""
        made = self._made()
        for param in made.checked.typed.params if made is not None else ():
            old = self.case.params.get(param.name)
            if made is None or old is None or old == param.default:
                continue
            bounds = bounds_of_param(made.checked.typed, param)
            plainer = [v.item() for v in simpler(np.asarray(old).astype(param.dtype.numpy)[()], bounds)]
            for value in plainer if param.default is None else [param.default, *plainer]:
                if self.over or self._with_params({**self.case.params, param.name: value}):
                    break

    def _with_params(self, params: Mapping[str, Any]) -> bool:
        """Whether the case still fails with other params, or also with the smaller sizes that the requirements tie to them."""
        if self.try_case(replace(self.case, params=params)):
            return True
        sizes = self._fitted(self.case.sizes, params)
        case = self.cut(sizes, _head) if sizes is not None else None
        return case is not None and self.try_case(replace(case, params=params))

    def values(self) -> None:
        """Plain values: a whole array of zeros or ones, or all of it but a few elements; these the plainest that do."""
        made = self._made()
        if made is None:
            return
        for entry in made.checked.typed.inputs:
            if entry.name not in self.case.arrays or self.over:
                continue
            bounds = bounds_of(made.checked.typed, entry, self._sizes(made))
            self._blank(entry.name, bounds)
            array = self.case.arrays[entry.name]
            values = [array[array == v] if v == v else array[array != array] for v in dict.fromkeys(array.flat)]
            for same in sorted(values, key=len, reverse=True)[:FEW_ELEMENTS]:
                self._plainer(entry.name, same[0], bounds)
            self._elements(entry.name, bounds)

    def _sizes(self, made: Subject) -> dict[str, int]:
        fixed = {s.id: s.value for s in made.checked.typed.sizes if s.value is not None}
        return {**fixed, **{n: v for n, v in self.case.params.items() if isinstance(v, int)}, **self.case.sizes}

    def _blank(self, name: str, bounds: Bounds) -> None:
        """As much of an array as may be is made one plain value: all, else halves, quarters and so on."""
        array = self.case.arrays[name]
        plain = grounds(array, bounds)
        if not plain or self.with_array(name, np.full_like(array, plain[0])):
            return
        for block in blocks(array.size, MOST_BLOCKS):
            made = self.case.arrays[name].copy()
            made.reshape(-1)[block] = plain[0]
            self.with_array(name, made)
        if np.count_nonzero(self.case.arrays[name] != plain[0]) > FEW_ELEMENTS:  # it takes many: then all alike
            self.with_array(name, np.full_like(array, plain[-1]))

    def _plainer(self, name: str, value: Any, bounds: Bounds) -> None:
        """All elements of one value become a plainer one."""
        array = self.case.arrays[name]
        same = array == value if value == value else array != array
        for other in simpler(value, bounds):
            if self.over or self.with_array(name, np.where(same, other, array)):
                return

    def _elements(self, name: str, bounds: Bounds) -> None:
        """Single elements become plainer ones, those that are least plain first."""
        flat = self.case.arrays[name].reshape(-1)
        places = sorted((k for k in range(flat.size) if rank(flat[k])), key=lambda k: -rank(flat[k]))
        for at in places[:FEW_ELEMENTS]:
            for other in simpler(self.case.arrays[name].reshape(-1)[at], bounds):
                array = self.case.arrays[name].copy()
                array.reshape(-1)[at] = other
                if self.over or self.with_array(name, array):
                    break

    def with_array(self, name: str, array: Array) -> bool:
        """Whether the case still fails with another array."""
        old = self.case.arrays[name]
        array = np.ascontiguousarray(array).astype(old.dtype, copy=False).reshape(old.shape)
        if array.tobytes() == old.tobytes():
            return True
        return self.try_case(replace(self.case, arrays={**self.case.arrays, name: array}, kind=""))


def _mark(case: Case) -> int:
    """What tells a case from others."""
    arrays = tuple((name, str(a.dtype), a.shape, a.tobytes()) for name, a in case.arrays.items())
    costed = None if case.costed is None else tuple(case.costed.items())
    return hash((case.text, tuple(case.params.items()), tuple(case.sizes.items()), costed, arrays))


def _passes(failure: Failure, setting: Setting) -> str:
    """The passes that a failure needs: none where the script itself says what is wrong, else those up to its own."""
    if failure.what in ("check", "outside"):
        return "none"
    names = [p.name for p in selection(setting.passes)]
    return ",".join(names[: names.index(failure.where) + 1]) if failure.where in names else setting.passes


def _head(there: int, extent: int) -> Array:
    return np.arange(extent)


def _tail(there: int, extent: int) -> Array:
    return np.arange(there - extent, there)


def _both_ends(there: int, extent: int) -> Array:
    return np.concatenate([_head(there, -(-extent // 2)), _tail(there, extent // 2)])


# -- edits of a text --------------------------------------------------------------------------------------------------


def _tree(text: str) -> ast.Script:
    return parse(Source("reduced.lf", text))


def comments(text: str) -> Iterator[str]:
    """The text without comments."""
    without = re.sub(r'("[^"\n]*")|#[^\n]*', lambda m: m[1] or "", text)
    if without != text:
        yield without


def statements(text: str) -> Iterator[str]:
    """The text without one statement, the last first, at any level."""
    nodes = [n for n, _ in walk(_tree(text)) if isinstance(n, ast.Stmt)]
    for node in nodes[::-1]:
        yield text[: node.span.start] + text[node.span.end :]


def parts(text: str) -> Iterator[str]:
    """The text without one statement, the last first; those stay that say what data and sizes may be, or how to round."""
    for node in (n for n, _ in list(walk(_tree(text)))[::-1] if isinstance(n, ast.Stmt)):
        required = isinstance(node, ast.Contract) and node.kind == "require"
        if not (required or isinstance(node, ast.SizeDecl | ast.Numerics)):
            yield text[: node.span.start] + text[node.span.end :]


def outputs(text: str) -> Iterator[str]:
    """The text up to a definition, which becomes the one output."""
    body = _tree(text).body
    for node in body:
        if isinstance(node, ast.LetDecl) and not node.lhs.names:
            start, end = node.span.start, node.span.end
            kept = "\n".join(s.span.text for s in body if s.span.end <= start and not isinstance(s, ast.OutputDecl))
            yield f"{kept}\noutput{text[start + 3 : end]}\n"


def expressions(text: str) -> Iterator[str]:
    """The text with one expression replaced by an operand of its own, or by a number; the largest first."""
    nodes = [n for n, _ in walk(_tree(text)) if isinstance(n, EXPRESSIONS)]
    for node in sorted(nodes, key=lambda n: n.span.start - n.span.end):
        before, after = text[: node.span.start], text[node.span.end :]
        inner = [n for n, depth in walk(node) if 0 < depth <= 2 and isinstance(n, (*EXPRESSIONS, *PLAIN))]
        for operand in dict.fromkeys(n.span.text for n in inner):
            if len(operand) < len(node.span.text):
                yield before + (operand if operand.isidentifier() else f"({operand})") + after
        yield before + "1" + after


def types(text: str) -> Iterator[str]:
    """The text with one element type replaced everywhere by the ordinary one of its kind."""
    for name, dtype in DTYPES.items():
        plain = "f32" if dtype.is_float else "i32"
        if name not in (plain, "bool") and re.search(rf"\b{name}\b", text):
            yield re.sub(rf"\b{name}\b", plain, text)


def dims(text: str) -> Iterator[str]:
    """The text with one dim replaced everywhere by another."""
    names = sorted(set(re.findall(r"\b[A-Z]\w*\b", text)))
    for name in names:
        for other in names:
            if name > other:
                yield re.sub(rf"\b{name}\b", other, text)


def tidy(text: str) -> str:
    """The text in the canonical layout, without blank lines and without the parentheses that edits left."""
    plain, before = "\n".join(line for line in text.split("\n") if line.strip()) + "\n", ""
    while plain != before:
        before = plain
        plain = re.sub(r"\(\(([^()]*)\)\)", r"(\1)", re.sub(r"(= |, |[^\w]\()\((\w*)\)", r"\1\2", plain))
        plain = re.sub(r"= \(([^()]*)\)$", r"= \1", plain, flags=re.MULTILINE)
    try:
        return format_source(plain)
    except (UserError, CompilerError):
        return text
