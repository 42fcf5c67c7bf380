"""Where modules come from: the library of the package, or a file beside the script."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from loopfuse.diag import Source
from loopfuse.frontend import ast
from loopfuse.outside import read_whole

LARGEST = 1 << 20


def library() -> dict[str, str]:
    """The names and texts of the library's modules."""
    folder = files("loopfuse.lib")
    return {Path(f.name).stem: f.read_text("utf-8") for f in folder.iterdir() if f.name.endswith(".lf")}


def read_module(node: ast.Import, search: Path | None) -> Source | str:
    """The source of a module, or why there is none."""
    if not node.path:
        modules = library()
        if node.module in modules:
            return Source(f"<{node.module}>", modules[node.module])
        near = get_close_matches(node.module, modules, 1, 0.5)
        hint = f"; did you mean `{near[0]}`?" if near else f"; the library has {', '.join(sorted(modules))}"
        return f"no module `{node.module}`{hint}"
    path = (search or Path.cwd()) / node.module
    try:
        return Source(str(path), read_whole(path, LARGEST, plain=True).decode("utf-8-sig"))
    except UnicodeDecodeError:
        return f"module file {node.module} is not UTF-8 text"
    except (OSError, ValueError) as problem:
        return f"cannot read module file {node.module}: {getattr(problem, 'strerror', None) or 'unreadable'}"
