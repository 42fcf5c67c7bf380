"""How operations are written in CUDA C: spellings with their errors, and the small functions that some call.

A spelling is a template: `{0}` `{1}` `{2}` are the operands, `{T}` the C type of the result, `{A}` that of the
operands, `{W}` an unsigned type of at least 32 bits in which the operands' integer arithmetic wraps. f16 and bf16
have no spellings: their operands are converted to f32, which is exact, and the result is rounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from loopfuse.dtypes import BF16, F16, F32, DType

C_TYPES = {
    "bool": "bool", "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned int", "u64": "unsigned long long",
    "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long", "f16": "float", "bf16": "float",
    "f32": "float", "f64": "double",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spelling:
    """A CUDA expression for an operation at the types `target` names (a dtype, a kind, or `any`).

    `ulp` bounds the error in units in the last place of the result (0: exact, 0.5: correctly rounded), `absolute` an
    error that comes on top, for operands within `domain`. An `approx` spelling is for `fast`, or for where its error
    is seen not to matter; `flushes` says that it treats denormals as zero.
    """

    target: str
    text: str
    ulp: float = 0.0
    approx: bool = False
    absolute: float = 0.0
    domain: tuple[float, float] = (float("-inf"), float("inf"))
    flushes: bool = False

    def format(self, args: tuple[str, ...], operand: DType, result: DType) -> str:
        """The expression over `args`, C expressions of the operands' type (float for f16 and bf16)."""
        wide = "unsigned long long" if operand.bits == 64 else "unsigned int"
        return self.text.format(*args, T=C_TYPES[result.name], A=C_TYPES[operand.name], W=wide)


def matches(spelling: Spelling, dtype: DType) -> int:
    """How well a spelling fits operands of a type: 3 by dtype, 2 by kind, 1 as `any`, 0 not."""
    name = F32.name if dtype in (F16, BF16) else dtype.name
    return 3 if spelling.target == name else 2 if spelling.target == dtype.kind else int(spelling.target == "any")


def helpers(text: str) -> list[str]:
    """The definitions that CUDA text needs, those that others call first."""
    found: dict[str, str] = {}

    def need(source: str) -> None:
        for name in re.findall(r"\blf_\w+", source):
            if name not in found:
                body = HELPERS[name]
                need(body.replace(name, ""))
                found[name] = body

    need(text)
    return list(found.values())


_FUNCTION = "static __device__ __forceinline__ "

HELPERS: dict[str, str] = {
    "lf_floordiv": _FUNCTION + """template <class T> T lf_floordiv(T a, T b) { return a; }""",
}
