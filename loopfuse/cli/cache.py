"""`loopfuse cache`: what was compiled before, and taking it away."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from loopfuse.cli import arguments
from loopfuse.cli.frame import OK, USER, Context
from loopfuse.cuda.cache import Cache, Entry, open_cache
from loopfuse.memory import show_bytes

ABOUT = """List what was compiled before (`ls`), tell of one entry (`ls KEY`), or take entries away (`clear`).

Nothing that is taken away is lost: it is compiled again when it is needed."""
_DAY = 86400.0


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("cache", ABOUT)
    parser.add_argument("action", choices=("ls", "clear"), help="list entries, or take them away")
    parser.add_argument(
        "key", nargs="?", default="", metavar="KEY", help="ls: the entry of this key or beginning of one"
    )
    parser.add_argument("--older-than", type=_days, metavar="DAYS", help="clear: only what was not used for so long")
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="the cache's folder, instead of LOOPFUSE_CACHE_DIR"
    )
    options = parser.read(argv, context)
    cache = open_cache(options.cache_dir)
    if options.action == "clear":
        if options.key:
            parser.error("`clear` takes no key; --older-than DAYS keeps what is newer")
        return _clear(cache, options.older_than, context)
    if options.older_than is not None:
        parser.error("--older-than belongs to `clear`")
    return _one(cache, options.key, context) if options.key else _list(cache, context)


def _list(cache: Cache, context: Context) -> int:
    entries, now = cache.entries(), time.time()
    rows = [("kind", "key", "what", "arch", "kernels", "size", "made", "used")]
    for entry in entries:
        about = entry.about or {}
        made = about.get("made")
        kernels = str(len(about["kernels"])) if "kernels" in about else ""
        rows.append((entry.kind, entry.key[:12], _what(entry), str(about.get("arch", "")), kernels,
                     show_bytes(entry.bytes), _ago(now - made) if made else "", _ago(now - entry.used)))  # fmt: skip
        context.terminal.record({
            "kind": "entry", "entry": entry.kind, "key": entry.key, "name": about.get("name"), "arch": about.get("arch"),
            "compiler": about.get("compiler"), "kernels": about.get("kernels"), "bytes": entry.bytes, "made": made,
            "used": entry.used, "damaged": entry.about is None,
        })  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows if entries else ():
        context.terminal.result("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    programs = sum(entry.kind == "program" for entry in entries)
    total = show_bytes(sum(entry.bytes for entry in entries))
    context.terminal.result(f"programs: {programs}, kernels: {len(entries) - programs}, {total} in {_where(cache)}")
    return OK


def _one(cache: Cache, key: str, context: Context) -> int:
    found = [entry for entry in cache.entries() if entry.key.startswith(key)]
    for entry in found:
        story = cache.explain(entry.key) or f"{entry.kind} {entry.key}: damaged, it is compiled again when it is needed"
        context.terminal.result(story)
        context.terminal.record({"kind": "entry", "entry": entry.kind, "key": entry.key, "story": story})
    if not found:
        context.terminal.say(f"loopfuse: no entry in {_where(cache)} has a key that begins with `{key}`")
    return OK if found else USER


def _clear(cache: Cache, days: float | None, context: Context) -> int:
    count, freed = cache.clear(None if days is None else time.time() - days * _DAY)
    context.terminal.result(f"entries taken away: {count}, {show_bytes(freed)} in {_where(cache)}")
    context.terminal.record({"kind": "clear", "entries": count, "bytes": freed})
    return OK


def _where(cache: Cache) -> str:
    return str(cache.folder) if cache.folder else "memory (there is no home folder)"


def _what(entry: Entry) -> str:
    return str(entry.about["name"]) if entry.about else "damaged"


def _ago(seconds: float) -> str:
    for unit, length in (("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of days")
    return days
