"""Arguments that several commands share, and how their small languages are read."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from loopfuse.cli.frame import Context
from loopfuse.diag import Source, UserError, error
from loopfuse.generate import Scalar, parse_number
from loopfuse.memory import parse_bytes
from loopfuse.outside import visible


class Parser(argparse.ArgumentParser):
    """An argument parser with the options that every command has."""

    def __init__(self, command: str, about: str, **rest: object) -> None:
        super().__init__(prog=f"loopfuse {command}", description=_filled(about), allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter, **rest)  # type: ignore[arg-type]  # fmt: skip
        self._given: list[str] = []
        group = self.add_argument_group("every command")
        group.add_argument("--json", action="store_true", help="JSON lines on stdout, words for people on stderr")
        group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="when to use colours")
        group.add_argument("-q", "--quiet", action="store_true", help="no warnings, notes or progress")
        group.add_argument("-v", "--verbose", action="store_true", help="remarks too")

    def _print_message(self, message: str, file: Any = None) -> None:
        if (stream := file or sys.stderr) is not None:
            stream.write(visible(message))  # argparse would say nothing of a disk that is full

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong and exit with 2. A value that begins with `-` is told as what it is, and not as an option."""
        lacking = re.fullmatch(r"argument (\S+): expected one argument", message)
        names = lacking[1].split("/") if lacking else []
        pairs = zip(self._given, self._given[1:], strict=False)
        value = next((b for a, b in pairs if a in names and b.startswith("-") and not self._is_option(b)), "")
        if value:
            message = f"argument {lacking[1]}: {self._meant(names[-1], value)}" if lacking else message
        super().error(message)

    def _is_option(self, word: str) -> bool:
        return word.partition("=")[0] in self._option_string_actions

    def _meant(self, option: str, value: str) -> str:
        """What is wrong with a value that begins with `-`, or how it is written."""
        read = self._option_string_actions[option].type
        try:
            if callable(read):
                read(value)
        except (argparse.ArgumentTypeError, ValueError) as why:
            return str(why)
        return f"a value that begins with `-` is written behind `=`: {option}={value}"

    def read(self, arguments: Sequence[str], context: Context) -> argparse.Namespace:
        """Parse the arguments after the command's name, and set the terminal up."""
        self._given = list(arguments[1:])
        found = self.parse_intermixed_args(self._given)
        terminal = context.terminal
        terminal.json, terminal.color, terminal.quiet = found.json, found.color, found.quiet
        terminal.verbose = found.verbose
        return found


def _filled(text: str) -> str:
    """A description as wide as the terminal; paragraphs with indented lines stay as they are."""
    width = min(shutil.get_terminal_size().columns, 100) - 2
    parts = text.split("\n\n")
    return "\n\n".join(
        p if "\n " in p or p.startswith(" ") else textwrap.fill(" ".join(p.split()), width) for p in parts
    )


def add_data(parser: Parser) -> None:
    """The options that give a program its data."""
    group = parser.add_argument_group("data")
    group.add_argument("--dims", action="append", default=[], metavar="N=4096,D=64", help="sizes of generated inputs")
    group.add_argument("--seed", type=_seed, default=0, help="seed of generated inputs (default 0)")
    group.add_argument("-p", "--param", action="append", default=[], metavar="NAME=VALUE", help="value of a param")
    group.add_argument(
        "--limit", type=_bytes, metavar="BYTES", help="most memory to use, as 8G (default: 80%% of free)"
    )
    add_sizes(group)


def add_sizes(group: argparse._ActionsContainer) -> None:
    """The option that replaces compile-time sizes."""
    group.add_argument("-D", action="append", default=[], dest="sizes", metavar="NAME=N", help="value of a `size`")


def add_passes(group: argparse._ActionsContainer) -> None:
    """The options that say which passes run, and on what constants."""
    group.add_argument(
        "--passes", default="default", metavar="LIST",
        help="`default`, `none`, `cse,fuse` (only these) or `-fuse` (all but this; write --passes=-fuse)",
    )  # fmt: skip
    group.add_argument("--freeze", action="append", default=[], metavar="NAME,...", help="inputs that are constants")


def add_lock(group: argparse._ActionsContainer) -> None:
    """The option that leaves out the lock file of a script."""
    group.add_argument("--no-lock", action="store_true", help="leave SCRIPT.lock out: the tiles of the model")


def names(texts: Iterable[str]) -> list[str]:
    """The names in lists such as `w,b`."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _bytes(text: str) -> int:
    count = parse_bytes(text)
    if count is None:
        raise argparse.ArgumentTypeError(f"`{text}` is no amount of memory: write 512M or 8G")
    return count


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is no seed: write an integer that is not negative")
    return int(text)


def split_pairs(parser: Parser, texts: Iterable[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; the command line is wrong where one is malformed or given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value:
            parser.error(f"{option}: `{text}` is not NAME=VALUE")
        if name in found:
            parser.error(f"{option}: `{name}` is given twice")
        found[name] = value.strip()
    return found


def integers(parser: Parser, texts: Iterable[str], option: str) -> dict[str, int]:
    """`N=4096,D=64` texts as a mapping to integers; `2^10` and `2**10` are powers."""
    pairs = [part for text in texts for part in text.split(",") if part.strip()]
    found: dict[str, int] = {}
    for name, value in split_pairs(parser, pairs, option).items():
        number = _integer(value)
        if number is None:
            parser.error(f"{option}: `{value}` is not an integer")
        found[name] = number
    return found


def _integer(text: str) -> int | None:
    base, power, exponent = text.replace("**", "^").replace("_", "").partition("^")
    low = parse_number(base.strip())
    high = parse_number(exponent.strip()) if power else 1
    if type(low) is not int or type(high) is not int or not 0 <= high <= 63 or low.bit_length() > 64:
        return None
    return int(low**high)


def numbers(pairs: dict[str, str]) -> dict[str, Scalar]:
    """The values of params. Raises `UserError` LF0508 where one is not a number."""
    found: dict[str, Scalar] = {}
    for name, text in pairs.items():
        value = parse_number(text)
        if value is None:
            raise UserError(error("LF0508", f"the param `{name}` is given as `{text}`, which is not a number"))
        found[name] = value
    return found


def script_folder(source: Source) -> Path:
    """The folder that the file names in a script are relative to."""
    return Path(source.name).parent if source.name != "<stdin>" else Path()
