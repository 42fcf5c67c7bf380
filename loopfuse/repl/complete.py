"""What could follow the text before the cursor: commands, their arguments, names, functions, files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from loopfuse.devices import PRESETS
from loopfuse.diag import LoopfuseError
from loopfuse.driver import BACKENDS
from loopfuse.dtypes import DTYPES
from loopfuse.frontend.check.modules import library
from loopfuse.frontend.lexemes import INNER_ONLY, STARTERS
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import ARGUMENTS
from loopfuse.passes import pipeline
from loopfuse.repl.commands import COMMANDS
from loopfuse.repl.docs import functions, members
from loopfuse.repl.session import Session
from loopfuse.views.essays import read_essays


class Candidate(NamedTuple):
    """A completion: its text, how many characters before the cursor it replaces, and what it is."""

    text: str
    back: int
    what: str = ""


def complete(text: str, session: Session) -> list[Candidate]:
    """The completions of a text that ends at the cursor; never raises."""
    command = re.fullmatch(r"\s*:(\w*)", text)
    if command:
        return [Candidate(name, len(command[1]), c.help) for name, c in COMMANDS.items() if name.startswith(command[1])]
    with_argument = re.fullmatch(r"\s*:(\w+)!?\s+(.*)", text, re.DOTALL)
    if with_argument:
        name = next((n for n in COMMANDS if n.startswith(with_argument[1])), "")
        return list(_arguments(with_argument[1] if with_argument[1] in COMMANDS else name, with_argument[2], session))
    word = re.search(r"[^\W\d][\w.]*$", text)
    prefix = word[0] if word else ""
    imported = re.search(r"\bimport\s+\w*$", text)
    known = [(n, "module") for n in library()] if imported else _words(session)
    if not prefix and not imported:
        return []
    return _fitting(known, prefix)


def _fitting(known: Iterable[tuple[str, str]], prefix: str) -> list[Candidate]:
    found = {n: Candidate(n, len(prefix), what) for n, what in known if n.startswith(prefix) and n != prefix}
    return [found[n] for n in sorted(found)]


def _words(session: Session) -> Iterator[tuple[str, str]]:
    """Everything that may stand in a line."""
    for part in session.parts:
        yield from ((name, part.kind) for name in part.names)
        if part.kind == "import" and part.names:
            module = part.body.split()[1] if len(part.body.split()) > 1 else ""
            yield from ((f"{part.names[0]}.{m}", "function") for m in members(module))
    typed = _typed(session)
    if typed is not None:
        yield from ((s.id, "size") for s in typed.sizes)
    if session.last is not None:
        yield "_", "the last value"
    yield from _language()


@cache
def _language() -> tuple[tuple[str, str], ...]:
    words = [(w, "statement") for w in sorted(STARTERS - INNER_ONLY)]
    return (*words, *((f, "function") for f in functions()), *((d, "type") for d in DTYPES))


def _typed(session: Session) -> TypedProgram | None:
    try:
        return session.typed()
    except LoopfuseError:
        return None


def _kernels(session: Session) -> list[str]:
    try:
        return [k.id for k in session.compiled().optimised.program.kernels]
    except LoopfuseError:
        return []


def _arguments(command: str, text: str, session: Session) -> Iterator[Candidate]:
    """Completions of a command's argument."""
    if command in ("load", "save"):
        yield from paths(text, ".lf")
        return
    if command in ("type", "time"):
        yield from complete(text, session)
        return
    word = re.search(r"[^\s,=]*$", text)
    prefix = word[0] if word else ""
    value = re.search(r"(\w+)\s*=\s*([^\s=]*)$", text)
    if command == "set" and value:
        yield from _fitting([(g, "generator") for g in ARGUMENTS], value[2])
        yield from paths(value[2], "")
        return
    yield from _fitting(_names(command, session), prefix)


def _names(command: str, session: Session) -> Iterator[tuple[str, str]]:
    typed = _typed(session)
    passes = ["lower", *(p.name for p in pipeline())]
    if command in ("ir", "diff", "step", "passes"):
        yield from ((n, "pass") for n in passes)
        yield from ((f"-{n}", "all but this") for n in passes[1:] if command == "passes")
    elif command == "why":
        yield from (
            (n, p.kind)
            for p in session.parts
            if p.kind not in ("input", "param", "size", "fn", "import")
            for n in p.names
        )
    elif command in ("cuda", "ptx", "sass", "cost"):
        yield from ((k, "kernel") for k in _kernels(session))
    elif command == "backend":
        yield from ((n, "back end") for n in BACKENDS)
    elif command == "device":
        yield from ((n, "device") for n in PRESETS)
    elif command == "doc":
        yield from ((f, "function") for f in (*functions(), *(f"{m}.{f}" for m in library() for f in members(m))))
    elif command == "explain":
        yield from ((code, essay.split("\n", 1)[0][10:]) for code, essay in read_essays().items())
    elif command == "help":
        yield from ((n, c.help) for n, c in COMMANDS.items())
    elif typed is not None and command in ("dims", "size"):
        origin = "shape" if command == "dims" else "compile"
        yield from ((f"{s.id}=", "size") for s in typed.sizes if s.origin == origin)
    elif typed is not None and command == "set":
        yield from ((f"{i.name}=", "input") for i in typed.inputs)
        yield from ((f"{p.name}=", "param") for p in typed.params)


def paths(text: str, suffix: str) -> Iterator[Candidate]:
    """Files whose path begins with a text, folders first to go into; of files those with a suffix, if any."""
    folder, _, prefix = text.rpartition("/")
    where = Path(os.path.expanduser(folder + "/" if folder or text.startswith("/") else "."))
    try:
        entries = sorted(where.iterdir(), key=lambda p: (not p.is_dir(), p.name))
    except OSError:
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not prefix.startswith(".")
        if not entry.name.startswith(prefix) or hidden:
            continue
        if entry.is_dir():
            yield Candidate(entry.name + "/", len(prefix), "folder")
        elif entry.name.endswith(suffix):
            yield Candidate(entry.name, len(prefix), "")
