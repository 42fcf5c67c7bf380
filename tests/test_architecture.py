"""The shape of the code base: what may import what, how long things may be, that public names are explained."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

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
def text(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(text(module))


@cache
def parts(module: str) -> tuple[list[Function], list[tuple[Import, str | None]]]:
    """The functions of a module, and its imports with the name of the function that holds each: one walk over the tree,
    as expressions, most of it, hold neither."""
    functions: list[Function] = []
    imported: list[tuple[Import, str | None]] = []
    open_nodes: list[tuple[ast.AST, str | None]] = [(tree(module), None)]
    while open_nodes:
        node, inside = open_nodes.pop()
        if isinstance(node, Function):
            functions.append(node)
            inside = node.name
        elif isinstance(node, Import):
            imported.append((node, inside))
        if not isinstance(node, ast.expr):
            open_nodes += [(child, inside) for child in ast.iter_child_nodes(node)]
    return functions, imported


def group(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else ""


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
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def imports(module: str, everywhere: bool = True) -> Iterator[tuple[str, int]]:
    """The modules of this package that a module imports, with the line."""
    for node in [node for node, _ in parts(module)[1]] if everywhere else tree(module).body:
        if isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "loopfuse")
        elif isinstance(node, ast.ImportFrom):
            source = absolute(module, node)
            if source.split(".")[0] == "loopfuse":
                for alias in node.names:
                    full = f"{source}.{alias.name}"
                    yield (full if full in MODULES else source), node.lineno


def nothing(found: Iterable[str]) -> None:
    """A rule over all modules holds: nothing that breaks it is found."""
    told = list(found)
    assert not told, "\n".join(told)


def test_imports_go_down() -> None:
    # The package's own door imports the API for type checkers only: at run time it loads on first use.
    nothing(
        f"{module}:{line} imports {target}, which is not below it"
        for module in MODULES
        for target, line in imports(module)
        if group(target) != group(module) and target != "loopfuse" and layer(target) >= layer(module)
    )


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


def local_imports(module: str) -> Iterator[str]:
    for node, inside in parts(module)[1]:
        if inside:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            late = [n for n in names if n.split(".")[0] not in OPTIONAL]
            yield from (f"{module}:{node.lineno} imports {name} inside {inside}" for name in late)


def test_no_local_imports() -> None:
    nothing(told for module in MODULES for told in local_imports(module))


def too_long(module: str) -> Iterator[str]:
    lines = len(text(module).splitlines())
    if lines > MOST_LINES and module not in LONG_TABLES:
        yield f"{module} has {lines} lines"
    for function in parts(module)[0]:
        length = (function.end_lineno or 0) - function.lineno + 1
        table = module in LONG_TABLES and function.name.startswith("_")
        if length > MOST_FUNCTION and not table:
            yield f"{module}.{function.name} has {length} lines"


def test_lengths() -> None:
    nothing(told for module in MODULES for told in too_long(module))


def test_median_length() -> None:
    counts = [len(text(module).splitlines()) for module in MODULES]
    assert statistics.median([c for c in counts if c > 3]) <= MEDIAN


def public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def unexplained(module: str) -> Iterator[str]:
    content = tree(module).body
    if content and not ast.get_docstring(tree(module)):
        yield f"{module} has no docstring"
    for node in public(content):
        production = module in PRODUCTIONS and isinstance(node, ast.FunctionDef)
        if not production and not ast.get_docstring(node):
            yield f"{module}:{node.lineno}: {node.name} has no docstring"


def test_public_names_are_explained() -> None:
    nothing(told for module in MODULES for told in unexplained(module))


def unknown_packages(module: str) -> Iterator[str]:
    known = {"loopfuse", "numpy", "ml_dtypes", "lark", "rich", "safetensors", "PIL", "prompt_toolkit"}
    allowed = known | OPTIONAL | sys.stdlib_module_names
    for node, _ in parts(module)[1]:
        names = [absolute(module, node)] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        yield from (f"{module}:{node.lineno} imports {n}" for n in names if n.split(".")[0] not in allowed)


def test_only_known_packages_are_imported() -> None:
    nothing(told for module in MODULES for told in unknown_packages(module))


def test_no_promises_left() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    nothing(f"{module} holds a {mark}" for module in MODULES for mark in marks if mark in text(module))
