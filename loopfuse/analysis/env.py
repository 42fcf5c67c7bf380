"""What is known around a kernel: the program's declarations, facts about its sizes, the device, and numbers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopfuse.devices import H200, Device
from loopfuse.ir import Buffer, Kernel, Program, Stmt
from loopfuse.prove import Facts
from loopfuse.rewrite import Fresh, Names, free_names
from loopfuse.sizes import Poly
from loopfuse.verify.layout import Layout, layout
from loopfuse.verify.structure import size_facts

# Stand-ins for sizes that nothing settles, by the rank of the input and the axis that the size is the extent of.
STAND_INS: dict[int, tuple[int, ...]] = {
    1: (1 << 20,), 2: (4096, 1024), 3: (8, 1024, 512), 4: (8, 16, 1024, 64), 5: (4, 8, 16, 64, 64),
}  # fmt: skip
OTHER = 64


@dataclass
class Env:
    """The surroundings of the kernels of one program.

    `sizes` holds a number for every size: what the caller knows, or a stand-in (`assumed` names those). `facts` hold
    for every value; numbers are for costs and limits only, never for legality. `named` and `accesses` remember what was
    found of statements, which they keep alive so that an id is never another statement's; `laid` the last layout;
    `answers` what the schedules said of the nests of a step.
    """

    program: Program
    facts: Facts
    fresh: Fresh
    device: Device
    sizes: dict[str, int]
    assumed: frozenset[str]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    indices: set[str] = field(default_factory=set)
    named: dict[int, tuple[Stmt, Names, frozenset[str]]] = field(default_factory=dict)
    accesses: dict[int, tuple[Stmt, Any]] = field(default_factory=dict)
    laid: tuple[Kernel, dict[str, Buffer], Layout] | None = None
    answers: dict[tuple[Stmt, ...], list[tuple[Any, Any]]] = field(default_factory=dict)

    def index(self, origin: str, taken: Container[str]) -> str:
        """A name for a loop index that comes from `origin` and is not among `taken`; other kernels may have it too."""
        stem, _, count = origin.rpartition(".")
        base, number = (stem if stem and count.isdecimal() else origin), 1
        while (name := f"{base}.{number}") in taken or (name in self.fresh.used and name not in self.indices):
            number += 1
        self.fresh.used.add(name)
        self.indices.add(name)
        return name

    def value(self, poly: Poly) -> int:
        """The number that a polynomial over sizes stands for here."""
        return int(poly.value(self.sizes))

    def known(self, poly: Poly) -> bool:
        """Whether that number is settled and no stand-in has part in it."""
        return not poly.names & self.assumed

    def sized(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the names that are sizes."""
        return frozenset(n for n in names if n in self.sizes)


def environment(program: Program, device: Device = H200, sizes: Mapping[str, int] | None = None) -> Env:
    """The surroundings of a program's kernels."""
    facts = size_facts(layout(Program(program.name, program.sizes, program.requires, program.buffers, ())))
    numbers, assumed = assume(program, sizes or {})
    return Env(program, facts, Fresh(program), device, numbers, assumed, {b.id: b for b in program.buffers})


def assume(program: Program, known: Mapping[str, int]) -> tuple[dict[str, int], frozenset[str]]:
    """A number for every size, and the names of those that are stand-ins.

    A stand-in follows from where a size first occurs as an extent in an input of the greatest rank, never from its
    name; it respects the size's least value and multiple.
    """
    numbers = {s.id: s.value for s in program.sizes if s.value is not None}
    numbers |= {n: v for n, v in known.items() if any(s.id == n for s in program.sizes)}
    places: dict[str, tuple[int, int]] = {}
    for buffer in program.buffers:
        if buffer.role not in ("in", "frozen"):
            continue
        rank = len(buffer.shape)
        for axis, extent in enumerate(buffer.shape):
            for name in extent.names:
                if name not in places or places[name][0] < rank:
                    places[name] = (rank, axis)
    assumed = set()
    for size in program.sizes:
        if size.id in numbers:
            continue
        rank, axis = places.get(size.id, (0, 0))
        row = STAND_INS.get(rank, ())
        value = row[axis] if axis < len(row) else OTHER
        value = max(value, size.least or 0)
        numbers[size.id] = -(-value // size.multiple) * size.multiple
        assumed.add(size.id)
    return numbers, frozenset(assumed)


def alone(env: Env, kernel: Kernel, buffers: Mapping[str, Buffer] | None = None) -> Layout:
    """The layout of one kernel by itself: its statements, definitions and accesses, subscripts as polynomials."""
    table = env.buffers if buffers is None else buffers
    used = free_names(kernel.body)
    mine = tuple(table[n] for n in sorted((used.loads | used.stores) & table.keys()))
    return layout(Program(env.program.name, env.program.sizes, env.program.requires, mine, (kernel,)))
