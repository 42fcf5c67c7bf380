"""Arrays from files and to files, by the extension of the name; a key behind a colon names one array of several.

Every failure is a `UserError` that names the file and, where the name stands in a script, the place. Nothing is
converted in silence except byte order and palettes. Writing never leaves part of a file, and makes the
folders that are missing.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loopfuse.diag import Span, UserError, error
from loopfuse.dtypes import DType
from loopfuse.formats import images, npy, raw, tensors, text
from loopfuse.formats.common import Array, BadFile
from loopfuse.generate import Supplier

CONTAINERS = (".npz", ".safetensors")
TEXT = (".txt", ".csv")
RAW = (".raw", ".bin")
SUPPORTED = "npy npz safetensors png jpg ppm txt csv raw bin"


@dataclass(frozen=True, slots=True)
class Place:
    """A file as the user names it: `text` as written, the folder it is relative to, and where it was written."""

    text: str
    folder: Path
    span: Span | None = None

    @property
    def name(self) -> str:
        """The name without a key."""
        return _split(self.text)[0]

    @property
    def key(self) -> str | None:
        """The part behind the colon, for the formats that hold several arrays."""
        return _split(self.text)[1]

    @property
    def path(self) -> str:
        """The path to open."""
        return os.path.join(self.folder, os.path.expanduser(self.name))

    @property
    def extension(self) -> str:
        """The extension, lower case, with its dot."""
        return os.path.splitext(self.name)[1].lower()

    def fail(self, why: BadFile) -> UserError:
        """The user's error that a format's complaint amounts to."""
        notes = [why.note] if why.note else []
        return UserError(error(why.code, f"`{self.text}` {why.message}", self.span, notes=notes, fix=why.fix))


def _split(written: str) -> tuple[str, str | None]:
    for extension in CONTAINERS:
        match = re.match(rf"(.+?{re.escape(extension)}):(.+)$", written, re.IGNORECASE | re.DOTALL)
        if match:
            return match[1], match[2]
    return written, None


# -- reading ----------------------------------------------------------------------------------------------------------


def load(place: Place, dtype: DType, rank: int, name: str) -> Array | Supplier:
    """The array in a file, for an input `name` declared with `dtype` and `rank` axes.

    Shape and type are those of the file; only text is read in the declared type. A file without a header becomes a
    `Supplier`, read when the extents are known.
    """
    if "\0" in place.text or not place.name:
        raise place.fail(BadFile("LF0510", "is not a file name"))
    _find(place)
    try:
        return _read(place, dtype, rank, name)
    except BadFile as why:
        raise place.fail(why) from why
    except (OSError, MemoryError) as why:
        raise place.fail(BadFile("LF0510", f"cannot be read: {_reason(why)}")) from why


def _read(place: Place, dtype: DType, rank: int, name: str) -> Array | Supplier:
    extension, path = place.extension, place.path
    if extension == ".npz":
        return npy.read_npz(path, place.key, name, dtype)
    if extension == ".safetensors":
        return tensors.read_tensor(path, place.key, name)
    size = os.path.getsize(path)
    if extension in RAW:
        return raw.RawFile(path, size, place.text, place.span)
    with open(path, "rb") as file:
        if extension == ".npy":
            return npy.read_npy(file, size, dtype)
        if extension in images.EXTENSIONS:
            return images.read_image(file)
        if extension in TEXT:
            return text.read_text(file, dtype, rank)
    raise BadFile("LF0513", "is of an unknown kind", note=f"the kinds are {SUPPORTED}")


def _find(place: Place) -> None:
    """Make sure that the name is that of a readable file."""
    path = place.path
    if os.path.isdir(path):
        raise place.fail(BadFile("LF0510", "is a folder, not a file"))
    if not os.path.exists(path):
        near = _near(path)
        known = re.fullmatch(r"[a-z]+(\(.*\))?", place.text)
        note = "generators are randn uniform randint zeros ones iota const" if known else None
        raise place.fail(
            BadFile("LF0510", "does not exist", fix=f"did you mean `{near}`?" if near else None, note=note)
        )
    if not os.path.isfile(path):
        raise place.fail(BadFile("LF0510", "is not a regular file"))


def _near(path: str) -> str | None:
    folder, name = os.path.split(path)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return None
    found = difflib.get_close_matches(name, there, 1, 0.6)
    return found[0] if found else None


def _reason(why: BaseException) -> str:
    return getattr(why, "strerror", None) or ("no memory" if isinstance(why, MemoryError) else str(why))


# -- writing ----------------------------------------------------------------------------------------------------------


def save_all(results: Iterable[tuple[Place, str, Array]]) -> list[str]:
    """Write each array `(place, output's name, array)`; either all files appear or none. Returns their paths.

    Several arrays may go into one container under different keys; without a key the output's name is the key.
    """
    groups: dict[str, tuple[Place, dict[str, Array]]] = {}
    for place, name, array in results:
        _, members = groups.setdefault(os.path.realpath(place.path), (place, {}))
        key = (place.key or name) if place.extension in CONTAINERS else ""
        if key in members:
            raise place.fail(BadFile("LF0515", "is written by two outputs"))
        members[key] = array
    staged: list[tuple[str, str, Place]] = []
    try:
        for target, (place, members) in groups.items():
            staged.append((_stage(target, place, members), target, place))
        for temporary, target, place in staged:
            _replace(temporary, target, place)
    finally:
        for temporary, _, _ in staged:
            if os.path.exists(temporary):
                os.unlink(temporary)
    return list(groups)


def _stage(target: str, place: Place, members: Mapping[str, Array]) -> str:
    """Write a temporary file beside the target; returns its path."""
    if os.path.exists(target) and not os.path.isfile(target):
        raise place.fail(BadFile("LF0515", "cannot be written: it is not a regular file"))
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise place.fail(BadFile("LF0515", "cannot be written: it is read-only"))
    temporary = ""
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary = os.path.join(os.path.dirname(target), f".loopfuse-{secrets.token_hex(8)}")
        with open(temporary, "x+b") as file:
            _write(file, place.extension, members)
    except BaseException as why:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(why, BadFile):
            raise place.fail(why) from why
        if isinstance(why, OSError):
            raise place.fail(BadFile("LF0515", f"cannot be written: {_reason(why)}")) from why
        raise
    return temporary


def _write(file: IO[bytes], extension: str, members: Mapping[str, Array]) -> None:
    array = next(iter(members.values()))
    if extension == ".npy":
        npy.write_npy(file, array)
    elif extension == ".npz":
        npy.write_npz(file, members)
    elif extension == ".safetensors":
        tensors.write_tensors(file, members)
    elif extension in RAW:
        raw.write_raw(file, array)
    elif extension in TEXT:
        text.write_text(file, array, "," if extension == ".csv" else " ")
    elif extension in images.EXTENSIONS:
        images.write_image(file, array, extension)
    else:
        raise BadFile("LF0513", "is of an unknown kind", note=f"the kinds are {SUPPORTED}")


def _replace(temporary: str, target: str, place: Place) -> None:
    try:
        os.replace(temporary, target)
    except OSError as why:
        raise place.fail(BadFile("LF0515", f"cannot be written: {_reason(why)}")) from why
