"""The parse tables of the grammar, and the loop that drives them.

lark turns `grammar/loopfuse.lark` into LALR(1) tables. Importing lark and building them costs half a second, so the
tables are kept as JSON in the user's cache folder, under a name made from the grammar's text; a folder that cannot be
written and a damaged file only cost the time to build again. The loop below needs nothing but the tables.

Lexing is contextual, as lark's: of all terminals that the state of the parser accepts, the first in lark's order that
matches wins. One regular expression tries all terminals; only where its answer is not accepted are the accepted ones
tried one by one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from loopfuse.diag import CompilerError
from loopfuse.outside import read_json, read_private

END = "$END"
STARTS = ("start", "expr", "inner")
FORMAT = 4  # of the cached file
MOST_OF_TABLES = 1 << 24  # bytes of it


class Token(NamedTuple):
    """A terminal of the text: its name in the grammar, its characters and where they stand."""

    kind: str
    text: str
    start: int
    end: int


class Rule(NamedTuple):
    """A production. `name` is the builder's method, None for a plain wrapper, "" for a list that is spliced.

    `shape` says what the method gets: indices of the symbols kept, -1 for an optional part that was left out.
    """

    origin: str
    size: int
    name: str | None
    shape: tuple[int, ...]
    whole: bool = False  # the method gets all symbols as they are


class Unexpected(Exception):
    """The text cannot go on like this. `kind` is "" where no terminal matches; `states` the stack before the token."""

    def __init__(self, kind: str, start: int, end: int, states: Sequence[int]) -> None:
        super().__init__(kind, start, end)
        self.kind, self.start, self.end, self.states = kind, start, end, states


@dataclass(slots=True)
class Tables:
    """Actions: a state to shift to, or `~rule` to reduce by. `starts` gives the first and the last state.

    `words`: for a terminal, the fixed words among what it matches, which are terminals of their own where accepted.
    """

    terminals: tuple[tuple[str, str], ...]
    ignored: frozenset[str]
    actions: list[dict[str, int]]
    gotos: list[dict[str, int]]
    rules: list[Rule]
    starts: dict[str, tuple[int, int]]
    words: dict[str, dict[str, str]]
    token: re.Pattern[str] = field(init=False)
    skip: re.Pattern[str] = field(init=False)
    single: dict[str, re.Pattern[str]] = field(init=False, default_factory=dict)
    units: dict[tuple[int, int, str], int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        skip = "(?:" + "|".join(p for n, p in self.terminals if n in self.ignored) + ")*+"
        names = "|".join(f"(?P<{n}>{p})" for n, p in self.terminals if n not in self.ignored)
        self.skip = re.compile(skip)
        self.token = re.compile(f"{skip}(?:{names})")

    def parse(self, text: str, start: str, builder: object, pos: int = 0, end: int | None = None) -> Any:
        """What the builder's methods make of `text[pos:end]`; each is called with children, begin and end.

        Raises Unexpected at the first token that cannot follow.
        """
        end = len(text) if end is None else end
        calls = [getattr(builder, rule.name) if rule.name else None for rule in self.rules]
        first, last = self.starts[start]
        states, begins = [first], [pos]
        values: list[Any] = [None]
        popped: list[list[int]] = []
        actions, gotos, rules, units, match = self.actions, self.gotos, self.rules, self.units, self.token.match
        words, make = self.words, tuple.__new__
        while True:
            state = states[-1]
            found = match(text, pos, end)
            if found and (kind := found.lastgroup or "") in actions[state]:
                begin, stop = found.span(kind)
                if kind in words:
                    kind = self._word(kind, text[begin:stop], actions[state])
            else:
                kind, begin, stop = self._lex(found, text, pos, end, actions[state])
            floor = len(states)  # the stack before this token is states[:floor] and, last first, what was popped
            popped.clear()
            while (action := actions[state].get(kind)) is None or action < 0:
                if action is None:
                    raise Unexpected(kind, begin, stop, [*states[:floor], *(s for part in popped[::-1] for s in part)])
                rule = rules[~action]
                size = rule.size
                if len(states) - size < floor:
                    popped.append(states[len(states) - size : floor])
                    floor = len(states) - size
                if rule.name is None:
                    key = (states[-2], state, kind)
                    state = states[-1] = units.get(key) or self._climb(key)
                elif size:
                    kept = values[-size:] if rule.whole else _kept(rule, values[-size:])
                    call = calls[~action]
                    values[-size:] = [call(kept, begins[-size], pos) if call else kept]
                    del states[-size:]
                    if size > 1:
                        del begins[1 - size :]
                    state = gotos[states[-1]][rule.origin]
                    states.append(state)
                else:
                    begins.append(begin)
                    values.append(getattr(builder, str(rule.name))([], begin, begin))
                    state = gotos[state][rule.origin]
                    states.append(state)
                if state == last and kind == END:
                    return values[-1]
            states.append(action)
            values.append(make(Token, (kind, text[begin:stop], begin, stop)))
            begins.append(begin)
            pos = stop

    def expected(self, states: Sequence[int]) -> frozenset[str]:
        """The terminals (END among them) with which a text that led to this stack may go on."""
        return frozenset(kind for kind in (*(n for n, _ in self.terminals), END) if self._accepts(states, kind))

    def _lex(
        self, match: re.Match[str] | None, text: str, pos: int, end: int, accepted: dict[str, int]
    ) -> tuple[str, int, int]:
        """The next terminal where `match`, the first of all terminals, is not accepted."""
        kind = match.lastgroup if match else None
        skipped = self.skip.match(text, pos, end)
        begin = skipped.end() if skipped else pos
        if begin >= end:
            return END, end, end
        for name, pattern in self.terminals:
            if name in accepted:
                one = self.single.get(name) or self.single.setdefault(name, re.compile(pattern))
                if found := one.match(text, begin, end):
                    return self._word(name, found[0], accepted), begin, found.end()
        return (kind, begin, match.end()) if match and kind else ("", begin, begin + 1)

    def _word(self, kind: str, text: str, accepted: dict[str, int]) -> str:
        words = self.words.get(kind)
        word = words.get(text) if words else None
        return word if word in accepted else kind

    def _climb(self, key: tuple[int, int, str]) -> int:
        """The state after a chain of plain wrappers, kept for the next time: expressions have fourteen levels."""
        below, state, kind = key
        action = self.actions[state].get(kind)
        while action is not None and action < 0 and self.rules[~action].name is None:
            state = self.gotos[below][self.rules[~action].origin]
            action = self.actions[state].get(kind)
        self.units[key] = state
        return state

    def _accepts(self, states: Sequence[int], kind: str) -> bool:
        stack = list(states)
        while True:
            action = self.actions[stack[-1]].get(kind)
            if action is None:
                return False
            if action >= 0:
                return True
            rule = self.rules[~action]
            del stack[len(stack) - rule.size :]
            stack.append(self.gotos[stack[-1]][rule.origin])
            if kind == END and any(stack[-1] == last for _, last in self.starts.values()):
                return True


def _kept(rule: Rule, children: list[Any]) -> list[Any]:
    """What a rule keeps; a list, which stands for a repetition, is spliced into what it is part of."""
    kept: list[Any] = []
    shape = rule.shape
    if not rule.name and type(children[0]) is list:
        kept, shape = children[0], shape[1:]  # grows in place: a copy would make long lists quadratic
    for index in shape:
        child = children[index] if index >= 0 else None
        if type(child) is list:
            kept += child
        else:
            kept.append(child)
    return kept


# -- where the tables come from ---------------------------------------------------------------------------------------


@cache
def tables() -> Tables:
    """The tables of the language, from the cache or built."""
    text = grammar_text()
    key = hashlib.sha256(f"{FORMAT}\n{STARTS}\n{text}".encode()).hexdigest()[:16]
    folder = cache_folder()
    path = folder / f"grammar-{key}.json" if folder else None
    if path and (found := _load(path)):
        return found
    plain = build(text)
    if path:
        _save(path, json.dumps(plain, separators=(",", ":")))
    return _revive(plain)


def grammar_text() -> str:
    """The grammar, from the installed package or from the folder beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package, package.parent):
        path = folder / "grammar" / "loopfuse.lark"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise CompilerError("parse", "the grammar loopfuse.lark is missing from the installation")


def build(text: str, strict: bool = False) -> dict[str, Any]:
    """The tables as plain data, made by lark; `strict` refuses colliding terminals (it needs `interegular`)."""
    from lark import Lark  # costs more than a parse, and is needed only where the cache has no tables

    made = Lark(text, parser="lalr", strict=strict, start=list(STARTS))
    table: Any = made.parser.parser._parse_table
    number = {rule: n for n, rule in enumerate(made.rules)}
    state = {s: n for n, s in enumerate(table.states)}
    actions: list[dict[str, int]] = []
    gotos: list[dict[str, int]] = []
    nonterminals = {str(rule.origin.name) for rule in made.rules}
    for row in table.states.values():
        actions.append({})
        gotos.append({})
        for name, (action, target) in row.items():
            symbol = str(name)
            if symbol in nonterminals:
                gotos[-1][symbol] = state[target]
            else:
                actions[-1][symbol] = ~number[target] if action.name == "Reduce" else state[target]
    order = sorted(made.terminals, key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name))
    return {
        "terminals": [(str(t.name), _pattern(t)) for t in order],
        "ignored": sorted(str(name) for name in made.ignore_tokens),
        "actions": actions,
        "gotos": gotos,
        "rules": [_plain_rule(rule) for rule in made.rules],
        "words": {t.name: w for t in order if t.pattern.type == "re" and (w := _words(t, order))},
        "starts": {s: (state[table.start_states[s]], state[table.end_states[s]]) for s in STARTS},
    }


def _pattern(terminal: Any) -> str:
    """The expression of a terminal; a fixed word must end where it ends (`letx` is not `let x`)."""
    found = str(terminal.pattern.to_regexp())
    return rf"{found}(?!\w)" if terminal.pattern.type == "str" and terminal.pattern.value.isidentifier() else found


def _words(terminal: Any, terminals: Sequence[Any]) -> dict[str, str]:
    pattern = re.compile(terminal.pattern.to_regexp())
    fixed = (t for t in terminals if t.pattern.type == "str" and t.priority == terminal.priority)
    return {t.pattern.value: t.name for t in fixed if pattern.fullmatch(t.pattern.value)}


def _plain_rule(rule: Any) -> tuple[str, int, str | None, list[int], bool]:
    """A rule of lark: which symbols it keeps (anonymous strings are dropped), and what becomes of them."""
    size = len(rule.expansion)
    gaps = rule.options.empty_indices or (False,) * size
    shape: list[int] = []
    position = 0
    for gap in gaps:
        if gap:
            shape.append(-1)
            continue
        symbol = rule.expansion[position]
        if not (symbol.is_term and symbol.filter_out):
            shape.append(position)
        position += 1
    name: str | None = str(rule.alias or rule.origin.name)
    if rule.origin.name.startswith("_"):
        name = ""
    elif rule.options.expand1 and not rule.alias and size == 1:
        name = None
    spliced = any(symbol.name.startswith("_") and not symbol.is_term for symbol in rule.expansion)
    whole = bool(name) and shape == list(range(size)) and not spliced
    return str(rule.origin.name), size, name, shape, whole


def _revive(plain: dict[str, Any]) -> Tables:
    return Tables(
        tuple((n, p) for n, p in plain["terminals"]),
        frozenset(plain["ignored"]),
        plain["actions"],
        plain["gotos"],
        [Rule(origin, size, name, tuple(shape), whole) for origin, size, name, shape, whole in plain["rules"]],
        {k: (v[0], v[1]) for k, v in plain["starts"].items()},
        plain["words"],
    )


def cache_folder() -> Path | None:
    """The folder for what costs time to make again; None where there is no home folder."""
    if named := os.environ.get("LOOPFUSE_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "loopfuse"
    except RuntimeError:  # no home folder
        return None


def _load(path: Path) -> Tables | None:
    """The tables in a file, or None where it is absent, damaged, or not ours alone: its first line is a checksum."""
    digest, _, body = (read_private(path, MOST_OF_TABLES) or b"").partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    try:
        return _revive(read_json(body))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, re.error):
        return None


def _save(path: Path, body: str) -> None:
    """Write a file whole or not at all: other processes may read it meanwhile."""
    data = body.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return
