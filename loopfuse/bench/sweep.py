"""Sizes to go through: `N=2^10..2^24` doubles, `N=100..900:200` adds, `N=100..10000*10` multiplies, `N=1,7,64` lists."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from loopfuse.generate import parse_number

MOST = 1000  # sets of sizes


def parse(text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the values of a sweep. Raises `ValueError` that says what is wrong."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise ValueError(f"`{text}` is no sweep: write N=2^10..2^24, N=100..900:200 or N=1,7,64")
    match = re.fullmatch(r"([^.:*]+(?:\*\*[^.:*]+)?)\.\.([^.:*]+(?:\*\*[^.:*]+)?)(?:([:*])([^:*]+))?", rest)
    if match is None:
        values = tuple(_integer(part) for part in rest.split(","))
    else:
        low, high = _integer(match[1]), _integer(match[2])
        step = _integer(match[4]) if match[4] else 2
        if low > high:
            raise ValueError(f"`{rest}` goes from {low} down to {high}: write the smaller one first")
        if step < (1 if match[3] == ":" else 2) or (match[3] != ":" and low < 1):
            raise ValueError(f"`{rest}` does not get from {low} to {high}")
        values = tuple(itertools.islice(_steps(low, high, step, match[3] == ":"), MOST + 1))
    if len(values) > MOST:
        raise ValueError(f"`{rest}` are more than {MOST} values")
    return name, values


def _steps(low: int, high: int, step: int, adds: bool) -> Iterator[int]:
    value = low
    while value <= high:
        yield value
        value = value + step if adds else value * step


def _integer(text: str) -> int:
    """An integer; `2^10` and `2**10` are powers."""
    base, power, exponent = text.strip().replace("**", "^").replace("_", "").partition("^")
    low, high = parse_number(base.strip()), parse_number(exponent.strip()) if power else 1
    if type(low) is not int or type(high) is not int or not 0 <= high <= 63 or low < 0:
        raise ValueError(f"`{text.strip()}` is no size")
    return int(low**high)


def points(sweeps: Sequence[tuple[str, Iterable[int]]]) -> list[dict[str, int]]:
    """Every combination of the values of several sweeps; one without any. Raises `ValueError` for too many."""
    names = [name for name, _ in sweeps]
    if len(set(names)) < len(names):
        raise ValueError(f"`{max(names, key=names.count)}` is swept twice")
    found = list(itertools.islice(itertools.product(*(values for _, values in sweeps)), MOST + 1))
    if len(found) > MOST:
        raise ValueError(f"these are more than {MOST} sets of sizes")
    return [dict(zip(names, values, strict=True)) for values in found]
