"""The shape of the code base: what may import what, how long things may be, that public names are explained."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import loopfuse

ROOT = Path(loopfuse.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# Layers from the bottom; a module may import from lower layers, and from its own group (the part behind `loopfuse.`).
# Groups on one line do not import each other. What stands above a name is what may use it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("outside", "keeping"),
    ("sizes", "dtypes", "diag", "memory"),
    ("devices", "decisions"),
    ("constants", "spelling", "bugs"),
    ("numerics",),
    ("special",),
    ("oprow",),
    ("ops",),
    ("ir",),
    ("walking",),
    ("rewrite", "generate", "opdoc"),
    ("rules", "prove", "printer", "formats"),
    ("reader_expr",),
    ("reader", "verify", "files"),
    ("frontend", "analysis", "backends"),
    ("schedule",),
    ("passes",),
    ("emit",),
    ("lock",),
    ("cuda",),
    ("requires", "solve"),
    ("contracts", "tolerance", "fitting"),
    ("bind",),
    ("draws",),
    ("driver",),
    ("accelerated", "results"),
    ("agreement",),
    ("bisect", "checking"),
    ("views",),
    ("bench",),
    ("implied", "testing"),
    ("repl",),
    ("api", "cli"),
    ("__main__", ""),
)

# Packages that a plain installation need not have, or whose import costs more than most commands: imported where used.
OPTIONAL = {"hypothesis", "lark", "interegular", "pycuda", "cuda", "torch", "cupy", "scipy"}
MOST_LINES, MOST_FUNCTION, MEDIAN = 500, 60, 200
PRODUCTIONS = {"loopfuse.frontend.build"}  # a method a rule of the grammar, named after it
LONG_TABLES = {"loopfuse.ops"}  # rows of a table, not code


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def group(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def layer(module: str) -> int:
    for number, names in enumerate(LAYERS):
        if group(module) in names:
            return number
    raise AssertionError(f"{module} stands in no layer of tests/test_architecture.py: decide where it belongs")


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that is imported from, a relative one resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def imports(module: str, everywhere: bool = True) -> Iterator[tuple[str, int]]:
    """The modules of this package that a module imports, with the line."""
    nodes = ast.walk(tree(module)) if everywhere else iter(tree(module).body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "loopfuse")
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            if source.split(".")[0] == "loopfuse":
                for alias in node.names:
                    full = f"{source}.{alias.name}"
                    yield (full if full in MODULES else source), node.lineno


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    for target, line in imports(module):
        if group(target) == group(module) or target == "loopfuse":
            continue
        lower = layer(target) < layer(module)
        # The package's own door imports the API for type checkers only: at run time it loads on first use.
        assert lower, f"{module}:{line} imports {target}, which is not below it"


def test_no_cycles() -> None:
    graph = {m: {t for t, _ in imports(m, everywhere=False) if t != m and t in MODULES} for m in MODULES}
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        if state.get(module) == 1:
            raise AssertionError(f"an import cycle: {' -> '.join((*path[path.index(module) :], module))}")
        if module not in state:
            state[module] = 1
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            state[module] = 2

    for module in MODULES:
        visit(module, ())


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("module", MODULES)
def test_no_local_imports(module: str) -> None:
    for function in functions(module):
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                late = [n for n in names if n.split(".")[0] not in OPTIONAL]
                assert not late, f"{module}:{node.lineno} imports {late[0]} inside {function.name}"


@pytest.mark.parametrize("module", MODULES)
def test_lengths(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES or module in LONG_TABLES, f"{module} has {lines} lines"
    for function in functions(module):
        length = (function.end_lineno or 0) - function.lineno + 1
        table = module in LONG_TABLES and function.name.startswith("_")
        assert length <= MOST_FUNCTION or table, f"{module}.{function.name} has {length} lines"


def test_median_length() -> None:
    counts = [len(p.read_text(encoding="utf-8").splitlines()) for p in MODULES.values()]
    assert statistics.median([c for c in counts if c > 3]) <= MEDIAN


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_explained(module: str) -> None:
    content = tree(module).body
    assert not content or ast.get_docstring(tree(module)), f"{module} has no docstring"
    for node in public(content):
        if module in PRODUCTIONS and isinstance(node, ast.FunctionDef):
            continue
        assert ast.get_docstring(node), f"{module}:{node.lineno}: {node.name} has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_only_known_packages_are_imported(module: str) -> None:
    allowed = (
        {"loopfuse", "numpy", "ml_dtypes", "lark", "rich", "safetensors", "PIL", "prompt_toolkit"}
        | OPTIONAL
        | sys.stdlib_module_names
    )
    for node in ast.walk(tree(module)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [absolute(module, node)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in allowed, f"{module}:{node.lineno} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_no_promises_left(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    for mark in ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"):
        assert mark not in text, f"{module} holds a {mark}"
