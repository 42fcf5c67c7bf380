"""What runs a program: the option that says so, and what it comes to on this machine."""

from __future__ import annotations

import argparse

from loopfuse import driver
from loopfuse.cli.frame import Context
from loopfuse.cuda import engine
from loopfuse.diag import MachineError


def add_backend(group: argparse._ActionsContainer, default: str = "auto") -> None:
    """The option."""
    text = "what runs the program (auto: the GPU where there is one)" if default == "auto" else "what runs the program"
    group.add_argument("--backend", choices=driver.BACKENDS, default=default, help=text)


def settled(name: str, context: Context) -> str:
    """`cuda` or `reference`. With -v a note says why `auto` is not the GPU.

    Raises `MachineError`, which says the way out, where the GPU is asked for and cannot be used.
    """
    if name == "cuda" and (problem := engine.usable()):
        raise MachineError(problem)
    found = driver.chosen_backend(name)
    if name == "auto" and found == "reference" and context.terminal.verbose:
        context.terminal.note(f"on the reference interpreter: {engine.usable()}")
    return found
