"""What a script asks of fusion: `pragma fuse, nofuse, materialize, split` and `expect`, as text over definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loopfuse.decisions import Decision
from loopfuse.diag import Diagnostic, Span, error
from loopfuse.ir import Directive, Program
from loopfuse.schedule.plan import Plan

TOGETHER = ("fused", "forced")
_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)")
_COUNT = re.compile(r"\s*kernels\s*(<=|==|<)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Request:
    """A directive taken apart: `what` with names, or `kernels` with a relation and a number."""

    what: str
    names: tuple[str, ...]
    span: Span | None
    text: str
    relation: str = ""
    number: int = 0


def requests(program: Program, kind: str) -> Iterator[Request]:
    """The directives of one kind; those of no known form are left out."""
    for d in program.directives:
        if d.kind == kind and (found := parsed(d)) is not None:
            yield found


def parsed(directive: Directive) -> Request | None:
    """A directive taken apart; None where it has no known form."""
    call, count = _CALL.match(directive.text), _COUNT.match(directive.text)
    if count:
        return Request("kernels", (), directive.span, count.group().strip(), count[1], int(count[2]))
    if call:
        names = tuple(n.strip() for n in call[2].split(",") if n.strip())
        return Request(call[1], names, directive.span, call.group().strip())
    return None


def splits(program: Program) -> dict[str, str]:
    """The hints of `pragma split(t, rows)`: how each definition is to be split."""
    return {r.names[0]: ", ".join(r.names[1:]) for r in requests(program, "pragma") if r.what == "split" and r.names}


# -- expectations -----------------------------------------------------------------------------------------------------


def expectations(program: Program, plans: Mapping[str, Plan], decisions: Sequence[Decision]) -> list[Diagnostic]:
    """LF0620 for each `expect` of a compiled program that does not hold, with the decision that stood in its way.

    `plans` by kernel's id, one for each kernel that has one; `expect kernels` counts their launches, 1 where there is no
    plan.
    """
    found = [_unmet(request, program, plans, decisions) for request in requests(program, "expect")]
    return [d for d in found if d is not None]


def _unmet(request: Request, program: Program, plans: Mapping[str, Plan],
           decisions: Sequence[Decision]) -> Diagnostic | None:  # fmt: skip
    if request.what == "kernels":
        return _kernels(request, program, plans, decisions)
    if request.what == "fused":
        return _fused(request, decisions)
    if request.what == "unmaterialized":
        return _unmaterialized(request, program, decisions)
    return None


def _kernels(request: Request, program: Program, plans: Mapping[str, Plan],
             decisions: Sequence[Decision]) -> Diagnostic | None:  # fmt: skip
    launches = sum(sum(n.times for n in plans[k.id].launches) if k.id in plans else 1 for k in program.kernels)
    number = request.number
    if launches == number or (request.relation != "==" and launches < number + (request.relation == "<=")):
        return None
    apart = [d for d in decisions if d.verdict not in TOGETHER]
    extra = launches - len(program.kernels)
    count = f"{launches} launches" if extra else f"{launches} kernel{'s' * (launches != 1)}"
    detail = f", {extra} of them to finish a reduction" if extra else ""
    return _failed(request, f"the program takes {count}{detail}", apart[-3:] if launches > number else ())


def _fused(request: Request, decisions: Sequence[Decision]) -> Diagnostic | None:
    home = groups(decisions)
    first = request.names[0]
    for name in request.names[1:]:
        if first not in home or name not in home or home[first] == home[name]:
            continue  # what is in no decision was computed away before fusion
        between = [d for d in decisions if d.verdict not in TOGETHER and _between(d, home, first, name)]
        return _failed(request, f"`{first}` and `{name}` are in different kernels", between[-1:])
    return None


def _unmaterialized(request: Request, program: Program, decisions: Sequence[Decision]) -> Diagnostic | None:
    table = {b.id: b for b in program.buffers}
    for name in request.names:
        buffer = table.get(name)
        if buffer is None or buffer.scope == "local":
            continue
        if buffer.role == "out":
            return _failed(request, f"`{name}` is an output", ())
        if any(r.what == "materialize" and name in r.names for r in requests(program, "pragma")):
            return _failed(request, f"`pragma materialize({name})` keeps `{name}` in memory", ())
        apart = [d for d in decisions if d.verdict not in TOGETHER and name in (*d.a, *d.b)]
        why = "kernels other than its own read it" if apart else "its kernel reads it again after other blocks may run"
        return _failed(request, f"`{name}` is kept in memory, since {why}", apart[-1:])
    return None


def groups(decisions: Iterable[Decision]) -> dict[str, int]:
    """For each definition that decisions name, the number of its kernel: those that were joined have one number."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    for d in decisions:
        sides = ((*d.a, *d.b),) if d.verdict in TOGETHER else (d.a, d.b)
        for first, *rest in (side for side in sides if side):
            for name in (first, *rest):
                parent[find(name)] = find(first)
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(find(name), len(numbers)) for name in parent}


def _between(d: Decision, home: Mapping[str, int], a: str, b: str) -> bool:
    sides = {home[d.a[0]], home[d.b[0]]} if d.a and d.b else set()
    return sides == {home[a], home[b]}


def _failed(request: Request, what: str, why: Sequence[Decision]) -> Diagnostic:
    notes: list[str] = []
    helps: list[str] = []
    also: list[tuple[Span | None, str]] = []
    for d in why:
        a, b = f"`{d.a[0]}`" if d.a else "?", f"`{d.b[0]}`" if d.b else "?"
        notes.append(f"{a} and {b} stay apart: {d.cause.message if d.cause else d.reason}")
        if d.cause and d.cause.lift:
            helps.append(f"what would help: {d.cause.lift}")
        also += [(span, "here") for span in (d.cause.spans if d.cause else ())[:2]]
    return error("LF0620", f"`expect {request.text}` does not hold: {what}", request.span, what, *also, notes=notes,
                 helps=dict.fromkeys(helps))  # fmt: skip
