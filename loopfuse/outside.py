"""What comes from outside: texts and files that are read without trust, and characters that are shown without harm."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

MOST_TEXT = 1 << 26
_UNIX = hasattr(os, "geteuid")
_WORDS = re.compile(r"[^ -~]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for any other text, one that is nested too deeply among them."""
    try:
        return json.loads(text)
    except RecursionError as why:
        raise ValueError("it is nested too deeply") from why


def read_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError for any other text, one that is nested too deeply among them."""
    try:
        return tomllib.loads(text)
    except RecursionError as why:
        raise ValueError("it is nested too deeply") from why


def read_whole(path: Path, most: int = MOST_TEXT, plain: bool = False) -> bytes:
    """The bytes of a file that holds at most `most`. `plain`: of a plain file or none, so that nothing is waited for.

    Raises OSError; a larger file is one too.
    """
    handle = os.open(path, os.O_RDONLY | (getattr(os, "O_NONBLOCK", 0) if plain else 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if plain and not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return data


def read_private(path: Path, most: int) -> bytes | None:
    """The bytes of a plain file of ours that no one else may write, at most `most`; None for anything else.

    Links are not followed, and what is no plain file is not waited for.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            told = os.fstat(handle)
            if not stat.S_ISREG(told.st_mode) or not is_private(told) or told.st_size > most:
                return None
            data = file.read(most + 1)
        except OSError:
            return None
    return data if len(data) <= most else None


def unwritable(path: Path, folder: bool = False, makes: bool = True) -> str:
    """Why a file (or a `folder` with files) could not be written at a path, "" where it could; nothing is left there. `makes`:
    folders on the way that are absent will be made."""
    if path.exists() and path.is_dir() != folder:
        return f"`{path}` is a {'file' if folder else 'folder'}"
    start = path if folder else path.absolute().parent
    there = next(p for p in (start, *start.absolute().parents) if p.exists())
    if not there.is_dir():
        return f"`{there}` is a file"
    if there != start and not makes:
        return f"there is no folder `{start}`"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"`{there}` is not writable"
    try:
        if not _UNIX or os.statvfs(there).f_blocks:
            return ""
        with tempfile.TemporaryFile(dir=there):  # /proc and its like have no blocks and take no files, whoever asks
            return ""
    except OSError as why:
        return f"`{there}` takes no files" + f" ({why.strerror})" * (why.errno != errno.ENOENT)


def is_private(told: os.stat_result) -> bool:
    """Whether a file or folder is ours, and no one else may write it."""
    return not _UNIX or (told.st_uid == os.geteuid() and not told.st_mode & 0o022)


# -- showing ----------------------------------------------------------------------------------------------------------


def visible(text: str, lines: bool = True) -> str:
    """The text with escapes in place of what a terminal would obey or not show: control characters, marks that change the
    direction of writing, halves of characters. Ends of lines and tabs stay, unless `lines` is false."""
    bare = text.replace("\n", "").replace("\t", "") if lines else text
    if bare.isprintable():
        return text
    return "".join(c if _shows(c) or (lines and c in "\n\t") else _escape(c) for c in text)


def one_line(text: str) -> str:
    """The text for a comment of CUDA C, on one line: nothing in it ends the comment or takes the next line into it."""
    return visible(text, lines=False).replace("\\", "/").replace("??", "? ?").replace("*/", "* /").replace("/*", "/ *")


def _shows(c: str) -> bool:
    return c.isprintable() or unicodedata.category(c) == "Zs"


def _escape(c: str) -> str:
    code = ord(c)
    return _ESCAPES.get(c) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def write_json(value: Any, indent: int | None = None) -> str:
    """JSON whose strings stay readable, and hold nothing that `visible` would escape but as an escape of JSON's."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if text.isascii() and "\x7f" not in text else _WORDS.sub(_json_escape, text)


def write_toml_string(text: str) -> str:
    """A basic string of TOML, as `write_json` writes texts."""
    return _WORDS.sub(lambda m: _toml_escape(m[0]), json.dumps(text, ensure_ascii=False))


def _toml_escape(c: str) -> str:
    return c if _shows(c) else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def _json_escape(match: re.Match[str]) -> str:
    c = match[0]
    if c == "\n" or _shows(c):  # an end of line in JSON stands between values
        return c
    units = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
