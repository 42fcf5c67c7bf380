"""What was compiled before, in two levels, and in memory above them.

A program's entry holds its kernels' text and launches, so that a hit needs neither passes nor emission; its key is made
of everything that they depend on. A kernel's entry holds machine code; its key is made of the kernel's text, the
options and the compiler, so that programs share kernels. Nothing here fails: without a folder that can be written,
entries live as long as the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from loopfuse.cuda.binary import Binary, Options
from loopfuse.cuda.record import from_plain, to_plain
from loopfuse.cuda.store import MOST_BYTES, Folder, Item, shrink
from loopfuse.cuda.toolchain import fingerprint
from loopfuse.cuda.version import FORMAT, kernel_key
from loopfuse.diag import Source
from loopfuse.emit.code import Code
from loopfuse.frontend.lalr import cache_folder
from loopfuse.keeping import keep_few

Kind = Literal["kernel", "program"]
_IN_MEMORY = 512  # kernels, and programs
_MOST = 1e11  # of a number of an entry: 3000 years in seconds
_SWEEP = 86400.0  # seconds between two looks at the size of everything
_APART = ("cubin", "cached", "key")  # fields of a Binary that do not stand in its JSON


@dataclass(frozen=True, slots=True)
class Stored:
    """A program from the cache: what emission gave, a binary for each of its kernels in order, and the notes put by."""

    code: Code
    binaries: tuple[Binary, ...]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry on disk: what it says of itself (`about`, None where it is damaged), its bytes, when it was used last."""

    kind: Kind
    key: str
    about: dict[str, Any] | None
    bytes: int
    used: float


class Cache:
    """The cache in a folder; None: in memory only. `most_bytes` bounds what stays on disk."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.binaries: dict[str, Binary] = {}
        self.programs: dict[str, Stored] = {}
        self.folders: dict[Kind, Folder] = {}
        if folder:
            self.folders = {"kernel": Folder(folder / "kernels"), "program": Folder(folder / "programs")}
        self.written = -1  # bytes since the last sweep; none was yet

    @property
    def problem(self) -> str:
        """Why nothing is kept on disk; "" where everything is as it should be."""
        if self.folder is None:
            return "there is no folder for it"
        return next((f.problem for f in self.folders.values() if f.problem), "")

    # -- kernels ------------------------------------------------------------------------------------------------------

    def kernel(self, source: str, arch: str, options: Options, compiler: str | None = None) -> Binary | None:
        """The binary of a kernel's text, if this compiler (`LOOPFUSE_COMPILER`, by default) made it before."""
        return self._binary(kernel_key(source, arch, options, fingerprint(compiler)))

    def put_kernel(self, source: str, arch: str, options: Options, binary: Binary,
                   about: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        """Keep a binary. `about` is told again by `explain`: the plan, remarks."""
        key = binary.key or kernel_key(source, arch, options, fingerprint())
        keep_few(self.binaries, key, replace(binary, key=key, cached=True), _IN_MEMORY)
        if "kernel" in self.folders:
            said = {k: v for k, v in _fields(binary).items() if k not in _APART}
            record = {**_stamp("kernel"), "options": asdict(options), **said, **(about or {})}
            self._written(self.folders["kernel"].write(key, record, binary.cubin))

    def _binary(self, key: str) -> Binary | None:
        if found := self.binaries.get(key):
            return found
        if (read := self._read("kernel", key)) is None:
            return None
        about, cubin = read
        names = {f.name for f in fields(Binary)} - set(_APART)
        made = Binary(cubin=cubin, cached=True, key=key, **{k: v for k, v in about.items() if k in names})
        made = replace(made, warnings=tuple(made.warnings))
        keep_few(self.binaries, key, made, _IN_MEMORY)
        return made

    # -- programs -----------------------------------------------------------------------------------------------------

    def program(self, key: str, sources: Iterable[Source] = ()) -> Stored | None:
        """The program of a key that `program_key` made, with all of its binaries, or None.

        `sources` give spans their texts; spans of other sources are left out.
        """
        if found := self.programs.get(key):
            return found
        if (read := self._read("program", key)) is None:
            return None
        about, _ = read
        binaries = [b for k in about["kernels"] if (b := self._binary(k))]
        if len(binaries) != len(about["kernels"]):
            return None
        try:
            stored = Stored(from_plain(about["code"], sources), tuple(binaries), about["notes"])
        except ValueError:
            return None
        keep_few(self.programs, key, stored, _IN_MEMORY)
        return stored

    def put_program(
        self, key: str, code: Code, binaries: Sequence[Binary], notes: Mapping[str, Any] | None = None
    ) -> None:
        """Keep a program whose kernels are kept already. `notes` is whatever JSON can hold that a hit should have."""
        stored = Stored(code, tuple(replace(b, cached=True) for b in binaries), dict(notes or {}))
        keep_few(self.programs, key, stored, _IN_MEMORY)
        if "program" in self.folders:
            record = {
                **_stamp("program"), "name": code.name, "arch": binaries[0].arch if binaries else "",
                "kernels": [b.key for b in binaries], "notes": stored.notes, "code": to_plain(code),
            }  # fmt: skip
            self._written(self.folders["program"].write(key, record))

    # -- what is there ------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """What is on disk, the latest used first."""
        found = [
            Entry(kind, item.key, _sound(kind, folder.about(item.key)), item.bytes, item.used)
            for kind, folder in self.folders.items()
            for item in folder.items()
        ]
        return sorted(found, key=lambda e: (-e.used, e.kind, e.key))

    def explain(self, key: str) -> str:
        """What an entry is, when it was made, and by which compiler; "" where there is none of this key."""
        for kind, folder in self.folders.items():
            if (about := folder.about(key)) and is_sound(kind, about):
                return _kernel_story(about) if kind == "kernel" else _program_story(about)
        return ""

    def clear(self, before: float | None = None) -> tuple[int, int]:
        """Take away everything, or what was last used before a time (seconds since 1970); the entries and bytes freed."""
        self.binaries.clear()
        self.programs.clear()
        gone: list[Item] = []
        for folder in self.folders.values():
            folder.tidy()
            gone += [item for item in folder.items() if before is None or item.used < before]
        for item in gone:
            item.folder.remove(item.key)
        return len(gone), sum(item.bytes for item in gone)

    # -- disk ---------------------------------------------------------------------------------------------------------

    def _read(self, kind: Kind, key: str) -> tuple[dict[str, Any], bytes] | None:
        folder = self.folders.get(kind)
        found = folder.read(key) if folder else None
        if folder and found and is_sound(kind, found[0]):
            folder.used(key)
            return found
        return None

    def _written(self, count: int) -> None:
        """Look at the size of everything, now and then: once a day, and whenever much was written."""
        if not count or self.folder is None:
            return
        due = self.written + count > self.most_bytes // 8
        if self.written < 0:
            due = True
            with suppress(OSError):
                due = os.stat(self.folder / ".swept").st_mtime < time.time() - _SWEEP
        self.written = max(self.written, 0) + count
        if due:
            self.written = 0
            shrink(list(self.folders.values()), self.most_bytes)
            with suppress(OSError):
                (self.folder / ".swept").touch()


_OPEN: dict[Path | None, Cache] = {}


def open_cache(where: Path | str | bool | None = None) -> Cache:
    """The cache in a folder; None: that of `LOOPFUSE_CACHE_DIR`, or of the user; False: in memory only, and empty.

    A process has one cache a folder.
    """
    if where is False:
        return Cache(None)
    folder = Path(where) if isinstance(where, str | Path) else cache_folder()
    return _OPEN.get(folder) or _OPEN.setdefault(folder, Cache(folder))


# The fields of an entry that are relied upon. What has others is of another version, or damaged before it was sealed.
_NUMBER = (int, float)
_SHAPES: dict[Kind, dict[str, type | tuple[type, ...]]] = {
    "kernel": {"made": _NUMBER, "name": str, "arch": str, "compiler": str, "log": str, "seconds": _NUMBER, "warnings": list,
               "registers": int, "spill_stores": int, "spill_loads": int, "stack": int, "constant": int, "options": dict},
    "program": {"made": _NUMBER, "name": str, "arch": str, "kernels": list, "notes": dict, "code": dict},
}  # fmt: skip


def is_sound(kind: Kind, about: Mapping[str, Any]) -> bool:
    """Whether what an entry says of itself is what this version of the package writes."""
    if (about.get("format"), about.get("kind")) != (FORMAT, kind):
        return False
    if not all(isinstance(about.get(name), types) for name, types in _SHAPES[kind].items()):
        return False
    numbers = (v for v in about.values() if isinstance(v, _NUMBER))
    keys, words = about.get("kernels", []), about.get("warnings", [])
    known = {f.name for f in fields(Options)}
    return (all(abs(v) < _MOST for v in numbers) and all(isinstance(w, str) for w in (*keys, *words))
            and all(k.isalnum() for k in keys) and known == about.get("options", dict.fromkeys(known)).keys())  # fmt: skip


def _sound(kind: Kind, about: dict[str, Any] | None) -> dict[str, Any] | None:
    return about if about is not None and is_sound(kind, about) else None


def _fields(binary: Binary) -> dict[str, Any]:
    return {f.name: getattr(binary, f.name) for f in fields(binary)}


def _stamp(kind: Kind) -> dict[str, Any]:
    return {"format": FORMAT, "kind": kind, "made": time.time()}


# -- stories ----------------------------------------------------------------------------------------------------------


def _kernel_story(about: Mapping[str, Any]) -> str:
    spills, flags = about["spill_stores"] + about["spill_loads"], " ".join(Options(**about["options"]).flags)
    lines = [
        f"kernel {about['name']} for {about['arch']}",
        f"  made {_when(about)} by {about['compiler']} in {about['seconds'] * 1e3:.0f} ms with {flags}",
        f"  {about['registers']} registers, {f'{spills} bytes of spills' if spills else 'no spills'}, "
        f"{about['stack']} bytes of stack, {about['constant']} of constants",
        *(f"  {about[k]}" for k in ("schedule", "why") if about.get(k)),
        *(f"  {w}" for w in about["warnings"]),
        "  used again while the kernel's text, the options, the architecture and the compiler are the same",
    ]
    return "\n".join(lines)


def _program_story(about: Mapping[str, Any]) -> str:
    lines = [
        f"program {about['name']}{' for ' + about['arch'] if about['arch'] else ''}, kernels: {len(about['kernels'])}",
        f"  made {_when(about)}",
        *(f"  {k}: {v}" for k, v in about["notes"].items() if isinstance(v, str | int | float)),
        *(f"  kernel {k}" for k in about["kernels"]),
        "  used again while script, modules, argument types and sizes, device, options and loopfuse are the same",
    ]
    return "\n".join(lines)


def _when(about: Mapping[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["made"]))
