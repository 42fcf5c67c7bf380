"""How the arguments of commands are read: `B=4 N=2^10`, `x=uniform(0, 1) w=w.npy`."""

from __future__ import annotations

import re

from loopfuse.diag import UserError, error
from loopfuse.generate import parse_number


def pairs(text: str) -> dict[str, str]:
    """`NAME=VALUE` pairs, with blanks or commas between; a value goes on to the next name. Raises `UserError` LF0502."""
    starts = list(re.finditer(r"(?:(?<=[\s,])|^)([^\W\d]\w*)\s*=(?!=)", text))
    lead = text[: starts[0].start()] if starts else text
    if lead.strip(" ,"):
        raise UserError(error("LF0502", f"`{lead.strip()}` is not NAME=VALUE"))
    found: dict[str, str] = {}
    for number, match in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        found[match[1]] = text[match.end() : end].strip(" ,\t")
    return found


def integers(text: str) -> dict[str, int]:
    """`NAME=N` pairs of integers; `2^10` and `2**10` are powers. Raises `UserError` LF0506."""
    found: dict[str, int] = {}
    for name, value in pairs(text).items():
        base, power, exponent = value.replace("**", "^").replace("_", "").partition("^")
        low, high = parse_number(base.strip()), parse_number(exponent.strip()) if power else 1
        if type(low) is not int or type(high) is not int or not 0 <= high <= 63:
            raise UserError(error("LF0506", f"`{name}={value}`: `{value}` is not an integer"))
        found[name] = int(low**high)
    return found
