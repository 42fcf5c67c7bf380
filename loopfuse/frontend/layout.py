"""Documents that lay themselves out within a width, after Wadler and Oppen: groups are flat where they fit.

A document is a string without newlines, or one of the nodes below. A node that holds a forced break is `hard`, and no
group around it is flat.
"""

from __future__ import annotations

from collections.abc import Sequence


class Line:
    """A blank (or `flat`) in a flat group, else a new line; a `hard` one is always a new line."""

    __slots__ = ("flat", "hard")

    def __init__(self, flat: str = " ", hard: bool = False) -> None:
        self.flat, self.hard = flat, hard


class Suffix:
    """A comment that ends whatever line it falls on; with `hard` the groups around it break, so that it stays near."""

    __slots__ = ("hard", "text")

    def __init__(self, text: str, hard: bool = True) -> None:
        self.text, self.hard = text, hard


class Parts:
    """A sequence; `indent` shifts its new lines, a `group` is flat where it fits, a `fill` breaks only where it must."""

    __slots__ = ("fill", "group", "hard", "indent", "parts")

    def __init__(self, parts: Sequence[Node], indent: int = 0, group: bool = False, fill: bool = False) -> None:
        self.parts, self.indent, self.group, self.fill = tuple(parts), indent, group, fill
        self.hard: bool = any(not isinstance(p, str) and p.hard for p in self.parts)


Node = str | Line | Suffix | Parts

BREAK = Line("", True)


def join(*parts: Node) -> Parts:
    """One after the other."""
    return Parts(parts)


def group(*parts: Node) -> Parts:
    """Flat where it fits, else every line of it breaks."""
    return Parts(parts, group=True)


def indent(*parts: Node) -> Parts:
    """New lines inside go two columns to the right."""
    return Parts(parts, indent=2)


def width_of(node: Node) -> float:
    """The width of a node laid out flat; infinite where it must break."""
    total, stack = 0, [node]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            total += len(one)
        elif one.hard:
            return float("inf")
        elif isinstance(one, Line):
            total += len(one.flat)
        elif isinstance(one, Parts):
            stack += one.parts
    return total


def lay_out(node: Node, width: int, start: int) -> str:
    """The text of a node whose lines begin at column `start`; trailing blanks are never written."""
    out: list[str] = []
    column = start
    suffixes: list[str] = []
    stack: list[tuple[int, bool, Node]] = [(start, False, node)]
    while stack:
        shift, flat, one = stack.pop()
        if isinstance(one, str):
            out.append(one)
            column += len(one)
        elif isinstance(one, Suffix):
            suffixes.append(one.text)
        elif isinstance(one, Line):
            if flat and not one.hard:
                out.append(one.flat)
                column += len(one.flat)
                continue
            _end_line(out, suffixes)
            out.append("\n" + " " * shift)
            column = shift
        elif one.fill and not flat:
            _fill(stack, one, shift + one.indent, column, width)
        else:
            flat = flat and not one.hard
            if one.group and not flat and not one.hard:
                flat = _fits(one, stack, width - column)
            shift += one.indent
            stack += [(shift, flat, part) for part in reversed(one.parts)]
    _end_line(out, suffixes)
    return "".join(out)


def _end_line(out: list[str], suffixes: list[str]) -> None:
    while out and not out[-1].strip(" ") and "\n" not in out[-1]:
        out.pop()
    if out and "\n" not in out[-1]:
        out[-1] = out[-1].rstrip(" ")
    out += [f"  {text}" for text in suffixes]
    suffixes.clear()


def _fill(stack: list[tuple[int, bool, Node]], node: Parts, shift: int, column: int, width: int) -> None:
    """Items with separators between them; a separator is flat where the item behind it still fits."""
    order: list[tuple[int, bool, Node]] = []
    behind = _behind(stack)
    for n, part in enumerate(node.parts):
        size = width_of(part)
        if n % 2 == 0:
            order.append((shift, False, part))
            column = width if size > width - column else column + int(size)
            continue
        last = n + 2 == len(node.parts)
        fits = column + size + width_of(node.parts[n + 1]) + (behind if last else 0) <= width
        order.append((shift, fits, part))
        column = column + int(size) if fits else shift
    stack += order[::-1]


def _behind(rest: list[tuple[int, bool, Node]]) -> int:
    """The width of what follows up to the first place where a line may break."""
    total, stack = 0, [node for _, _, node in rest]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Line):
            break
        elif isinstance(one, Parts):
            stack += one.parts[::-1]
    return total


def _fits(node: Parts, rest: list[tuple[int, bool, Node]], room: int) -> bool:
    """Whether a node laid out flat, and what follows up to the next possible new line, fits."""
    stack: list[tuple[bool, Node]] = [(True, node)]
    behind = len(rest)
    while room >= 0:
        if not stack:
            if not behind:
                return True
            behind -= 1
            stack.append((rest[behind][1], rest[behind][2]))
        flat, one = stack.pop()
        if isinstance(one, str):
            room -= len(one)
        elif isinstance(one, Line):
            if not flat or one.hard:
                return True
            room -= len(one.flat)
        elif isinstance(one, Parts):
            inner = flat and not one.hard
            stack += [(inner, part) for part in reversed(one.parts)]
    return False
