"""Testing scripts, and the compiler: random programs, data for a script, and whether all that is made of it agrees.

    from hypothesis import given, strategies as st
    import loopfuse as lf
    from loopfuse.testing import inputs_for, programs

    @given(programs(), st.data())
    def test_every_pass(p, data):
        lf.check(p, data.draw(inputs_for(p)), every_pass=True).raise_if_bad()

The strategies need hypothesis (`pip install 'loopfuse[fuzz]'`); `loopfuse fuzz` does without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopfuse.testing.strategies import Script, inputs_for, programs

__all__ = ["Script", "inputs_for", "programs"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'loopfuse.testing' has no attribute {name!r}")
    return getattr(import_module("loopfuse.testing.strategies"), name)
