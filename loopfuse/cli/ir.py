"""`loopfuse ir`: what a script becomes."""

from __future__ import annotations

import argparse
from pathlib import Path

from loopfuse import driver, reader
from loopfuse.cli import arguments, listing
from loopfuse.cli.frame import OK, Context
from loopfuse.cli.scripts import read_script
from loopfuse.diag import UserError, error
from loopfuse.frontend.parse import parse
from loopfuse.printer import print_program

ABOUT = """Show what a script becomes. Without options the loop IR, whose text reads back with --from."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("ir", ABOUT)
    parser.add_argument("script", nargs="?", help="the script, or - for stdin")
    parser.add_argument("--from", dest="file", metavar="FILE.lfir", help="read IR text instead of a script")
    parser.add_argument("--emit", choices=("ast", "typed", "loops"), help="syntax tree, typed program or loop IR")
    parser.add_argument("--types", action="store_true", help="the type of every definition")
    parser.add_argument("--ranges", action="store_true", help="the range of every index, and every implied requirement")
    parser.add_argument("--stats", action="store_true", help="how many loops, loads, stores and operations there are")
    parser.add_argument("--no-gutter", action="store_true", help="leave the numbers of the source lines out")
    parser.add_argument("-o", "--out", metavar="FILE", help="write to a file")
    arguments.add_sizes(parser)
    options = parser.read(argv, context)
    if (options.script is None) == (options.file is None):
        parser.error("name a script, or IR text with --from")
    if options.file and (options.types or options.ranges or options.sizes or options.emit in ("ast", "typed")):
        parser.error("--from goes with --emit loops and --stats only")
    text = _from_text(options, context) if options.file else _from_script(parser, options, context)
    if options.out:
        _write(options.out, text)
    elif not context.terminal.json:
        context.terminal.result(text.rstrip("\n"))
    context.terminal.record({"kind": "ir", "text": text})
    return OK


def _from_text(options: argparse.Namespace, context: Context) -> str:
    source = context.source = read_script(options.file)
    with driver.guard("reader"):
        program = reader.parse_program(source.text, source.name)
    driver.verify_text(program)
    return listing.stats(program) if options.stats else print_program(program)


def _from_script(parser: arguments.Parser, options: argparse.Namespace, context: Context) -> str:
    source = context.source = read_script(options.script)
    if options.emit == "ast":
        with driver.guard("parse"):
            return listing.tree(parse(source))
    sizes = arguments.integers(parser, options.sizes, "-D")
    checked = driver.compile_source(source, sizes=sizes, search=arguments.script_folder(source))
    context.terminal.diagnostics(checked.remarks)
    parts: list[str] = []
    if options.emit == "typed":
        parts.append(listing.tree(checked.typed))
    if options.types:
        parts.append(listing.types(checked.typed))
    if options.ranges:
        parts.append(listing.ranges(checked.typed))
    if options.stats or options.emit == "loops" or not parts:
        lowered = driver.lower_program(checked.typed)
        if options.stats:
            parts.append(listing.stats(lowered.program))
        if options.emit == "loops" or not parts:
            parts.append(print_program(lowered.program, gutter=not options.no_gutter))
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as why:
        raise UserError(error("LF0515", f"`{path}` cannot be written: {why.strerror}")) from why
