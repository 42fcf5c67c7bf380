"""Where a generator's choices come from: a random stream that favours what was seldom reached, or a strategy of hypothesis.

Generators ask for whatever is simplest first: the first option, the least number, no. So what hypothesis shrinks is a
simpler program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class Choices(ABC):
    """A source of choices."""

    @abstractmethod
    def number(self, least: int, greatest: int) -> int:
        """A number between two bounds, both inclusive."""

    @abstractmethod
    def favour(self, options: Mapping[str, T]) -> T:
        """One of the options, which have the names that coverage is counted by; there must be one."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely as the others; there must be one."""
        return options[self.number(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """Yes, so many times in a hundred."""
        return self.number(0, 99) >= 100 - percent


class Steered(Choices):
    """Choices of a random stream. `reached` says how often each name was reached: the less, the likelier it is chosen.
    `chosen` counts the names that were chosen."""

    def __init__(self, random: Random, reached: Mapping[str, int] | None = None) -> None:
        self.random, self.reached = random, reached if reached is not None else {}
        self.chosen: Counter[str] = Counter()

    def number(self, least: int, greatest: int) -> int:
        """A number of the stream."""
        return self.random.randint(least, greatest)

    def favour(self, options: Mapping[str, T]) -> T:
        """An option, the likelier the less it was reached."""
        weights = [1.0 / (1 + self.reached.get(name, 0)) for name in options]
        (name,) = self.random.choices(list(options), weights)
        self.chosen[name] += 1
        return options[name]


class Drawn(Choices):
    """Choices that hypothesis draws: `draw` takes a least and a greatest number."""

    def __init__(self, draw: Callable[[int, int], Any]) -> None:
        self._draw = draw

    def number(self, least: int, greatest: int) -> int:
        """A number that hypothesis draws."""
        return int(self._draw(least, greatest)) if least < greatest else least

    def favour(self, options: Mapping[str, T]) -> T:
        """An option, all as likely."""
        return self.pick(list(options.values()))
