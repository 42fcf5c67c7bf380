"""`loopfuse ir`: what a script becomes, pass by pass."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from loopfuse import driver
from loopfuse.cli import arguments, emitting, passargs, passing, screen
from loopfuse.cli.frame import OK, Context
from loopfuse.cli.scripts import read_script
from loopfuse.diag import UserError, error
from loopfuse.frontend.parse import parse
from loopfuse.ir import Program
from loopfuse.printer import print_kernel, print_program
from loopfuse.views import listing
from loopfuse.views import passes as views
from loopfuse.views.counts import count, numbers, stats
from loopfuse.views.diff import Shown, diff
from loopfuse.views.lines import defined

ABOUT = """Show what a script becomes. Without options the loop IR after all passes, whose text reads back with --from;
`--after lower` is the IR before them."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.read(argv, context)
    if (options.script is None) == (options.file is None):
        parser.error("name a script, or IR text with --from")
    if options.file and (options.types or options.ranges or options.sizes or options.emit in ("ast", "typed")):
        parser.error("--from takes no --types, --ranges, --emit ast, --emit typed or -D")
    if options.side and options.diff is None:
        parser.error("--side is how --diff is shown: give both")
    emitting.settle(parser, options, argv)
    if options.all and options.after is not None and options.emit not in emitting.KINDS:
        parser.error("--all shows every pass, --after one of them: give one")
    if options.emit == "ast":
        _text(options, context, _syntax(options, context))
        return OK
    done = (passing.compile_text if options.file else passing.compile_script)(parser, options, context)
    if options.emit in emitting.KINDS:
        return emitting.show(options, context, done) or done.code
    _show(options, context, done)
    return done.code


def _parser() -> arguments.Parser:
    parser = arguments.Parser("ir", ABOUT)
    parser.add_argument("script", nargs="?", help="the script, or - for stdin")
    parser.add_argument("--from", dest="file", metavar="FILE.lfir", help="read IR text; no pass runs but with --passes")
    parser.add_argument(
        "--emit",
        choices=("ast", "typed", "loops", *emitting.KINDS),
        help="syntax tree, typed program, loop IR; CUDA C, PTX or machine code of the kernels",
    )
    parser.add_argument("--types", action="store_true", help="the type of every definition")
    parser.add_argument("--ranges", action="store_true", help="the range of every index, and every implied requirement")
    parser.add_argument("--stats", action="store_true", help="the passes, and counts before and after them")
    parser.add_argument("--no-gutter", action="store_true", help="leave the numbers of the source lines out")
    parser.add_argument("-o", "--out", metavar="FILE", help="write to a file")
    steps = parser.add_argument_group("steps")
    steps.add_argument("--after", metavar="PASS", help="the IR after this pass (`lower`: before all)")
    steps.add_argument("--all", action="store_true", help="after every pass; of CUDA C the prelude too")
    steps.add_argument("--changed", action="store_true", help="after every pass that changed something")
    steps.add_argument("--diff", nargs="?", const="", metavar="A:B", help="differences: of each pass, or from A to B")
    steps.add_argument("--side", action="store_true", help="differences in two columns, from 120 columns on")
    steps.add_argument("--only", metavar="NAME", help="what concerns one kernel or definition")
    steps.add_argument("--tree-dir", metavar="DIR", help="write a file a pass, as 07_fuse.changed.lfir")
    emitting.add_options(parser)
    passargs.add_passes(parser)
    return parser


def _syntax(options: argparse.Namespace, context: Context) -> str:
    source = context.source = read_script(options.script)
    with driver.guard("parse"):
        return listing.tree(parse(source))


def _show(options: argparse.Namespace, context: Context, done: passing.Passed) -> None:
    """What was asked for: files, differences, listings, or the IR."""
    if options.tree_dir:
        _write_tree(Path(options.tree_dir), done, context)
        return
    if options.diff is not None:
        _lines(options, context, _differences(options, done))
        return
    if options.all or options.changed:
        _lines(options, context, _stages(options, context, done))
        return
    parts = list(_listings(options, context, done))
    if options.after or options.emit == "loops" or not parts:
        number = done.after(options.after) if options.after else len(done.stages)
        parts.append(_program(options, done.at(number), done.home(options.only) if options.only else None))
    _text(options, context, "\n".join(part if part.endswith("\n") else part + "\n" for part in parts))


def _text(options: argparse.Namespace, context: Context, text: str) -> None:
    if options.out:
        passing.write_file(Path(options.out), text)
    elif not context.terminal.json:
        context.terminal.result(text.rstrip("\n"))
    context.terminal.record({"kind": "ir", "text": text})


def _lines(options: argparse.Namespace, context: Context, lines: list[Shown]) -> None:
    if options.out:
        passing.write_file(Path(options.out), "".join(line.text + "\n" for line in lines))
    elif not context.terminal.json:
        screen.show(context.terminal, lines)
    if options.diff is not None:
        shown = [{"mark": line.mark, "text": line.text} for line in lines]
        context.terminal.record({"kind": "diff", "lines": shown})


def _listings(options: argparse.Namespace, context: Context, done: passing.Passed) -> Iterator[str]:
    if done.typed is not None:
        if options.emit == "typed":
            yield listing.tree(done.typed)
        if options.types:
            yield listing.types(done.typed)
        if options.ranges:
            yield listing.ranges(done.typed)
    if options.stats:
        yield _stats(context, done)


# -- the program ------------------------------------------------------------------------------------------------------


def _program(options: argparse.Namespace, program: Program, home: str | None = None) -> str:
    """The text of a program, or of the kernels that `--only` asks for."""
    if options.only is None:
        return print_program(program, gutter=not (options.no_gutter or options.file))
    kernels = [k for k in program.kernels if k.id == options.only or options.only in defined(k)]
    kernels = kernels or [k for k in program.kernels if k.id == home]  # where its array is gone
    if not kernels:
        _missing(program, options.only)
    return "".join(print_kernel(kernel) for kernel in kernels)


def _missing(program: Program, name: str) -> None:
    known = [k.id for k in program.kernels] + [n for k in program.kernels for n in defined(k)]
    raise UserError(error("LF0502", f"no kernel is called `{name}`, and none computes it",
                          notes=[f"there are {', '.join(known[:12])}{' ..' * (len(known) > 12)}"]))  # fmt: skip


def _stages(options: argparse.Namespace, context: Context, done: passing.Passed) -> list[Shown]:
    """The IR after every pass, or after those that changed it, each under a heading."""
    found: list[Shown] = []
    for number, name in enumerate(done.names):
        changed = number == 0 or done.stages[number - 1].changed
        if options.changed and not changed:
            continue
        program = done.at(number)
        text = _program(options, program) if changed or options.all else ""
        found.append(Shown(f"== {number} {name}{'' if changed else ' (no change)'}", "@"))
        found += [Shown(line) for line in (text.splitlines() if changed else [])]
        known, _ = numbers(program, done.known)
        context.terminal.record({
            "kind": "stage", "number": number, "name": name, "changed": changed,
            "seconds": done.stages[number - 1].seconds if number else 0.0, "text": print_program(program),
            "counts": dataclasses.asdict(count(program, known)),
            "remarks": [r.text for r in done.stages[number - 1].remarks] if number else [],
        })  # fmt: skip
    return found


def _differences(options: argparse.Namespace, done: passing.Passed) -> list[Shown]:
    """From one stage to another; without a name of each pass that changed something."""
    width = screen.width() or (160 if options.side else 80)
    first, colon, last = options.diff.partition(":")
    if options.diff:
        start = done.after(first or "lower") if colon else max(done.after(first) - 1, 0)
        end = (done.after(last) if last else len(done.stages)) if colon else done.after(first)
        if start > end:
            raise UserError(error("LF0821", f"--diff {options.diff}: `{first}` ran after `{last}`"))
        pairs = [(start, end)]
    else:
        pairs = [(n, n + 1) for n, stage in enumerate(done.stages) if stage.changed]
    if options.only is not None and not any(
        k.id == options.only or options.only in defined(k) for n in range(len(done.names)) for k in done.at(n).kernels
    ):
        _missing(done.lowered, options.only)
    found: list[Shown] = []
    for start, end in pairs:
        found.append(Shown(f"== {done.names[start]} -> {end} {done.names[end]}", "@"))
        found += diff(done.at(start), done.at(end), width=width, side=options.side, only=options.only)
    return found or [Shown("(no pass changed anything)")]


def _stats(context: Context, done: passing.Passed) -> str:
    sizes, _ = done.numbers
    steps = views.steps(done.lowered, done.stages, sizes)
    before, after = steps[0].counts, steps[-1].counts
    context.terminal.record({
        "kind": "stats", "before": dataclasses.asdict(before), "after": dataclasses.asdict(after),
        "passes": [{"name": s.name, "changed": s.changed, "seconds": s.seconds or 0.0, **dataclasses.asdict(s.counts),
                    "remarks": [r.text for r in s.remarks]} for s in steps],
    })  # fmt: skip
    lines = [*views.pass_table(steps, width=screen.width()), ""] if done.stages else []
    lines += stats(before, after)
    lines += ["", views.assumed_line(done.lowered, done.known)] if sizes else []
    return "\n".join(lines)


def _write_tree(folder: Path, done: passing.Passed, context: Context) -> None:
    """A file a stage: `07_fuse.changed.lfir`; the text of each reads back."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise UserError(error("LF0515", f"`{folder}` cannot be made: {why.strerror}")) from why
    for number, name in enumerate(done.names):
        changed = number > 0 and done.stages[number - 1].changed
        path = folder / f"{number:02}_{name}{'.changed' * changed}.lfir"
        passing.write_file(path, print_program(done.at(number), gutter=True))
        context.terminal.record({"kind": "wrote", "pass": name, "path": str(path), "changed": changed})
    context.terminal.note(f"wrote {len(done.names)} files into {folder}")
