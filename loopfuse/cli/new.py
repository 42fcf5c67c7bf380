"""`loopfuse new`: a script to start from."""

from __future__ import annotations

import re
from pathlib import Path

from loopfuse.cli import arguments
from loopfuse.cli.frame import OK, Context
from loopfuse.diag import UserError, error
from loopfuse.outside import visible

ABOUT = """Write a commented script to start from. An existing file is never replaced."""

STARTER = """\
# {name}: rows standardized, then a smooth gate. Run it on random numbers, or on a file:
#
#   loopfuse run {file} x=randn --dims N=4,D=8
#   loopfuse run {file} x=data.npy -p gain=2 -o y=y.npy
#   loopfuse check {file}

# Inputs have an element type and named extents. `where` states what every element must satisfy.
input x: f32[N, D] where isfinite(x)

# A param is a number that can change from run to run.
param gain: f32 = 1
param eps: f32 = 1e-5 where eps > 0

# A requirement on sizes, checked before anything runs.
require D >= 2, "a row of one element has no spread"

# Array notation, as in NumPy ...
let centered = x - mean(x, axis=-1, keepdims=true)

# ... and index notation: an equation for every i, its reduction written out. Both mean the same kind of loop.
let spread[i] = sqrt(sum(centered[i, j] ** 2 for j) / D + eps)

fn gate(z) = z / (1 + exp(-z))

output y[i, j] = gate(gain * centered[i, j] / spread[i])

# Checks on values are run by `loopfuse check`.
check all(isfinite(y))
"""


def main(argv: list[str], context: Context) -> int:
    """Run the command; returns the exit code."""
    parser = arguments.Parser("new", ABOUT)
    parser.add_argument("name", help="the script's name; .lf is added")
    options = parser.read(argv, context)
    path = Path(options.name)
    name = re.sub(r"[^\w .-]", "", path.stem) or "script"
    try:
        path = path if path.suffix == ".lf" else path.with_name(path.name + ".lf")
        with open(path, "x", encoding="utf-8") as file:
            file.write(STARTER.format(name=name, file=visible(str(path), lines=False)))
    except FileExistsError as why:
        raise UserError(error("LF0515", f"`{path}` exists already and is not replaced")) from why
    except (OSError, ValueError) as why:
        reason = getattr(why, "strerror", None) or str(why)
        raise UserError(error("LF0515", f"`{path}` cannot be written: {reason}")) from why
    context.terminal.result(f"wrote {path}")
    context.terminal.record({"kind": "new", "file": str(path)})
    return OK
