"""Planting faults: one part of one function of loopfuse gets another text, in memory, and is put back.

A fault is written as the change that a reader would see in a commit: the function, the words that are there, the words in
their place. The function object stays, so whoever imported it has the fault too. A part that is not found exactly once
is an error, so that a fault never silently plants nothing; a call at the head of the function tells that it was reached.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from loopfuse.passes import peephole, simplify
from loopfuse.passes.rulefile import read_rules

MARK = "_reached_by_a_mutant"
# Made once and for all, and of no fault's making: tables of the grammar, which take seconds.
KEPT = ("loopfuse.frontend.lalr", "loopfuse.frontend.parse")
RULES = {"simplify": simplify, "peephole": peephole}


class NotPlanted(Exception):
    """The place that a fault names is not there."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function `place` ("module:function" or "module:Class.method", the module below loopfuse) the text `old`, which
    stands there once, becomes `new`. With `every` it may stand there more than once; `also` are further pairs of old and new."""

    place: str
    old: str
    new: str
    every: bool = False
    also: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """Another line in a file of rules (`simplify` or `peephole`), before those that are there."""

    file: str
    line: str


@dataclass(frozen=True, slots=True)
class Value:
    """A constant of a module, or one entry of a table of it (`module:NAME` or `module:NAME[key]`), has another value."""

    place: str
    value: Any


Change = Edit | Rule | Value


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault. `where`: front end, pass, schedule, emitter or runtime; `mistake` is what a reader would call it."""

    name: str
    where: str
    mistake: str
    changes: tuple[Change, ...]

    @contextmanager
    def planted(self) -> Iterator[list[str]]:
        """With the fault, and without it after; gives a list that names the places reached. Raises `NotPlanted`."""
        reached: list[str] = []
        undo: list[Any] = []
        forget()
        try:
            for change in self.changes:
                undo.append(_plant(change, reached))
            yield reached
        finally:
            for back in reversed(undo):
                back()
            forget()


_caches: tuple[int, list[Any]] = (0, [])


def forget() -> None:
    """Empty the caches of functions: what they hold may be of another compiler than the present one."""
    global _caches
    if _caches[0] != len(sys.modules):
        known = [c for c in gc.get_objects() if isinstance(c, functools._lru_cache_wrapper)]
        ours = [c for c in known if (c.__module__ or "").startswith("loopfuse.")]
        _caches = len(sys.modules), [c for c in ours if not c.__module__.startswith(KEPT)]
    for cache in _caches[1]:
        cache.cache_clear()


def _plant(change: Change, reached: list[str]) -> Any:
    if isinstance(change, Edit):
        return _edited(change, reached)
    if isinstance(change, Rule):
        return _ruled(change, reached)
    return _valued(change, reached)


def _ruled(change: Rule, reached: list[str]) -> Any:
    module = RULES[change.file]
    old = module.specs
    rules = (*read_rules(change.line), *old())

    def specs() -> Any:
        reached.append(change.file)
        return rules

    module.specs = specs
    return lambda: setattr(module, "specs", old)


def _valued(change: Value, reached: list[str]) -> Any:
    """A constant cannot tell that it is read, so it counts as reached."""
    place, _, key = change.place.partition("[")
    path, _, name = place.partition(":")
    owner: Any = import_module(f"loopfuse.{path}")
    if not hasattr(owner, name):
        raise NotPlanted(change.place)
    reached.append(change.place)
    if key:
        table = getattr(owner, name)
        entry = ast.literal_eval(key.removesuffix("]"))
        if entry not in table:
            raise NotPlanted(change.place)
        before = table[entry]
        table[entry] = change.value(before) if callable(change.value) else change.value
        return lambda: table.__setitem__(entry, before)
    before = getattr(owner, name)
    setattr(owner, name, change.value(before) if callable(change.value) else change.value)
    return lambda: setattr(owner, name, before)


def function(place: str) -> FunctionType:
    """The plain function behind a place: of properties the getter, of cached and decorated functions what they wrap."""
    path, _, name = place.partition(":")
    found: Any = import_module(f"loopfuse.{path}")
    for part in name.split("."):
        if part not in vars(found):
            raise NotPlanted(f"{place}: there is no `{part}`")
        found = vars(found)[part]
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise NotPlanted(f"{place} is no function")
    return found


def _edited(change: Edit, reached: list[str]) -> Any:
    target = function(change.place)
    if MARK in target.__globals__ and target.__code__.co_name != target.__name__:
        raise NotPlanted(f"{change.place} is planted already")
    text = textwrap.dedent(inspect.getsource(target))
    for old, new in ((change.old, change.new), *change.also):
        count = text.count(old)
        if count == 0 or (count > 1 and not change.every):
            raise NotPlanted(f"{change.place}: {old!r} stands there {count} times")
        text = text.replace(old, new)
    made = _compiled(target, text, f"{MARK}({change.place!r})")
    before = target.__code__
    if made.co_freevars != before.co_freevars:
        raise NotPlanted(f"{change.place}: it closes over other names")
    target.__globals__[MARK] = lambda place: None if place in reached else reached.append(place)
    target.__code__ = made

    def back() -> None:
        target.__code__ = before
        target.__globals__.pop(MARK, None)

    return back


def _compiled(target: FunctionType, text: str, head: str) -> CodeType:
    """The code of a function with another text, and a call at its head."""
    tree = ast.parse(text)
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    documented = ast.get_docstring(definition, clean=False) is not None
    definition.body.insert(int(documented), ast.parse(head).body[0])
    free = target.__code__.co_freevars
    if free:  # a scope that has the names which the function closes over
        outer = ast.parse(f"def outer():\n    {' = '.join(free)} = None\n").body[0]
        assert isinstance(outer, ast.FunctionDef)
        outer.body.append(definition)
        tree.body = [outer]
    ast.fix_missing_locations(tree)
    flags = target.__code__.co_flags & 0x1000000  # postponed annotations, as the module has them
    code = compile(tree, target.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    for _ in range(2 if free else 1):
        code = next(c for c in code.co_consts if isinstance(c, CodeType))
    return code
