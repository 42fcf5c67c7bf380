"""Ways to damage bytes: what a broken disk, a cut transfer, a wrong tool or someone with bad intentions makes of a file."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

TOKEN = re.compile(rb"\s+|\w+|[^\w\s]")
NUMBER = re.compile(rb"(?<![\w.])\d+(?:\.\d+)?")
LARGE = (
    0,
    1,
    127,
    128,
    255,
    256,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
NUMBERS = (b"0", b"-1", b"1e999", b"1e-999", b"nan", b"-0.0", b"9" * 25, b"9" * 330, b"9" * 5000, b"0x" + b"f" * 40,
           b"2147483648", b"9223372036854775808", b"18446744073709551616", b"1e400000000", b"4294967295")  # fmt: skip
ODD = (b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", "\u202e".encode(), "\u2028".encode(),
       b"\x1b[31m", b"\r", b"\t", b"\x0c", b'"', b"'", b"\\", b"#", b"{", b"}", b"[" * 40, b"(" * 400, b"-" * 3000, b"\n" * 50,
       "\u0669".encode(), "\u00b2".encode(), "\U0001f600".encode(), b"*/", b"??/", b"%s%n{}")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    10**25,
    10**400,
    "",
    "x",
    "../x",
    "\u202e\0",
    [],
    {},
    [[]],
    {"is": 1},
    [None] * 9,
)
Damage = Callable[[bytearray, random.Random], None]


def bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def values(data: bytearray, rng: random.Random) -> None:
    """A byte becomes another."""
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def drop(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 4, 16, 200))]


def double(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    part = bytes(data[at : at + rng.choice((1, 4, 16, 200))])
    data[at:at] = part * rng.choice((1, 1, 2, 50))


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(ODD)


def length(data: bytearray, rng: random.Random) -> None:
    """A field of 2, 4 or 8 bytes, near the start or the end where headers stand, becomes a length that lies."""
    width = rng.choice((2, 4, 8))
    reach = min(len(data), 64) if rng.random() < 0.7 else len(data)
    at = rng.randrange(reach) if rng.random() < 0.6 else max(len(data) - 1 - rng.randrange(reach), 0)
    value = rng.choice(LARGE) & ((1 << 8 * width) - 1)
    data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def number(data: bytearray, rng: random.Random) -> None:
    """A number in a text becomes one that is huge, negative, or none."""
    found = [m.span() for m in NUMBER.finditer(data)]
    if found:
        start, end = rng.choice(found)
        data[start:end] = rng.choice(NUMBERS)


def tokens(data: bytearray, rng: random.Random) -> None:
    """Words and signs of a text are dropped, doubled, exchanged or replaced by others of it."""
    found = TOKEN.findall(data)
    if not found:
        return
    for _ in range(rng.choice((1, 1, 2, 4))):
        i, j = rng.randrange(len(found)), rng.randrange(len(found))
        match rng.randrange(4):
            case 0:
                found[i] = b""
            case 1:
                found[i] += b" " + found[i]
            case 2:
                found[i], found[j] = found[j], found[i]
            case _:
                found[i] = found[j]
    data[:] = b"".join(found)


def structure(data: bytearray, rng: random.Random) -> None:
    """A value of a JSON text becomes another, or is left out: what a wrong version or a wrong tool writes."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return
    places = list(_places(whole))
    if not places:
        return
    within, key = rng.choice(places)
    if rng.random() < 0.2:
        del within[key]
    else:
        within[key] = rng.choice((*VALUES, rng.choice(places)[0]))
    with contextlib.suppress(ValueError, RecursionError):  # a value within itself
        data[:] = json.dumps(whole, separators=(",", ":")).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where the values within a value stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


BINARY: tuple[Damage, ...] = (bits, values, cut, drop, double, insert, length, length, number)
TEXT: tuple[Damage, ...] = (bits, cut, drop, double, insert, number, number, tokens, tokens, tokens)
JSON: tuple[Damage, ...] = (*TEXT, *(structure,) * 12)


def damaged(seeds: Sequence[bytes], rng: random.Random, ways: Sequence[Damage]) -> bytes:
    """One of some files with one to three damages; now and then a splice of two of them, or noise."""
    kind = rng.random()
    if kind < 0.01:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(seeds))
    if kind < 0.1:
        other = rng.choice(seeds)
        data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if data:
            rng.choice(ways)(data, rng)
    return bytes(data)
