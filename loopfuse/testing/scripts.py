"""Random scripts: statements until there are enough, then outputs."""

from __future__ import annotations

import re
from functools import cache

from loopfuse.testing.choices import Choices
from loopfuse.testing.forms import Forms
from loopfuse.testing.page import DIMS, Array

MOST_OUTPUTS = 3
OPERATIONS = 14  # of a script, about


@cache
def forms() -> dict[str, str]:
    """The statements by the names that coverage counts: the methods of `Forms`."""
    return {f"form {name[5:]}": name for part in Forms.__mro__ for name in vars(part) if name.startswith("form_")}


def script(choices: Choices, most: int = 6) -> str:
    """A random script of at most about so many definitions, which the checker accepts."""
    page = Forms(choices, OPERATIONS)
    for _ in range(choices.number(1, most)):
        if len(page.lines) < most:
            getattr(page, choices.favour(forms()))()
    if not page.arrays or not page.lines:
        page.form_whole()
    return finished(page)


def finished(page: Forms) -> str:
    """The script as text: what nothing reads is an output."""
    choices, lines = page.choices, list(page.lines)
    text = "\n".join(lines)
    unread = [a for a in page.arrays if not a.given and not _read(a, text)]
    outputs = unread[-MOST_OUTPUTS:] or page.arrays[-1:]
    others = [a for a in page.arrays if not a.given and a not in outputs]
    if others and len(outputs) < MOST_OUTPUTS and choices.chance(20):
        outputs.append(choices.pick(others))
    for array in outputs:
        if lines[-1].startswith((f"let {array.name} ", f"let {array.name}[")):
            lines[-1] = "output" + lines[-1][3:]
        elif not any(line.startswith((f"output {array.name} ", f"output {array.name}[")) for line in lines):
            lines.append(f"output {array.name}")
    head = _directives(page, others, lines)
    used = [line for line in page.inputs if line.startswith("import") or _named(line.split()[1].rstrip(":"), lines)]
    sizes = [
        f"size {d} = {choices.pick((5, 3, 4, 8))}" for d in DIMS if _named(d, [*used, *lines]) and not _bound(d, used)
    ]
    return "\n".join([*head, *sizes, *used, *lines]) + "\n"


def _read(array: Array, text: str) -> bool:
    """Whether a statement other than its own names it."""
    uses = len(re.findall(rf"\b{array.name}\b", text))
    own = len(re.findall(rf"\b(?:let|next|emit|accum) \(?{array.name}\b|\bcarry \({array.name}\b|, {array.name}\) = split"
                         rf"|\{{ {array.name}\[", text))  # fmt: skip
    return uses > own


def _bound(dim: str, inputs: list[str]) -> bool:
    """Whether an input settles a dim."""
    return any(re.search(rf"\b{dim}\b", line.partition(" where ")[0]) for line in inputs)


def _named(name: str, lines: list[str]) -> bool:
    return any(re.search(rf"\b{name}\b", line) for line in lines)


def _directives(page: Forms, others: list[Array], lines: list[str]) -> list[str]:
    """What is asked of the compiler: how to round, at the head, and what to keep in memory, at the end."""
    choices = page.choices
    found = [f"numerics {choices.pick(('strict', 'fast'))}"] if choices.chance(25) else []
    stored = [a.name for a in others if any(line.startswith(f"let {a.name}[") for line in lines)]
    if stored and choices.chance(15):
        lines.append(f"pragma materialize({stored[-1]})")
    return found
