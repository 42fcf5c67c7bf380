"""What no script reaches, with the reason of each: the coverage table counts it apart."""

from __future__ import annotations

from collections.abc import Mapping

_WIDE = "values of 16 bits are added and multiplied in f32"
_LOGIC = "`|=` and `&=` of bools are the monoids `any` and `all`"

# By the names that coverage counts.
UNREACHABLE: Mapping[str, str] = {
    "rule abs-squared": "lowering names a value that stands twice; the rule is for loops that are written by hand",
    "fold sum f16": _WIDE,
    "fold sum bf16": _WIDE,
    "fold prod f16": _WIDE,
    "fold prod bf16": _WIDE,
    "fold bitor bool": _LOGIC,
    "fold bitand bool": _LOGIC,
}
