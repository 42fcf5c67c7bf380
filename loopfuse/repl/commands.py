"""The commands of a session: `:name argument`, a unique beginning of the name being enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loopfuse import devices, driver
from loopfuse.diag import Source, UserError, error
from loopfuse.repl import docs, kernels, looking
from loopfuse.repl.replies import Reply, reply
from loopfuse.repl.session import Session
from loopfuse.repl.words import integers, pairs
from loopfuse.views.essays import normalize, read_essays
from loopfuse.views.tables import duration, table
from loopfuse.views.values import describe, summarize

Action = Callable[[Session, str, int], Reply]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what may follow it, a line of help, and what it does with session, argument and width."""

    usage: str
    help: str
    action: Action


# -- files ------------------------------------------------------------------------------------------------------------


def _load(session: Session, argument: str, width: int) -> Reply:
    path = Path(_file(argument, ":load script.lf"))
    checked = session.load(driver.read_source(path), path)
    return _loaded(session, checked)


def _loaded(session: Session, checked: driver.Checked) -> Reply:
    typed = checked.typed
    outputs = ", ".join(o.name for o in typed.outputs) or "none"
    found = reply(f"{session.name}: {len(session.parts)} statements; inputs {', '.join(i.name for i in typed.inputs) or 'none'}; "
                  f"outputs {outputs}")  # fmt: skip
    found.diagnostics = [d for d in checked.remarks if d.level == "warning"]
    return found


def _reload(session: Session, argument: str, width: int) -> Reply:
    if session.path is None:
        raise UserError(error("LF0510", "no file was loaded", fix=":load script.lf"))
    return _load(session, str(session.path), width)


def _save(session: Session, argument: str, width: int) -> Reply:
    force = argument.startswith("!")
    name = argument.lstrip("! ") or (str(session.path) if session.path else "")
    path = Path(_file(name, ":save script.lf"))
    if path.exists() and path != session.path and not force:
        raise UserError(error("LF0515", f"`{path}` exists", fix=f":save! {path}"))
    try:
        path.write_text(session.text, encoding="utf-8")
    except OSError as why:
        raise UserError(error("LF0515", f"`{path}` cannot be written: {why.strerror}")) from None
    session.path = path
    held = [f"`{n}` is declared as an input: its value is not in the script" for n in session.arrays]
    return reply([], f"wrote {path}", *held)


def _edit(session: Session, argument: str, width: int) -> Reply:
    return Reply(edit=session.text)


def _file(text: str, example: str) -> str:
    name = text.strip().strip("\"'")
    if not name:
        raise UserError(error("LF0510", "no file is named", fix=example))
    return name


def _list(session: Session, argument: str, width: int) -> Reply:
    lines = session.text.rstrip("\n").split("\n") if session.parts else []
    return reply(f"{n:>4}  {line}" for n, line in enumerate(lines, 1))


# -- data -------------------------------------------------------------------------------------------------------------


def _dims(session: Session, argument: str, width: int) -> Reply:
    if argument:
        session.set_dims(integers(argument))
        return reply()
    rows = []
    for size in session.typed().sizes:
        if size.origin == "shape":
            known = session.known.get(size.id)
            said = "given" if size.id in session.dims else "from data" if known is not None else "made up when it runs"
            rows.append((size.id, "" if known is None else str(known), said))
    return reply(table((), rows) if rows else ["the script has no open sizes"])


def _size(session: Session, argument: str, width: int) -> Reply:
    if argument:
        session.set_sizes(integers(argument))
        return reply()
    rows = [(s.id, f"= {s.value}") for s in session.typed().sizes if s.origin == "compile"]
    return reply(table((), rows) if rows else ["the script has no `size` statement"])


def _set(session: Session, argument: str, width: int) -> Reply:
    if argument:
        for name, value in pairs(argument).items():
            session.set_data(name, value)
        return reply()
    typed = session.typed()
    rows = [(i.name, session.data.get(i.name) or ("(a value)" if i.name in session.arrays else
             (i.default and f'"{i.default}"') or "made up")) for i in typed.inputs]  # fmt: skip
    rows += [
        (p.name, session.params.get(p.name) or ("-" if p.default is None else str(p.default))) for p in typed.params
    ]
    return reply(table((), rows) if rows else ["the script has no inputs"])


def _seed(session: Session, argument: str, width: int) -> Reply:
    if argument:
        if not argument.isdecimal():
            raise UserError(error("LF0502", f"`{argument}` is no seed: write an integer that is not negative"))
        session.seed = int(argument)
    return reply(f"seed {session.seed}")


def _device(session: Session, argument: str, width: int) -> Reply:
    if argument:
        session.device = devices.parse_device(argument)
    return reply(f"{session.device.name} (the presets are {', '.join(devices.PRESETS)})")


# -- running ----------------------------------------------------------------------------------------------------------


def _run(session: Session, argument: str, width: int) -> Reply:
    outputs, failed, told = session.run()
    found = reply([f"{name}  {describe(summarize(array))}" for name, array in outputs.items()] or ["no outputs"])
    found.notes = made_up(session, told.made, told.sizes)
    found.diagnostics, found.failed = failed, bool(failed)
    return found


def made_up(session: Session, made: tuple[str, ...], sizes: object) -> list[str]:
    """A note on data that was made up, once for the same data."""
    assert isinstance(sizes, dict)
    now = (made, tuple(sizes.items()))
    if not made or session.told == now:
        return []
    session.told = now
    shown = ", ".join(f"{n} = {v}" for n, v in sizes.items())
    return [f"made-up data for {', '.join(made)}{f' with {shown}' if shown else ''}  (:set, :dims)"]


def _time(session: Session, argument: str, width: int) -> Reply:
    clock = driver.Clock()
    if argument:
        session.evaluate(argument, clock)
    else:
        session.run(clock)
    return reply(table((), [(stage, duration(seconds)) for stage, seconds in clock.stages.items()], "lr"))


def _check(session: Session, argument: str, width: int) -> Reply:
    count = len(driver.check_buffers(session.typed()))
    if not count:
        return reply("the script has no checks")
    _, failed, told = session.run()
    found = reply(f"{count - len(failed)} of {count} checks hold")
    found.notes = made_up(session, told.made, told.sizes)
    found.diagnostics, found.failed = failed, bool(failed)
    return found


# -- the session ------------------------------------------------------------------------------------------------------


def _doc(session: Session, argument: str, width: int) -> Reply:
    if argument:
        return reply(docs.doc(argument, session.text))
    return reply(" ".join(docs.functions()))


def _explain(session: Session, argument: str, width: int) -> Reply:
    essays = read_essays()
    code = normalize(argument)
    if code not in essays:
        raise UserError(error("LF0502", f"there is no error code `{argument}`", fix=":explain LF0304"))
    return reply(essays[code].removeprefix("## "))


def _history(session: Session, argument: str, width: int) -> Reply:
    count = int(argument) if argument.isdecimal() else 20
    return reply(f"{n:>4}  {line}" for n, line in list(enumerate(session.lines, 1))[-count:])


def _help(session: Session, argument: str, width: int) -> Reply:
    if argument:
        name = find(argument.lstrip(":"))
        command = COMMANDS[name]
        return reply([f":{name} {command.usage}".rstrip(), f"    {command.help}"])
    rows = [(f":{name} {command.usage}".rstrip(), command.help) for name, command in COMMANDS.items()]
    return reply([*_HELP.split("\n"), *table((), rows, width=width)])


def _quit(session: Session, argument: str, width: int) -> Reply:
    return Reply(done=True)


_HELP = """\
A definition (`let p = ..`, `input x: f32[B, N]`) becomes a part of the script.
An expression is evaluated, and `_` is its value afterwards; with `;` at the end
nothing is printed. A line that is not complete goes on below; an empty line
ends it. The beginning of a command's name is enough."""

COMMANDS: dict[str, Command] = {
    "load": Command("FILE", "a script in place of this one", _load),
    "reload": Command("", "the same file again", _reload),
    "save": Command("[FILE]", "write the session as a script (`save!` replaces a file)", _save),
    "edit": Command("", "the script in $EDITOR", _edit),
    "list": Command("", "the script, with its line numbers", _list),
    "type": Command("[E]", "the type of an expression, or of everything", looking.show_type),
    "ranges": Command("", "the range of every index; what sizes must satisfy", looking.show_ranges),
    "dims": Command("[N=..]", "sizes of made-up data", _dims),
    "size": Command("[R=3]", "the value of a `size`", _size),
    "set": Command("[x=randn]", "data for an input (a generator, a file), or a param", _set),
    "seed": Command("[N]", "of made-up and random data", _seed),
    "passes": Command("[LIST]", "the passes, one a line; with a list, which run (`-fuse`)", looking.show_passes),
    "step": Command("[PASS]", "walk through the passes", looking.show_step),
    "diff": Command("[A [B]]", "what a pass changed, or all from A to B", looking.show_diff),
    "ir": Command("[PASS]", "the loops after a pass", looking.show_ir),
    "remarks": Command("", "what the passes said", looking.show_remarks),
    "why": Command("[A B]", "why two definitions are (not) one kernel; all decisions", looking.show_why),
    "cost": Command("[K]", "estimates for each kernel; one kernel's plan", looking.show_cost),
    "device": Command("[NAME]", "whose costs decide", _device),
    "cuda": Command("[K]", "the CUDA C of the kernels (`cuda!`: what they call too)", kernels.show_cuda),
    "ptx": Command("[K]", "their PTX", kernels.show_ptx),
    "sass": Command("[K]", "their machine code", kernels.show_sass),
    "backend": Command("[NAME]", "what runs the script: auto, cuda or reference", kernels.set_backend),
    "run": Command("", "run the script: a line an output", _run),
    "check": Command("", "evaluate the script's checks", _check),
    "time": Command("[E]", "how long each stage takes", _time),
    "bench": Command("", "how long the script takes, again and again", kernels.show_bench),
    "doc": Command("[FN]", "what a function does; all functions", _doc),
    "explain": Command("LFnnnn", "what an error code means", _explain),
    "history": Command("[N]", "the last lines typed", _history),
    "help": Command("[NAME]", "this", _help),
    "quit": Command("", "end (Ctrl-D too)", _quit),
}
# Where a beginning fits several: the one that is meant most often.
SHORT = {"h": "help", "s": "step", "d": "diff", "r": "run", "l": "load", "t": "type", "e": "edit", "q": "quit", "p": "passes",
         "c": "cost", "b": "bench", "sa": "save", "st": "step", "di": "diff", "re": "reload"}  # fmt: skip


def find(name: str) -> str:
    """The command that a name, or the beginning of one, stands for. Raises `UserError` LF0502."""
    if name in COMMANDS:
        return name
    if name in SHORT:
        return SHORT[name]
    fits = [known for known in COMMANDS if known.startswith(name)] if name else []
    if len(fits) == 1:
        return fits[0]
    said = f"it may be {', '.join(':' + f for f in fits)}" if fits else ":help lists the commands"
    raise UserError(error("LF0502", f"there is no command `:{name}`", notes=[said]))


def run(session: Session, line: str, width: int = 80) -> Reply:
    """Run a command line, which begins with `:`. Raises `UserError`."""
    name, _, argument = line.lstrip()[1:].partition(" ")
    forced = name.endswith("!")
    found = find(name.rstrip("!"))
    return COMMANDS[found].action(session, ("! " if forced else "") + argument.strip(), width)


def edited(session: Session, text: str) -> Reply:
    """Take a text that came back from the editor."""
    if text == session.text:
        return reply([], "nothing changed")
    return _loaded(session, session.load(Source(session.name, text), session.path))
