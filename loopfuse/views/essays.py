"""The essays on error codes, from the file that documents them."""

from __future__ import annotations

import re
from importlib import resources


def normalize(text: str) -> str:
    """`lf304`, `304`, `error[LF0304]` as `LF0304`."""
    digits = re.search(r"\d{1,4}", text)
    return f"LF{int(digits[0]):04}" if digits else text


def read_essays() -> dict[str, str]:
    """The essays by their codes, in the order of the file."""
    text = resources.files("loopfuse").joinpath("codes.md").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## LF\d{4}\b)", text)[1:]
    return {section[3:9]: section.rstrip() for section in sections}
