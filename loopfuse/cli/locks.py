"""`--tune` and `--no-lock`: the lock file next to a script, written and used."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from loopfuse.bench import tuning
from loopfuse.bench.measuring import Subject
from loopfuse.bench.tuning import TUNING, Tuned
from loopfuse.cli import arguments
from loopfuse.cli.frame import FAILED, OK, Context
from loopfuse.cuda import engine
from loopfuse.diag import UserError, error
from loopfuse.lock import Entry, Hears, Lock, lock_path, read_lock
from loopfuse.outside import unwritable
from loopfuse.views.tables import microseconds, table

REFERENCE_BEHIND = "its results are not"  # how the problem of a kernel begins that the reference contradicts


def add_tune(group: argparse._ActionsContainer) -> None:
    """The options of commands that run programs."""
    group.add_argument(
        "--tune", action="store_true", help="time tiles of matrix products, and keep the best in SCRIPT.lock"
    )


def settle(parser: arguments.Parser, options: argparse.Namespace) -> None:
    """Refuse options that do not go together; with `--tune` a GPU is needed."""
    if not options.tune:
        return
    if options.script == "-":
        parser.error("--tune writes a file next to the script, and stdin has no place: give a file")
    if options.no_lock:
        parser.error("--tune writes the lock file that --no-lock leaves out: give one of them")
    if options.backend == "reference":
        parser.error("--tune times kernels, and --backend reference has none")
    if problem := engine.usable():
        raise engine.needed(TUNING, problem)
    path = lock_path(Path(options.script))
    if why := unwritable(path, makes=False):
        raise UserError(error("LF0515", f"--tune keeps what it finds in `{path}`, which cannot be written: {why}"))
    options.backend = "cuda"


def opened(options: argparse.Namespace, context: Context) -> Lock | None:
    """The lock file of the script that the options name, where it has one and it is to be used."""
    if options.no_lock or options.script in (None, "-"):
        return None
    return read_lock(lock_path(Path(options.script)), _heard(context))


def _heard(context: Context) -> Hears:
    return lambda found: context.terminal.diagnostics([found])


def tuned(options: argparse.Namespace, context: Context, subjects: Iterable[Subject]) -> tuple[Lock | None, int]:
    """Tune programs of a script, write its lock file and say what came out; the lock file as it now is, and an exit code."""
    path = lock_path(Path(options.script))
    found: dict[str, Tuned] = {}
    subjects = list(subjects)
    with context.terminal.progress("tune") as progress:
        for number, subject in enumerate(subjects):
            for one in tuning.tune(subject, known=found):
                found[one.digest] = one
            progress((number + 1) / len(subjects))
    sizes = {tuning.sizes_text(subject) for subject in subjects}
    gone = tuning.keep(Path(options.script), list(found.values()), sizes, _heard(context))
    _report(context, list(found.values()), gone, path)
    if path.exists():
        context.terminal.note(f"wrote {path}")
    code = FAILED if any(one.problem.startswith(REFERENCE_BEHIND) for one in found.values()) else OK
    return opened(options, context), code


def _report(context: Context, found: Sequence[Tuned], gone: dict[str, Entry], path: Path) -> None:
    """A table of kernels, then what was left out."""
    terminal = context.terminal
    rows = []
    for one in (t for t in found if t.timed):
        model, best = one.timed[0], one.timed[one.best]
        gain = f"{model.seconds / best.seconds - 1:.1%}" if one.best else "-"
        rows.append((one.kernel, one.of, model.tile, microseconds(model.seconds * 1e6),
                     best.tile if one.best else "the same", microseconds(best.seconds * 1e6), gain))  # fmt: skip
    for line in (
        table(("kernel", "computes", "model's tile", "us", "best", "us", "faster by"), rows, "lllrlrr") if rows else ()
    ):
        terminal.say(line)
    if not found:
        terminal.say("no kernel of the program has a choice of tiles: nothing to tune")
    for one in found:
        if one.problem:
            terminal.say(f"{one.kernel} was not tuned: {one.problem}")
        for left in one.left:
            terminal.say(f"{one.kernel}: {left.tile} was left out: {left.problem}")
        terminal.record({
            "kind": "tuned", "kernel": one.kernel, "digest": one.digest, "of": one.of, "sizes": one.sizes,
            "best": one.timed[one.best].tile if one.timed else None, "problem": one.problem,
            "tiles": [{"tile": t.tile, "seconds": t.seconds, "samples": len(t.samples)} for t in one.timed],
            "left": [{"tile": t.tile, "problem": t.problem} for t in one.left],
        })  # fmt: skip
    for digest, entry in gone.items():
        what = entry.of or digest
        terminal.say(f"{path.name}: the entry of {what} is taken away: the script has no such kernel any more")
        terminal.record({"kind": "stale", "digest": digest, "of": entry.of, "tile": entry.tile})
