"""Element types and the one promotion table.

The language never converts in silence: the type checker consults `promote` and inserts an explicit cast, so that no
back end decides a type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "uint", "int", "float"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name in the language, its kind, and its width in bits."""

    name: str
    kind: Kind
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """f16, bf16, f32 or f64."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """A signed or unsigned integer; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return max(self.bits // 8, 1)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type (`ml_dtypes.bfloat16` for bf16)."""
        return _NUMPY[self.name]

    @property
    def least(self) -> int:
        """The least value of an integer type; 0 for bool."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def greatest(self) -> int:
        """The greatest value of an integer type; 1 for bool."""
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - (self.kind == "int"))) - 1

    @property
    def mantissa(self) -> int:
        """Significant bits of a float type, the implicit one included."""
        return _MANTISSA[self.name]

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number of a float type."""
        return 2.0 ** -_MANTISSA[self.name]

    @property
    def accumulator(self) -> DType:
        """The type in which a sum of this type accumulates (bool and integers: 64 bits; f16 and bf16: f32)."""
        if self.kind == "bool" or self.kind == "int":
            return I64
        if self.kind == "uint":
            return U64
        return F32 if self.bits == 16 else self


BOOL = DType("bool", "bool", 1)
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
I8, I16, I32, I64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
F16, F32, F64 = (DType(f"f{b}", "float", b) for b in (16, 32, 64))
BF16 = DType("bf16", "float", 16)

DTYPES: dict[str, DType] = {d.name: d for d in (BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64)}
_MANTISSA = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_NUMPY: dict[str, np.dtype[Any]] = {
    **{
        f"{k[0]}{b}": np.dtype(f"{k}{b}")
        for k in ("int", "uint", "float")
        for b in (8, 16, 32, 64)
        if k + str(b) != "float8"
    },
    "bool": np.dtype(np.bool_),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

# The heads that a function's parameter type may have, beside a dtype.
CLASSES: dict[str, tuple[str, ...]] = {
    "any": ("bool", "uint", "int", "float"),
    "num": ("uint", "int", "float"),
    "int": ("uint", "int"),
    "float": ("float",),
}


def of_numpy(dtype: Any) -> DType | None:
    """The element type of a NumPy dtype, or None where the language has none (complex, strings, objects)."""
    native = np.dtype(dtype).newbyteorder("=")
    for name, candidate in _NUMPY.items():
        if candidate == native:
            return DTYPES[name]
    return None


def promote(a: DType, b: DType) -> DType | None:
    """The type in which `a` and `b` meet, or None where the language asks for a cast.

    Floats widen among themselves, except f16 with bf16; integers widen among themselves, except i64 with u64; bool
    meets only bool. Floats and integers never meet.
    """
    if a == b:
        return a
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            return None
        return a if a.bits > b.bits else b
    if a.is_int and b.is_int:
        if a.kind == b.kind:
            return a if a.bits > b.bits else b
        signed, unsigned = (a, b) if a.kind == "int" else (b, a)
        if signed.bits > unsigned.bits:
            return signed
        return DTYPES[f"i{2 * unsigned.bits}"] if unsigned.bits < 64 else None
    return None
