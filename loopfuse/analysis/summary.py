"""What an expression holds, apart from where it stands: its loads, the names it needs, and the work of its operations.

A summary depends on the expression alone and is kept by the object: the search for fusions asks for the same
expressions hundreds of times, in ever larger kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from loopfuse.dtypes import DType
from loopfuse.ir import Affine, Const, Expr, Load, Op, Ref, Select
from loopfuse.ops import INFIX, OPS, from_bits
from loopfuse.rewrite import children, subexprs

MOST_KEPT = 20_000
POWER = INFIX["**"].name


@dataclass(frozen=True, slots=True)
class Work:
    """Operations: on floats of at most 32 bits, of 64 bits, on integers, and slots of the special-function unit."""

    flops: int = 0
    doubles: int = 0
    integers: int = 0
    special: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.doubles + other.doubles, self.integers + other.integers,
                    self.special + other.special)  # fmt: skip

    def __mul__(self, times: int) -> Work:
        return Work(self.flops * times, self.doubles * times, self.integers * times, self.special * times)

    @property
    def all(self) -> int:
        """Operations of every kind but the special functions."""
        return self.flops + self.doubles + self.integers


NONE = Work()


@dataclass(frozen=True, slots=True)
class Summary:
    """An expression: `names` are the values and the names of polynomials that it mentions, `loads` its loads.

    `groups` are the operations by the names that they need (an operation that needs fewer names can be done further
    out). `width` is the number of values held at once while it is computed.
    """

    names: frozenset[str]
    loads: tuple[Load, ...]
    groups: tuple[tuple[frozenset[str], Work], ...]
    width: int


_kept: dict[int, tuple[Expr, Summary]] = {}


def summary(expr: Expr) -> Summary:
    """The summary of an expression."""
    found = _kept.get(id(expr))
    if found is None:
        if len(_kept) > MOST_KEPT:
            _kept.clear()
        found = _kept[id(expr)] = (expr, _summary(expr))
    return found[1]


def _summary(root: Expr) -> Summary:
    needs: dict[int, frozenset[str]] = {}
    widths: dict[int, int] = {}
    loads: list[Load] = []
    groups: dict[frozenset[str], Work] = {}
    for node in subexprs(root):
        below = children(node)
        mine = _own(node)
        for child in below:
            theirs = needs[id(child)]
            mine = theirs if not mine else mine | theirs if not theirs <= mine else mine
        needs[id(node)] = mine
        widths[id(node)] = _width(node, [widths[id(child)] for child in below])
        if isinstance(node, Load):
            loads.append(node)
        elif isinstance(node, Op):
            work = _power(node) or work_of(node.op, node.args[-1].dtype, node.dtype)
            if work is not NONE:
                groups[mine] = groups.get(mine, NONE) + work
        elif isinstance(node, Select):
            groups[mine] = groups.get(mine, NONE) + Work(flops=1)
    return Summary(needs[id(root)], tuple(loads), tuple(groups.items()), widths[id(root)])


def _own(node: Expr) -> frozenset[str]:
    """The names that stand in the node itself. A load needs its buffer too, in case it is written in the kernel."""
    if isinstance(node, Affine):
        return node.poly.names
    if isinstance(node, Ref):
        return frozenset((node.id,))
    if isinstance(node, Load):
        return frozenset((node.buffer,))
    return frozenset()


def _width(node: Expr, below: list[int]) -> int:
    if isinstance(node, Load):
        return 1
    if not below:
        return 0 if not isinstance(node, Ref) else 1
    return max(1, *(w + k for k, w in enumerate(sorted(below, reverse=True))))


def _power(node: Op) -> Work | None:
    """The work of a power by a small number, which is multiplied out."""
    exponent = node.args[-1]
    if node.op != POWER or not isinstance(exponent, Const):
        return None
    value = float(from_bits(exponent.bits, exponent.dtype))
    if not abs(value) <= 4 or 2 * value != round(2 * value):
        return None
    times = (
        Work(flops=max(1, ceil(abs(value)))) if exponent.dtype.bits <= 32 else Work(doubles=max(1, ceil(abs(value))))
    )
    return times + Work(special=1) if value < 0 or value != round(value) else times


def work_of(op: str, operand: DType, result: DType) -> Work:
    """The work of one operation. A cast between floats is half of nothing: hardware converts as it loads and stores."""
    row = OPS[op]
    if row.gives == "explicit":
        return NONE if operand.is_float == result.is_float else Work(flops=1)
    if operand.is_float:
        if operand.bits == 64:
            return Work(doubles=row.flops + 8 * row.special)
        return Work(flops=row.flops, special=row.special)
    return Work(integers=row.flops, special=row.special)
