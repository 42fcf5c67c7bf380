"""`loopfuse ir --emit cuda|ptx|sass`: a program as its kernels' text, compiled where there is a compiler; no GPU is needed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from loopfuse.bugs import dump
from loopfuse.cli import arguments, locks, passing
from loopfuse.cli.frame import BUG, OK, Context
from loopfuse.cuda.cache import open_cache
from loopfuse.devices import parse_device
from loopfuse.diag import CompilerError, UserError, error
from loopfuse.ir import Program
from loopfuse.views import emitted
from loopfuse.views.lines import defined

KINDS = ("cuda", "ptx", "sass")
_OTHERS = ("changed", "diff", "side", "stats", "types", "ranges", "tree_dir", "no_gutter")


def add_options(parser: arguments.Parser) -> None:
    """The options that belong to kernels' text."""
    group = parser.add_argument_group("kernels (--emit cuda, ptx, sass)")
    group.add_argument(
        "--arch", type=_arch, metavar="sm_80", help="compile for this architecture (default: the device's)"
    )
    group.add_argument("--dynamic", action="store_true", help="for all sizes, also where --dims gives some to plan for")
    arguments.add_lock(group)


def _arch(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError(f"`{text}` is no architecture: write sm_80 or sm_90a")
    return text


def settle(parser: arguments.Parser, options: argparse.Namespace, argv: Sequence[str]) -> None:
    """Refuse options that do not go together; an architecture without a device stands for the device that has it."""
    if options.emit not in KINDS:
        for name in ("arch", "dynamic", "no_lock"):
            if getattr(options, name):
                parser.error(f"--{name.replace('_', '-')} is for kernels: give --emit cuda, ptx or sass too")
        return
    for name in _OTHERS:
        if getattr(options, name) not in (None, False):
            parser.error(f"--emit {options.emit} shows kernels, and takes no --{name.replace('_', '-')}")
    if options.all and options.emit != "cuda":
        parser.error("--all shows all of the CUDA C: give --emit cuda")
    if any(word.startswith("--device") for word in argv):
        device = parse_device(options.device)
        if device.kind != "gpu":
            parser.error(f"--emit {options.emit} is for GPUs, and --device {options.device} is none")
        if options.arch and emitted.number_of(device.arch) != emitted.number_of(options.arch):
            parser.error(
                f"--device {options.device} is {device.arch}, and --arch {options.arch}: leave one of them out"
            )
    elif options.arch:
        options.device = emitted.model_for(options.arch)


def show(options: argparse.Namespace, context: Context, done: passing.Passed) -> int:
    """Show what was asked for; returns the exit code."""
    program = done.at(done.after(options.after)) if options.after else done.program
    dynamic = options.dynamic or not options.dims
    built = emitted.build(
        program, done.known, done.device, arch=options.arch or "", dynamic=dynamic, cache=open_cache(),
        lock=locks.opened(options, context),
    )  # fmt: skip
    kernel = _kernel(program, done, options.only) if options.only else None
    if built.why and options.emit != "cuda":
        raise built.why
    text = emitted.text(built, options.emit, kernel, options.all)
    if options.out:
        passing.write_file(Path(options.out), text)
    elif not context.terminal.json:
        context.terminal.result(text.rstrip("\n"))
    for record in emitted.records(built, options.emit, kernel) if context.terminal.json else ():
        context.terminal.record({"kind": "kernel", "language": options.emit, **record})
    if isinstance(built.why, CompilerError):
        context.terminal.say(f"loopfuse: {built.problem}")
        folder = dump(built.why, context.source, ["loopfuse", "ir"])
        context.terminal.say(f"this is a bug in loopfuse, not in your script; a reproducer is in {folder}")
        return BUG
    if built.why:
        context.terminal.note(f"not compiled: {built.problem}")
    return OK


def _kernel(program: Program, done: passing.Passed, name: str) -> str:
    """The kernel of a name, or the one that computes a definition. Raises `UserError` LF0502."""
    found = next((k.id for k in program.kernels if name in (k.id, *defined(k))), None) or done.home(name)
    if found is None or all(k.id != found for k in program.kernels):
        known = [k.id for k in program.kernels]
        raise UserError(error("LF0502", f"no kernel is called `{name}`, and none computes it",
                              notes=[f"there are {', '.join(known) or 'none'}"]))  # fmt: skip
    return found
