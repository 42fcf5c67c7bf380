"""What `:doc` says of a function, and the names of all functions."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator

from loopfuse.diag import UserError, error
from loopfuse.frontend.check.modules import library
from loopfuse.frontend.check.program import Program
from loopfuse.ops import MONOIDS, OPS

_LIBRARY_FN = re.compile(r"((?:^#[^\n]*\n)*)^fn (\w+)(\([^\n]*)", re.MULTILINE)


def functions() -> list[str]:
    """The functions that are always there, in the order of the alphabet."""
    surfaces = {row.surface for row in OPS.values() if row.surface}
    return sorted({*surfaces, *MONOIDS, *_builtins()})


def _builtins() -> dict[str, str]:
    found = {}
    for name in dir(Program):
        if name.startswith("call_") and callable(getattr(Program, name)):
            found[name.removeprefix("call_")] = inspect.getdoc(getattr(Program, name)) or ""
    return found


def members(module: str) -> list[str]:
    """The functions of a module of the library."""
    return [name for name, _, _ in _library(module)]


def _library(module: str) -> Iterator[tuple[str, str, str]]:
    """Name, signature and comment of each function of a module."""
    for match in _LIBRARY_FN.finditer(library().get(module, "")):
        comment = "\n".join(line.removeprefix("#").strip() for line in match[1].splitlines())
        yield match[2], f"{module}.{match[2]}{_signature(match[3])}", comment


def _signature(text: str) -> str:
    """The parameters, up to the parenthesis that closes them, and the types that are returned."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if not depth:
            returns = re.match(r"\s*->[^={]+", text[at + 1 :])
            return text[: at + 1] + (returns[0].rstrip() if returns else "")
    return text


def doc(name: str, script: str) -> list[str]:
    """What a function is: of the script, the library (`nn.softmax`), or built in. Raises `UserError` LF0202."""
    own = re.search(rf"((?:^#[^\n]*\n)*)^fn {re.escape(name)}\b[^\n]*", script, re.MULTILINE)
    if own:
        return own[0].split("\n")
    module, dot, member = name.partition(".")
    if dot or name in library():
        found = [(signature, comment) for known, signature, comment in _library(module) if member in ("", known)]
        if found:
            return [
                line
                for signature, comment in found
                for line in (signature, *(f"    {c}" for c in comment.split("\n") if c))
            ]
    row = next((row for row in OPS.values() if name in (row.surface, row.name)), None)
    if row is not None:
        return [f"{name}: {row.doc}"]
    if name in MONOIDS:
        return [f"{name}(e for i): a reduction; {name}(x, axis=..) over axes of an array"]
    text = _builtins().get(name)
    if text is not None:
        return [f"{name}: {text}"]
    known = [*functions(), *library(), *(f"{m}.{f}" for m in library() for f in members(m))]
    near = difflib.get_close_matches(name, known, 3)
    raise UserError(error("LF0502", f"there is no function `{name}`",
                          fix=f"did you mean {', '.join(f'`{n}`' for n in near)}?" if near else None))  # fmt: skip
