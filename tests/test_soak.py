"""What the package keeps in a process does not grow with the number of programs; tests/soak.py is the long run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from soak import caches, compile_one, held

import loopfuse

# Caches without a bound, and why what they hold is finite.
FINITE = {
    "specs": "no argument", "tables": "no argument", "taken": "no argument",
    "_language": "no argument", "_torch_types": "no argument", "_library": "no argument", "pipeline_version": "no argument",
    "_tile_encoder": "no argument", "named_value": "words of the tables of operations and rules, and a type",
    "traits": "an operation", "_inexact": "an operation and a type", "_opened": "a device", "_unusable": "a device",
    "_load": "a compiler and a search path", "_fingerprint": "the same",
}  # fmt: skip
# Mappings of modules that fill, and their bounds.
BOUNDED = {"loopfuse.analysis.summary._kept": 20_001, "loopfuse.frontend.parse._MODULES": 32}


def unbounded() -> dict[str, str]:
    """The functions of the package whose results are all kept, and where they stand."""
    found = {}
    root = Path(loopfuse.__file__).parent
    for path in (p for p in sorted(root.rglob("*.py")) if p.parent != root / "testing"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                text = ast.unparse(mark)
                if text in ("cache", "functools.cache") or "maxsize=None" in text:
                    found[node.name] = path.name
    return found


def test_every_cache_without_a_bound_is_finite() -> None:
    assert unbounded().keys() == FINITE.keys()


def grown(first: int, count: int) -> dict[str, tuple[int, int]]:
    """The caches that grew over so many programs, past what bounds them."""
    before = caches()
    for number in range(first, first + count):
        compile_one(number)
    return {n: (before.get(n, 0), v) for n, v in caches().items()
            if v > BOUNDED.get(n, before.get(n, 0)) and not n.startswith("loopfuse.testing.")}  # fmt: skip


def test_some_programs_leave_nothing() -> None:
    """After a few have filled what is finite, further programs add to nothing but words of the tables."""
    for number in range(1, 6):
        compile_one(number)
    files = held()["files"]
    new = grown(6, 6)
    assert all(name.rpartition(".")[2] in FINITE for name in new), new
    assert all(after < 2000 for _, after in new.values()), new
    assert held()["files"] == files


@pytest.mark.slow
def test_many_programs_leave_nothing() -> None:
    for number in range(1, 151):
        compile_one(number)
    before = held()
    grown(151, 150)
    after = held()
    assert after["files"] == before["files"]
    assert after["MiB"] <= before["MiB"] * 1.15 + 16
