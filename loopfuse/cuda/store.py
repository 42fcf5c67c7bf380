"""Files of a cache: private, written whole or not at all, checked when read, thrown away when not used for long.

An entry is a JSON object in `KEY.json`, whose first member is the checksum of the rest; bytes that belong to it stand in
`KEY.cubin`, and their checksum in the object. Whatever is not exactly as it was written is taken to be absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopfuse.outside import is_private, read_json, read_private

MOST_BYTES = 1 << 30
MOST_OF_FILE = 1 << 28
TEMPORARY = ".new-"
_ABANDONED = 3600.0  # seconds after which a temporary file has no writer any more
_FRESH = 3600.0  # seconds for which a use need not be noted again
_HEAD = '{"checksum":"'


@dataclass(frozen=True, slots=True)
class Item:
    """A file pair of a folder: its key, its bytes on disk, and when it was used last, in seconds since 1970."""

    folder: Folder
    key: str
    bytes: int
    used: float


class Folder:
    """A folder of entries, made when the first is written. `problem` says why it is of no use, "" where it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.ours: bool | None = None  # not known until there is a folder

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """An entry and its bytes, or None where it is absent, damaged, or not ours."""
        if not self._ours():
            return None
        about = self.about(key)
        if about is None:
            return None
        body = b""
        if "sha256" in about:
            body = self._bytes(f"{key}.cubin") or b""
            if hashlib.sha256(body).hexdigest() != about["sha256"]:
                return None
        return about, body

    def about(self, key: str) -> dict[str, Any] | None:
        """The object of an entry alone."""
        found = _opened(self._bytes(f"{key}.json") or b"")
        return found if found and found.get("key") == key else None

    def used(self, key: str) -> None:
        """Note that an entry is of use."""
        path = self.path / f"{key}.json"
        with suppress(OSError):
            if os.stat(path).st_mtime < time.time() - _FRESH:
                os.utime(path)

    def items(self) -> Iterator[Item]:
        """The entries on disk, whole or not."""
        found: dict[str, tuple[int, float]] = {}
        with suppress(OSError), os.scandir(self.path) as files:
            for file in files:
                key, _, ending = file.name.partition(".")
                if key and ending in ("json", "cubin"):
                    with suppress(OSError):
                        told = file.stat(follow_symlinks=False)
                        size, used = found.get(key, (0, 0.0))
                        found[key] = (size + told.st_size, max(used, told.st_mtime))
        return (Item(self, key, size, used) for key, (size, used) in found.items())

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, key: str, about: dict[str, Any], body: bytes | None = None) -> int:
        """Write an entry in place of an older one; returns its bytes, 0 where nothing could be written."""
        if not self._made():
            return 0
        if body is not None:
            about = {**about, "sha256": hashlib.sha256(body).hexdigest()}
        text = _sealed({**about, "key": key})
        try:
            if body is not None:
                self._replace(f"{key}.cubin", body)
            self._replace(f"{key}.json", text)
        except OSError as why:
            self.problem = f"{self.path} cannot be written: {why.strerror}"
            return 0
        self.problem = ""
        return len(text) + len(body or b"")

    def remove(self, key: str) -> None:
        """Take an entry away; the bytes last, so that none is read without them."""
        for ending in ("json", "cubin"):
            with suppress(OSError):
                os.unlink(self.path / f"{key}.{ending}")

    def tidy(self) -> None:
        """Take away what writers that were stopped have left."""
        with suppress(OSError), os.scandir(self.path) as files:
            for file in files:
                if file.name.startswith(TEMPORARY):
                    with suppress(OSError):
                        if file.stat(follow_symlinks=False).st_mtime < time.time() - _ABANDONED:
                            os.unlink(file.path)

    # -- files --------------------------------------------------------------------------------------------------------

    def _ours(self) -> bool:
        """Whether the folder is there and only we can write to it."""
        if self.ours is None:
            try:
                told = os.lstat(self.path)
            except OSError:
                return False
            self.ours = stat.S_ISDIR(told.st_mode) and is_private(told)
            if not self.ours:
                self.problem = f"{self.path} belongs to someone else, or others may write to it"
        return self.ours

    def _made(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as why:
            self.problem = f"{self.path} cannot be made: {why.strerror}"
            return False
        return self._ours()

    def _bytes(self, name: str) -> bytes | None:
        """A file's bytes, if it is a plain file of ours that no one else may write."""
        return read_private(self.path / name, MOST_OF_FILE)

    def _replace(self, name: str, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.path, prefix=TEMPORARY)  # for its owner alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self.path / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def shrink(folders: Sequence[Folder], most: int) -> int:
    """Take away the entries that were not used for longest until three quarters of `most` are left; the bytes freed.

    Nothing is taken while there is room.
    """
    items = sorted((item for folder in folders for item in folder.items()), key=lambda item: item.used)
    total, freed = sum(item.bytes for item in items), 0
    for folder in folders:
        folder.tidy()
    if total <= most:
        return 0
    for item in items:
        if total - freed <= most * 3 // 4:
            break
        item.folder.remove(item.key)
        freed += item.bytes
    return freed


def _sealed(about: dict[str, Any]) -> bytes:
    body = json.dumps(about, ensure_ascii=True, separators=(",", ":"))
    return f'{_HEAD}{hashlib.sha256(body.encode()).hexdigest()}",{body[1:]}'.encode()


def _opened(data: bytes) -> dict[str, Any] | None:
    """The object of a file that `_sealed` made; None for any other."""
    start = len(_HEAD)
    body = b"{" + data[start + 66 :]
    if data[:start] != _HEAD.encode() or hashlib.sha256(body).hexdigest().encode() != data[start : start + 64]:
        return None
    try:
        found: dict[str, Any] = read_json(body)
    except ValueError:
        return None
    return found
