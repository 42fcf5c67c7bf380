"""Lock files: the tiles of matrix products that were found by timing, kept in `script.lf.lock` next to the script.

The text is TOML: a section for each device, in it a line for each kernel, under the digest of what the kernel computes.
What is not right in a file is told once, with its line, and left out; a program then runs by the model's choice.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopfuse.devices import PRESETS
from loopfuse.diag import Diagnostic, Source, Span, UserError, error
from loopfuse.emit.code import Chosen
from loopfuse.outside import read_toml, read_whole, write_toml_string

VERSION = 1
MOST_TIME = 1e15  # microseconds, 30 years
HEAD = """\
# Tiles of matrix products, the fastest of a few by timing (times in microseconds). `loopfuse run --tune` writes this file.
# Results do not depend on it but for rounding. --no-lock leaves it out; without it the tiles are those of the model.
"""
MOST_NAMED = 5  # tiles that a message lists
AGAIN = "--tune writes it anew; without it the tiles are those of the model"
_SECTION = re.compile(r"(.*) \(([A-Za-z0-9_]+)\)", re.DOTALL)

Hears = Callable[[Diagnostic], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """The tile of a kernel, its microseconds `us`, the model's tile and its microseconds, what the kernel computes (for a
    reader), and the sizes of the script when it was timed."""

    tile: str
    us: float
    model: str
    model_us: float
    of: str = ""
    sizes: str = ""


Section = dict[str, Entry]


@dataclass
class Lock:
    """A lock file as it was read: entries by device (`section_name`) and digest. `heard` is told what is wrong with it."""

    path: Path
    heard: Hears
    sections: dict[str, Section] = field(default_factory=dict)
    spans: dict[tuple[str, str], Span] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)

    def section(self, name: str, arch: str) -> str:
        """The section for a device; of a preset, that of the device which it stands for. "" where there is none."""
        exact = section_name(name, arch)
        if exact in self.sections:
            return exact
        if all(preset.name != name for preset in PRESETS.values()):
            return ""
        split = {text: _SECTION.fullmatch(text) for text in self.sections}
        same = [t for t, m in split.items() if m and m[2] == arch and _compact(name) in _compact(m[1])]
        return min(same, key=lambda t: (len(t), t), default="")

    def tiles(self, name: str, arch: str) -> dict[str, str]:
        """The tiles for a device, by the digests of their kernels."""
        return {digest: entry.tile for digest, entry in self.sections.get(self.section(name, arch), {}).items()}

    def times(self, chosen: Iterable[Chosen], name: str, arch: str) -> dict[str, float]:
        """By kernel, the seconds that its tile took when it was timed."""
        entries = self.sections.get(self.section(name, arch), {})
        found = {one.kernel: (one.tile, entry) for one in chosen if (entry := entries.get(one.digest))}
        timed = {k: {e.model: e.model_us, e.tile: e.us}.get(tile) for k, (tile, e) in found.items()}
        return {kernel: us * 1e-6 for kernel, us in timed.items() if us}

    def tell(self, chosen: Iterable[Chosen], name: str, arch: str) -> None:
        """Tell of the entries that a program could not use, each once."""
        section = self.section(name, arch)
        for one in chosen:
            if one.why and (section, one.digest) not in self.told:
                self.told.add((section, one.digest))
                message = f"the tile `{one.wanted}` that `{self.path.name}` has for {one.kernel} is left out: {one.why}"
                took = f"it runs with `{one.tile}`, which the model takes" if one.tile else ""
                notes = [note for note in (took, _tiles(one)) if note]
                self.heard(_warning(message, self.spans.get((section, one.digest)), notes))


def lock_path(script: Path) -> Path:
    """Where the lock file of a script is."""
    return script.with_name(f"{script.name}.lock")


def section_name(name: str, arch: str) -> str:
    """What a device is called in lock files."""
    return f"{name} ({arch})"


def _compact(name: str) -> str:
    return re.sub(r"[\s-]", "", name.lower())


def _warning(message: str, span: Span | None, notes: Iterable[str] = ()) -> Diagnostic:
    return error("LF0521", message, span, notes=notes, fix=AGAIN, level="warning")


def _tiles(one: Chosen) -> str:
    """The tiles that a kernel has, the nearest in name to the one that was wanted first."""
    others = [tile for tile in one.offered if tile != one.wanted]
    if not others:
        return ""
    near = difflib.get_close_matches(one.wanted, others, MOST_NAMED, 0.0)
    more = f", and {len(others) - len(near)} more" if len(others) > len(near) else ""
    return f"it has {', '.join(f'`{tile}`' for tile in near)}{more}; --tune times the most promising"


# -- reading ----------------------------------------------------------------------------------------------------------


def read_lock(path: Path, heard: Hears) -> Lock | None:
    """The lock file at a path, or None where there is none. `heard` is told (LF0521) of what cannot be used: all of a file
    that is damaged, or of another version; of others the entries that are wrong."""
    try:
        source = Source(str(path), read_whole(path, plain=True).decode("utf-8-sig"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as why:
        heard(_warning(f"`{path}` is not a text in UTF-8 (byte {why.start}): all of it is left out", None))
        return Lock(path, heard)
    except OSError as why:
        heard(_warning(f"`{path}` cannot be read: {why.strerror}", None))
        return Lock(path, heard)
    try:
        document = read_toml(source.text)
    except ValueError as why:
        heard(_warning(f"`{path.name}` is damaged, and all of it is left out: {why}", _at(source, str(why))))
        return Lock(path, heard)
    spans = _spans(source)
    lock = Lock(path, heard, {}, spans)
    version = document.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        said = f"version {version}" if version is not None else "no version"
        heard(_warning(f"`{path.name}` has {said}, and this loopfuse reads version {VERSION}: all of it is left out",
                       spans.get(("", "version"))))  # fmt: skip
        return lock
    for name, table in document.items():
        _read_section(lock, name, table)
    return lock


def _read_section(lock: Lock, name: str, table: Any) -> None:
    if not isinstance(table, dict) or not _SECTION.fullmatch(name):
        message = (
            f"`{name}` in `{lock.path.name}` is no device, which would be as `NVIDIA H200 (sm_90a)`: it is left out"
        )
        lock.heard(_warning(message, lock.spans.get((name, "")) or lock.spans.get(("", name))))
        return
    section = lock.sections[name] = {}
    for digest, values in table.items():
        entry = _entry(values)
        if isinstance(entry, Entry):
            section[digest] = entry
        else:
            message = f"the entry `{digest}` of `{lock.path.name}` is left out: {entry}"
            lock.heard(_warning(message, lock.spans.get((name, digest))))


NEEDED = ("tile", "us", "model", "model_us")
_TYPES = {"tile": str, "us": float, "model": str, "model_us": float, "of": str, "sizes": str}


def _entry(values: Any) -> Entry | str:
    """An entry, or what is wrong with it."""
    if not isinstance(values, dict):
        return 'it is no table as `{ tile = "wgmma 128x256 slots=2", us = 184.0, .. }`'
    if unknown := values.keys() - _TYPES.keys():
        return f"it has `{min(unknown)}`, which means nothing here"
    if missing := [name for name in NEEDED if name not in values]:
        return f"it has no `{missing[0]}`"
    for name, value in values.items():
        if _TYPES[name] is str and not isinstance(value, str):
            return f"`{name}` is no text"
        if _TYPES[name] is float and not _is_time(value):
            return f"`{name}` is no time in microseconds"
    return Entry(values["tile"], float(values["us"]), values["model"], float(values["model_us"]),
                 values.get("of", ""), values.get("sizes", ""))  # fmt: skip


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST_TIME


def _at(source: Source, why: str) -> Span:
    """The line that a message of the TOML reader speaks of."""
    found = re.search(r"at line (\d+)", why)
    spans = list(_lines(source))
    return spans[min(int(found[1]) if found else len(spans), len(spans)) - 1]


def _lines(source: Source) -> Iterator[Span]:
    start = 0
    for line in source.text.split("\n"):
        yield Span(source, start, start + len(line.rstrip()))
        start += len(line) + 1


def _spans(source: Source) -> dict[tuple[str, str], Span]:
    """The lines of sections (with an empty second name) and of their keys."""
    found: dict[tuple[str, str], Span] = {}
    section = ""
    for at in _lines(source):
        text = at.text.strip()
        try:
            keys = list(read_toml(text))
        except ValueError:
            continue
        if keys and text.startswith("["):
            section = keys[0]
            found[section, ""] = at
        elif keys:
            found[section, keys[0]] = at
    return found


# -- writing ----------------------------------------------------------------------------------------------------------


def lock_text(sections: Mapping[str, Mapping[str, Entry]]) -> str:
    """The text of a lock file, which `read_lock` reads back. Devices and kernels are in order, so that a change of one is a
    change of one line."""
    lines = [HEAD + f"version = {VERSION}"]
    for name in sorted(sections):
        if sections[name]:
            lines += ["", f"[{_quoted(name)}]"]
            lines += [f"{digest} = {{ {_fields(entry)} }}" for digest, entry in sorted(sections[name].items())]
    return "\n".join(lines) + "\n"


def _fields(entry: Entry) -> str:
    values = {name: getattr(entry, name) for name in _TYPES}
    texts = {n: _quoted(v) if isinstance(v, str) else repr(float(v)) for n, v in values.items()}
    return ", ".join(f"{n} = {text}" for n, text in texts.items() if text != '""' or n in NEEDED)


def _quoted(text: str) -> str:
    """A text as a basic string of TOML."""
    return write_toml_string(text)


def write_lock(path: Path, sections: Mapping[str, Mapping[str, Entry]]) -> None:
    """Write a lock file in one step; readers see the old one or the new one. Raises `UserError` LF0515."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(lock_text(sections))
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as why:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise UserError(error("LF0515", f"the lock file `{path}` cannot be written: {why.strerror}")) from why
