"""The options that say which passes run and what they are told. Light: the help of a command imports no compiler."""

from __future__ import annotations

import argparse

from loopfuse import devices
from loopfuse.cli import arguments


def add_passes(parser: arguments.Parser) -> None:
    """The options that say which passes run and what they are told."""
    group = parser.add_argument_group("passes")
    group.add_argument("--passes", metavar="LIST", help="`cse,fuse` (these alone), `-fuse` (all others), `none`")
    group.add_argument(
        "--device",
        default=devices.DEFAULT,
        metavar="NAME[:KEY=VALUE,..]",
        help="whose costs decide (default h200), with measured values in place of its own",
    )
    group.add_argument("--dims", action="append", default=[], metavar="N=4096,D=64", help="sizes for the cost model")
    group.add_argument("--specialise", action="append", default=[], metavar="N=4096", help="compile for these sizes")
    group.add_argument(
        "--freeze", action="append", default=[], metavar="NAME[=FILE],..", help="inputs that are constants"
    )
    group.add_argument("--decide-max", type=_count, metavar="N", help="take only the first N fusions")
    group.add_argument("--decisions", metavar="FILE", help="verdicts that override the cost model")
    group.add_argument("--write-decisions", metavar="FILE", help="write the decisions out, to edit and give back")
    arguments.add_sizes(group)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is no count")
    return int(text)
