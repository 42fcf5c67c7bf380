"""What a call gives: an array where a program has one output, else a record of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopfuse.generate import Array

Result = Any


class Record:
    """The results of a program with several outputs, in order.

    `r.name`, `r["name"]` and `r[0]` all give an array; `len`, iteration (over the arrays) and unpacking work as for a
    tuple. The class has no public method, so an output may have any name (`out`, `class`, `_y`).
    """

    __slots__ = ("__arrays",)

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.__arrays = dict(arrays)

    def __getattr__(self, name: str) -> Array:
        arrays: dict[str, Array] = object.__getattribute__(self, "_Record__arrays")
        if name not in arrays:
            raise AttributeError(f"there is no output {name!r}; the outputs are {', '.join(arrays)}")
        return arrays[name]

    def __getitem__(self, key: str | int) -> Array:
        return self.__arrays[key] if isinstance(key, str) else list(self.__arrays.values())[key]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.__arrays.values())

    def __len__(self) -> int:
        return len(self.__arrays)

    def __contains__(self, name: object) -> bool:
        return name in self.__arrays

    def __dir__(self) -> list[str]:
        return list(self.__arrays)

    def __reduce__(self) -> tuple[type[Record], tuple[dict[str, Array]]]:
        return Record, (self.__arrays,)

    def __repr__(self) -> str:
        fields = ", ".join(f"{n}={a.dtype}{list(a.shape)}" for n, a in self.__arrays.items())
        return f"Record({fields})"


def result(outputs: Mapping[str, Any]) -> Result:
    """The array where there is one, else a `Record`."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return Record(outputs)
