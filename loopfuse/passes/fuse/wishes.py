"""What the user decides about fusion: pragmas of the script and verdicts of a file, as sets of kernels."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loopfuse.decisions import Cause
from loopfuse.diag import Diagnostic, Span, UserError, error
from loopfuse.ir import Program
from loopfuse.passes.base import Options, Remark
from loopfuse.passes.fuse.directives import Request, requests
from loopfuse.passes.fuse.graph import Node


@dataclass(frozen=True, slots=True)
class Wish:
    """Kernels (positions) that shall be one, or must not all be one; `text` says who wants it, `names` what."""

    kernels: frozenset[int]
    names: tuple[str, ...]
    text: str
    span: Span | None = None

    @property
    def cause(self) -> Cause:
        """Why kernels stay apart that this wish keeps apart."""
        spans = (self.span,) if self.span else ()
        return Cause("nofuse", f"{self.text} keeps them apart", lift="take it out", spans=spans)

    def refused(self, why: Cause) -> Diagnostic:
        """The error that the kernels cannot be one."""
        code = "LF0621" if self.span is not None else "LF0622"
        notes = [why.detail] if why.detail else []
        helps = [f"what would help: {why.lift}"] if why.lift else []
        also = [(span, "here") for span in dict.fromkeys(why.spans)][:4]
        return error(code, f"{self.text} asks for what cannot be: {why.message}", self.span, "asked for here", *also,
                     notes=notes, helps=helps)  # fmt: skip


@dataclass
class Wishes:
    """All wishes about one program; `pinned` are buffers to keep in memory."""

    together: list[Wish] = field(default_factory=list)
    apart: list[Wish] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)


def wishes(program: Program, nodes: Sequence[Node], options: Options) -> Wishes:
    """The wishes about a program with these kernels. Raises `UserError` LF0622 for names that no definition has."""
    made = Wishes()
    writers: dict[str, set[int]] = {}
    for n, node in enumerate(nodes):
        for name in node.writes:
            writers.setdefault(name, set()).add(n)
    for request in requests(program, "pragma"):
        if request.what == "materialize":
            made.pinned.update(request.names)
        elif request.what in ("fuse", "nofuse"):
            _pragma(made, request, writers)
    for (a, b), verdict in options.decisions.items():
        names = sorted(a | b)
        for name in names:
            if name not in writers:
                raise UserError(_unknown(name, writers))
        text = f"the decision on {_listed(sorted(a))} and {_listed(sorted(b))}"
        wish = Wish(frozenset(n for name in names for n in writers[name]), tuple(names), text)
        if len(wish.kernels) > 1:
            (made.together if verdict == "fuse" else made.apart).append(wish)
    made.together = _joined(made.together)
    for want in made.together:
        for bar in made.apart:
            if bar.kernels <= want.kernels:
                raise UserError(want.refused(bar.cause))
    return made


def _pragma(made: Wishes, request: Request, writers: dict[str, set[int]]) -> None:
    """A `fuse` or `nofuse`: all of the definitions together, or each pair of them apart."""
    text = f"`pragma {request.text}`"
    known = [n for n in request.names if n in writers]
    for name in request.names:
        if name not in writers:
            made.remarks.append(Remark(f"{text}: `{name}` is computed by no kernel here", request.span, missed=True))
    if request.what == "fuse":
        kernels = frozenset(k for n in known for k in writers[n])
        if len(kernels) > 1:
            made.together.append(Wish(kernels, tuple(known), text, request.span))
        return
    for k, a in enumerate(known):
        for b in known[k + 1 :]:
            if writers[a].isdisjoint(writers[b]):
                made.apart.append(Wish(frozenset(writers[a] | writers[b]), (a, b), text, request.span))


def _joined(found: Sequence[Wish]) -> list[Wish]:
    """Wishes that share a kernel as one."""
    done: list[Wish] = []
    for wish in found:
        touching = [w for w in done if w.kernels & wish.kernels]
        done = [w for w in done if not w.kernels & wish.kernels]
        for other in touching:
            span, text = (other.span, other.text) if other.span is not None else (wish.span, wish.text)
            names = tuple(dict.fromkeys((*other.names, *wish.names)))
            wish = Wish(wish.kernels | other.kernels, names, text, span)
        done.append(wish)
    return done


def _unknown(name: str, known: Iterable[str]) -> Diagnostic:
    near = difflib.get_close_matches(name, list(known), 1)
    return error("LF0622", f"the decisions name `{name}`, which no definition of the program is called",
                 fix=f"did you mean `{near[0]}`?" if near else None)  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)
