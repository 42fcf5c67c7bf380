"""`loopfuse run`: a script on data, its results as lines and files."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from loopfuse import driver
from loopfuse.bench.measuring import Subject
from loopfuse.bind import Bound, Given
from loopfuse.cli import arguments, backends, locks, running
from loopfuse.cli.frame import OK, Context
from loopfuse.cli.scripts import read_script
from loopfuse.cuda import engine
from loopfuse.diag import UserError, error
from loopfuse.files import Place, save_all
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.lock import Lock
from loopfuse.outside import unwritable
from loopfuse.passes import Options, selection
from loopfuse.views.values import describe, plain_values, show_values, summarize

ABOUT = """Run a script. Each input is a file or a generator:

  x=a.npy  w=m.safetensors:fc1.weight  d=data.npz:x  img=photo.png  t=table.csv
  x=randn  'x=randn(0, 2)'  'x=uniform(0, 1)'  'k=randint(0, 10)'  zeros  ones  iota  'const(3)'  x=1.5

A file named by `from` in a script is relative to the script's folder; every other name to the working folder."""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.read(argv, context)
    if options.script is None:
        parser.error("no script is named")
    if options.dynamic and options.backend == "reference":
        parser.error("--dynamic is about kernels, and --backend reference has none")
    locks.settle(parser, options)
    selection(options.passes)
    clock = driver.Clock()
    terminal = context.terminal
    assigned = arguments.split_pairs(parser, options.inputs, "inputs")
    sizes = arguments.integers(parser, options.sizes, "-D")
    dims = arguments.integers(parser, options.dims, "--dims")
    params = arguments.split_pairs(parser, options.param, "-p")
    source = context.source = read_script(options.script)
    base = arguments.script_folder(source)
    checked = driver.compile_source(source, sizes=sizes, search=base, clock=clock)
    typed = checked.typed
    terminal.diagnostics(checked.remarks)
    places = _places(parser, typed, options)
    for place in places.values():
        if why := unwritable(Path(place.path)):
            raise UserError(error("LF0515", f"`{place.text}` cannot be written: {why}", place.span))
    shown = _shown(typed, options.show)
    with clock.time("read"):
        inputs = driver.read_inputs(typed, assigned, base)
    given = Given(inputs, arguments.numbers(params), dims, options.seed, options.limit)
    backend = backends.settled(options.backend, context)
    freeze = tuple(arguments.names(options.freeze))
    bound = driver.bind_program(typed, given, clock)
    lowered = driver.lower_program(typed, roots=shown.values(), clock=clock)
    subject = Subject(options.script, lowered, bound, options.passes, options.passes, freeze, options.dynamic)
    if options.tune:
        with clock.time("tune"):
            lock, bad = locks.tuned(options, context, [subject])
    else:
        lock, bad = locks.opened(options, context) if backend == "cuda" else None, OK
    outcome = _outcome(options, lowered, bound, backend, freeze, context, clock, lock)
    with clock.time("write"), driver.guard("files"):
        written = save_all([(place, name, outcome.outputs[name]) for name, place in places.items()])
    results = [(name, array, False) for name, array in outcome.outputs.items()]
    results += [(name, outcome.buffers[buffer], True) for name, buffer in shown.items()]
    _report(context, options.print, results)
    for path in written:
        terminal.note(f"wrote {os.path.relpath(path)}")
    code = running.check(context, lowered, bound, outcome, options.limit) if options.check else OK
    code = code or bad
    if options.time:
        running.show_times(context, clock, running.gpu_time(replace(subject, lock=lock)) if backend == "cuda" else None)
    return code


def _outcome(options: argparse.Namespace, lowered: driver.Lowered, bound: Bound, backend: str, freeze: tuple[str, ...],
             context: Context, clock: driver.Clock, lock: Lock | None) -> driver.Outcome:  # fmt: skip
    """Optimise and run."""
    with context.terminal.progress("run") as progress:
        frozen = driver.frozen_arrays(lowered.typed, bound, freeze)
        chosen = Options(sizes=bound.sizes, frozen=frozen)
        if backend == "cuda":
            chosen = replace(chosen, device=engine.open_engine().model)
        optimised = driver.optimise(lowered, chosen, options.passes, clock)
        if options.dynamic and backend == "cuda":
            return running.for_any_size(optimised, bound, clock, lock)
        return driver.execute(optimised, bound, backend=backend, limit=options.limit, progress=progress, clock=clock,
                              lock=lock)  # fmt: skip


def _parser() -> arguments.Parser:
    parser = arguments.Parser("run", ABOUT)
    parser.add_argument("script", nargs="?", help="the script, or - for stdin")
    parser.add_argument("inputs", nargs="*", metavar="NAME=VALUE", help="a file, a generator or a number")
    arguments.add_data(parser)
    group = parser.add_argument_group("results")
    group.add_argument(
        "-o", "--out", action="append", default=[], metavar="NAME=FILE", help="write an output to a file"
    )
    group.add_argument("--out-dir", type=Path, metavar="DIR", help="write all outputs there")
    group.add_argument("--print", choices=("full", "summary", "none"), default="summary", help="of outputs")
    group.add_argument("--show", action="append", default=[], metavar="NAME", help="print any definition")
    group.add_argument("--time", action="store_true", help="print what each stage took, and a call on the GPU")
    group.add_argument("--check", action="store_true", help="hold the results against the reference interpreter's")
    arguments.add_passes(group)
    backends.add_backend(group)
    group.add_argument("--dynamic", action="store_true", help="on a GPU: kernels for any sizes, not for these alone")
    locks.add_tune(group)
    arguments.add_lock(group)
    return parser


def _places(parser: arguments.Parser, typed: TypedProgram, options: argparse.Namespace) -> dict[str, Place]:
    """The file of each output that goes to one: by -o, else under --out-dir, else by `to`."""
    found: dict[str, Place] = {}
    texts = options.out
    if len(texts) == 1 and "=" not in texts[0] and len(typed.outputs) == 1:
        texts = [f"{typed.outputs[0].name}={texts[0]}"]
    explicit = arguments.split_pairs(parser, texts, "-o")
    names = [o.name for o in typed.outputs]
    for name in explicit:
        if name not in names:
            raise UserError(error("LF0502", f"the program has no output `{name}`",
                                  notes=[f"its outputs are {', '.join(names)}"]))  # fmt: skip
    if options.out_dir:
        try:
            options.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as why:
            raise UserError(error("LF0515", f"cannot make the folder `{options.out_dir}`: {why.strerror}")) from why
    for output in typed.outputs:
        place = driver.output_place(output)
        if output.name in explicit:
            place = Place(explicit[output.name], Path())
        elif options.out_dir:
            text = place.text if place else f"{output.name}.npy"
            place = Place(os.path.basename(text) if os.path.isabs(text) else text, options.out_dir)
        if place:
            found[output.name] = place
    return found


def _shown(typed: TypedProgram, names: list[str]) -> dict[str, str]:
    """The buffers of the definitions to print."""
    table = dict(typed.names) | {i.name: i.buffer for i in typed.inputs} | {o.name: o.buffer for o in typed.outputs}
    for name in names:
        if name not in table:
            raise UserError(error("LF0502", f"nothing is called `{name}`", notes=[f"there are {', '.join(table)}"]))
    return {name: table[name] for name in names}


def _report(context: Context, how: str, results: list[tuple[str, Array, bool]]) -> None:
    """A line for each result, and its values where asked for."""
    terminal = context.terminal
    width = max((len(name) for name, _, _ in results), default=0)
    for name, array, shown in results:
        facts = summarize(array)
        terminal.record({"kind": "show" if shown else "output", "name": name, **facts,
                         **({"values": plain_values(array)} if how == "full" else {})})  # fmt: skip
        if how != "none" or shown:
            terminal.result(f"{name:<{width}}  {describe(facts)}")
        if how == "full" or shown:
            terminal.result(show_values(array, how == "full"))
