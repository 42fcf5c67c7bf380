"""Files of decisions: written out, edited, and read back to override the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from loopfuse.decisions import Decision
from loopfuse.diag import UserError, error
from loopfuse.outside import read_toml, write_toml_string

Verdict = Literal["fuse", "nofuse"]
Verdicts = dict[tuple[frozenset[str], frozenset[str]], Verdict]
_READ: dict[str, Verdict | None] = {"fuse": "fuse", "nofuse": "nofuse", "cost": None}
_WRITTEN = {"fused": "fuse", "forced": "fuse", "costly": "nofuse", "forbidden": "nofuse"}
_HEAD = """\
# Decisions of fusion. `a` and `b` name groups by the definitions that they hold. Edit the verdicts and give the file
# back with --decisions: "fuse" joins the groups where that is legal, "nofuse" keeps them apart, "cost" leaves it to the
# cost model (so does an entry that is taken out). A comment says what was decided, and why.
"""


def write(found: Iterable[Decision]) -> str:
    """The text of a file that pins every decision as it was taken."""
    parts = [_HEAD]
    for d in found:
        reason = " ".join(f"#{d.number} {d.verdict}: {d.reason}".split())
        parts.append(f"# {reason}\n[[decision]]\na = {_names(d.a)}\nb = {_names(d.b)}\n"
                     f'verdict = "{_WRITTEN.get(d.verdict, "cost")}"\n')  # fmt: skip
    return "\n".join(parts)


def _names(group: Iterable[str]) -> str:
    return f"[{', '.join(write_toml_string(name) for name in group)}]"


def read(text: str, name: str) -> Verdicts:
    """The verdicts of a file. Raises `UserError` LF0622 that says which entry is wrong."""
    try:
        table = read_toml(text)
    except ValueError as why:
        raise UserError(error("LF0622", f"`{name}` is not TOML: {why}")) from None
    unknown = table.keys() - {"decision"}
    entries = table.get("decision", [])
    if unknown or not isinstance(entries, list):
        what = f"`{min(unknown)}`" if unknown else "`decision` that is no table"
        raise UserError(error("LF0622", f"`{name}` holds {what}; it may hold [[decision]] entries only"))
    found: Verdicts = {}
    for number, entry in enumerate(entries, 1):
        a, b, verdict = _entry(entry, number, name)
        if a == b:
            raise UserError(error("LF0622", f"entry {number} of `{name}` names one group twice"))
        if verdict is not None:
            if found.get((a, b), verdict) != verdict or found.get((b, a), verdict) != verdict:
                raise UserError(
                    error("LF0622", f"entry {number} of `{name}` contradicts an earlier one about the same groups")
                )
            found[a, b] = verdict
    return found


def _entry(entry: object, number: int, name: str) -> tuple[frozenset[str], frozenset[str], Verdict | None]:
    if not isinstance(entry, Mapping):
        raise UserError(error("LF0622", f"entry {number} of `{name}` is no table"))
    a, b = (_group(entry, side, number, name) for side in ("a", "b"))
    verdict = entry.get("verdict")
    if not isinstance(verdict, str) or verdict not in _READ:
        shown = "no verdict" if verdict is None else f"the verdict {verdict!r}"
        raise UserError(error("LF0622", f"entry {number} of `{name}` has {shown}; write fuse, nofuse or cost"))
    return a, b, _READ[verdict]


def _group(entry: Mapping[str, Any], side: str, number: int, name: str) -> frozenset[str]:
    group = entry.get(side)
    if not isinstance(group, list) or not group or not all(isinstance(word, str) for word in group):
        raise UserError(error("LF0622", f"entry {number} of `{name}`: `{side}` is not a list of names"))
    return frozenset(group)
