"""From a failure to one that a person can read: statements and operations are taken out, extents and values made small,
as long as the same stage still fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from loopfuse.agreement import Runner
from loopfuse.bind import buffer_bytes
from loopfuse.diag import CompilerError, Source, UserError
from loopfuse.dtypes import DTYPES, of_numpy
from loopfuse.frontend import ast
from loopfuse.frontend.fmt import format_source
from loopfuse.frontend.lint import walk
from loopfuse.frontend.parse import parse
from loopfuse.generate import Array
from loopfuse.testing.trial import Case, Failure, Setting, again, subject

EXPRESSIONS = (ast.Binary, ast.Unary, ast.Compare, ast.IfElse, ast.Call, ast.Subscript, ast.Attr, ast.ArrayLit,
               ast.Comprehension)  # fmt: skip
PLAIN = (ast.Name, ast.Number, ast.Bool)
MOST_TRIES = 400
FEW_ELEMENTS = 24
Progress = Callable[[int], None]


class Reducer:
    """Makes a failure smaller. Ends after `seconds`, or `tries` trials."""

    def __init__(self, failure: Failure, setting: Setting, seconds: float = 30.0, tries: int = MOST_TRIES,
                 progress: Progress | None = None) -> None:  # fmt: skip
        self.failure, self.setting = failure, replace(setting, runners=self._runners(failure, setting))
        self.end, self.left, self.progress = time.monotonic() + seconds, tries, progress
        self.tried = {failure.case.text}

    @staticmethod
    def _runners(failure: Failure, setting: Setting) -> dict[str, Runner]:
        """The back end that the failure is about, if it is about one."""
        return {n: r for n, r in setting.runners.items() if n == failure.where}

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
        before = ""
        while before != self.key() and not self.over:
            before = self.key()
            self.text()
            self.extents()
            self.values()
        return replace(self.failure, case=replace(self.case, text=tidy(self.case.text)))

    def key(self) -> str:
        """What changes when anything was made smaller."""
        return f"{self.case.text} {self.case.sizes}"

    def try_case(self, case: Case) -> bool:
        """Whether a case fails in the same way; it then is the smallest."""
        if self.over:
            return False
        self.left -= 1
        found = again(case, self.setting).failure
        if found is None or found.key != self.failure.key:
            return False
        self.failure = found
        if self.progress is not None:
            self.progress(len(case.text))
        return True

    # -- the text -----------------------------------------------------------------------------------------------------

    def text(self) -> None:
        """Take out of the text what can be. What a script says itself stays as it says it: of a check that fails only the
        statements that have no part in it go."""
        edited = (comments, statements, outputs, expressions, types, dims)
        for edits in (statements,) if self.failure.what in ("check", "outside") else edited:
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

    def extents(self) -> None:
        """Smaller extents, by leaving off the ends of arrays."""
        for name, extent in self.case.sizes.items():
            for smaller in sorted({1, 2, 3, 4, 5, extent // 2, extent - 1}):
                if smaller < self.case.sizes.get(name, 0):
                    case = self.cut(name, smaller)
                    if case is not None and self.try_case(case):
                        break

    def cut(self, name: str, extent: int) -> Case | None:
        """The case with one size made smaller."""
        try:
            typed = subject(self.case.text, folder=self.case.folder, compiled=self.case.compiled).checked.typed
        except (UserError, CompilerError):
            return None
        sizes = {**self.case.sizes, name: extent}
        known = {s.id: s.value for s in typed.sizes if s.value is not None} | sizes
        buffers = {b.id: b for b in typed.buffers}
        arrays: dict[str, Array] = {}
        for entry in typed.inputs:
            array = self.case.arrays.get(entry.name)
            if array is None or buffer_bytes(buffers[entry.buffer], known) > array.nbytes:
                return None
            shape = [int(p.value(known)) for p in buffers[entry.buffer].shape]
            arrays[entry.name] = np.ascontiguousarray(array[tuple(slice(max(0, e)) for e in shape)])
        costed = None if self.case.costed is None else (
            sizes if self.case.costed == self.case.sizes else self.case.costed
        )  # fmt: skip
        return replace(self.case, arrays=arrays, sizes=sizes, costed=costed)

    def values(self) -> None:
        """Plain values: all zero, all one, small; then element by element."""
        for name in list(self.case.arrays):
            if self.over or not re.search(rf"\binput {name}:", self.case.text):
                continue
            for make in (np.zeros_like, np.ones_like, _counted):
                if self.with_array(name, make(self.case.arrays[name])):
                    break
            else:
                self.elements(name)

    def elements(self, name: str) -> None:
        """Single elements made 0 or 1."""
        for at in range(min(self.case.arrays[name].size, FEW_ELEMENTS)):
            for value in (0, 1):
                array = self.case.arrays[name].copy()
                if array.flat[at] == value or self.over:
                    break
                array.flat[at] = value
                if self.with_array(name, array):
                    break

    def with_array(self, name: str, array: Array) -> bool:
        """Whether the case still fails with another array."""
        if np.array_equal(array, self.case.arrays[name]):
            return True
        return self.try_case(replace(self.case, arrays={**self.case.arrays, name: array}))


def _counted(array: Array) -> Array:
    """1, 2, 3, 1, 2, 3 and so on."""
    return (np.arange(array.size).reshape(array.shape) % 3 + 1).astype(array.dtype)


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
