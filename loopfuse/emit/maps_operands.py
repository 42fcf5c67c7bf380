"""The operands of a map kernel: how each access is carried out for vectors of adjacent elements."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

from loopfuse.emit.maps_access import SMALL, Access, Group, Key, Study
from loopfuse.ir import Affine, Let, Load, Ref, Store
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import subexprs

Kind = Literal["vector", "same", "element"]
PIECE = 16  # bytes of the widest access
LEAST_PIECE = 4  # narrower pieces of a vector are slower than single elements side by side
NEAR = 8  # rows: accesses so few rows apart share what the cache holds


@dataclass(frozen=True, slots=True)
class Operand:
    """An access of a kernel whose threads take `V` adjacent elements of the last group.

    `vector`: so are the elements of the access, moved in pieces of `piece` bytes; `same`: one element serves all;
    `element`: each by itself. `offset` is that of the first element where it is linear in the groups. `stage`: loads of
    a later stage have subscripts that those of earlier ones give; None: it stays where it stands in the body. `stream`:
    nobody reads it again soon. `needs` are the groups that it depends on.
    """

    access: Access
    kind: Kind
    offset: Poly | None
    piece: int
    stage: int | None
    stream: bool
    needs: frozenset[str]

    @property
    def store(self) -> bool:
        """Whether it writes."""
        return isinstance(self.access.node, Store)

    @property
    def words(self) -> float:
        """Registers that an element takes."""
        return max(1, self.access.size) / 4


class Operands:
    """All operands for the groups; `width` elements a thread."""

    def __init__(self, study: Study, groups: Sequence[Group], accesses: Collection[Access]) -> None:
        self.study, self.groups, self.all = study, groups, list(accesses)
        self.inner = groups[-1] if groups else None
        self.stages = self._stages()

    # -- which width --------------------------------------------------------------------------------------------------

    def width(self) -> int:
        """How many adjacent elements a thread takes: as many as fill 16 bytes of the widest stream, or 1."""
        if self.inner is None or any(self._alone(a) for a in self.all):
            return 1
        streams = [a for a in self.all if self.kind(a) == "vector"]
        if not streams:
            return 1
        width = max(1, PIECE // max(a.size for a in streams))
        if len(self.groups) > 1:
            extent = self.study.divisor(self.inner.extent)
            width = gcd(width, extent) if extent else width
        while width > 1 and any(self._piece(a, width) < min(LEAST_PIECE, width * a.size) for a in streams):
            width //= 2
        return width

    def _alone(self, access: Access) -> bool:
        """Whether single elements of a large operand are read, which threads side by side should do side by side."""
        if self.kind(access) != "element":
            return False
        study = self.study
        count = study.number(study.target.poly(_size(access)))
        return isinstance(access.node, Store) or count * SMALL >= study.elements

    def kind(self, access: Access) -> Kind:
        """How the access moves along the last group."""
        inner = self.inner
        if inner is None or not access.depends & {a.id for a in inner.axes}:
            return "same"
        offset = self.study.offset(access, self.groups)
        if not access.guarded and offset is not None and offset.coefficient(inner.atom) == ONE:
            return "vector"
        if access.unit is not None and [a.id for a in inner.axes] == [access.unit]:
            return "vector"
        return "element"

    def _piece(self, access: Access, width: int) -> int:
        """The bytes of the widest piece that every vector of the access is aligned to."""
        study, inner = self.study, self.inner
        assert inner is not None
        offset = study.offset(access, self.groups)
        if offset is not None:
            rest = offset - Poly.of(inner.atom) * offset.coefficient(inner.atom)
            found = study.divisor(rest)
        else:
            found = gcd(study.divisor(access.rest), study.divisor(study.target.poly(access.buffer.shape[-1])))
        elements = gcd(width, found) if found else width
        return min(PIECE, elements * access.size)

    # -- operands -----------------------------------------------------------------------------------------------------

    def made(self, width: int) -> list[Operand]:
        """The operands, loads before stores, each of a stage after those of the stages before it."""
        found = [self._operand(a, width) for a in self.all]
        return sorted(found, key=lambda o: (o.store, o.stage if o.stage is not None else 99))

    def _operand(self, access: Access, width: int) -> Operand:
        kind = self.kind(access)
        piece = self._piece(access, width) if kind == "vector" else access.size
        stage = self.stages.get(access.key) if isinstance(access.node, Load) else None
        if kind == "element" and width > 1:
            stage = None
        needs = frozenset(g.atom for g in self.groups if access.depends & {a.id for a in g.axes})
        whole = piece == min(PIECE, width * access.size) and len(needs) == len(self.groups)
        stream = kind == "vector" and whole and not self._shared(access)
        return Operand(access, kind, self.study.offset(access, self.groups), piece, stage, stream, needs)

    def _stages(self) -> dict[Key, int]:
        """The stage of each load that can be done before the body: nothing guards it, no let stands in its subscripts."""
        found: dict[Key, int] = {}
        lets = {s.id for s in self.study.body if isinstance(s, Let)} - set(self.study.affine)
        for access in self.all:
            if access.guarded or isinstance(access.node, Store):
                continue
            stage = 0
            for node in subexprs(*access.node.subs):
                named = {node.id} if isinstance(node, Ref) else node.poly.names if isinstance(node, Affine) else ()
                if lets.intersection(named):
                    stage = -1
                    break
                if isinstance(node, Load):
                    below = found.get((node.buffer, node.subs, node.modes))
                    stage = -1 if below is None else max(stage, below + 1)
                    if stage < 0:
                        break
            if stage >= 0:
                found[access.key] = stage
        return found

    def _shared(self, access: Access) -> bool:
        """Whether another access of the array is a few rows or elements away."""
        mine = self.study.offset(access, self.groups)
        for other in self.all:
            if other is access or other.node.buffer != access.node.buffer:
                continue
            theirs = self.study.offset(other, self.groups)
            if mine is None or theirs is None or self._near(mine, theirs):
                return True
        return False

    def _near(self, mine: Poly, theirs: Poly) -> bool:
        gap = self.study.target.poly(mine - theirs)
        if not gap.is_const:
            return bool(gap.names & {g.atom for g in self.groups})
        assert self.inner is not None
        span = abs(self.study.number(self.inner.extent))
        steps = [abs(self.study.number(mine.coefficient(g.atom))) for g in self.groups[:-1]]
        return any(abs(abs(gap.constant) - rows * step) < span for step in [0, *steps] for rows in range(NEAR))


def registers(made: Sequence[Operand], width: int, groups: int) -> float:
    """Registers for the loaded operands of a vector that depend on every group."""
    streams = [o for o in made if not o.store and o.stage is not None and len(o.needs) == groups]
    return sum(max(1.0, o.words * width) for o in streams)


def _size(access: Access) -> Poly:
    total = ONE
    for extent in access.buffer.shape:
        total = total * extent
    return total if access.buffer.shape else ZERO + 1
