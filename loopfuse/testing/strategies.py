"""Strategies of hypothesis: random scripts, and arrays for a script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopfuse.bind import Given
from loopfuse.diag import Source
from loopfuse.driver import compile_source, read_source
from loopfuse.frontend.typed import TypedProgram
from loopfuse.generate import Array
from loopfuse.testing import data
from loopfuse.testing.alike import OFTEN
from loopfuse.testing.choices import Drawn
from loopfuse.testing.scripts import script

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

try:
    from hypothesis import reject
    from hypothesis import strategies as st
except ImportError as why:
    raise ImportError("loopfuse.testing needs hypothesis: pip install 'loopfuse[fuzz]'") from why


class Script(str):
    """The text of a script, shown as it is written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f'"""\n{self}"""'


def programs(max_stmts: int = 6) -> SearchStrategy[Script]:
    """Scripts of at most about so many definitions, each accepted by the checker.

    Shrinks to few statements, plain operations and few inputs. Run one by `lf.check(p, data.draw(inputs_for(p)))`.
    """

    @st.composite
    def made(draw: Any) -> Script:
        return Script(script(Drawn(lambda lo, hi: draw(st.integers(lo, hi))), max_stmts))

    return made()


def inputs_for(program: object, shapes: str = "edge") -> SearchStrategy[Mapping[str, Array]]:
    """Arrays by name for a script (text, a `Path`, or an `lf.Program`), which keep to its domains and requirements.

    `shapes`: extents are `small`, also 0, equal, prime and just past a tile (`edge`), or `big`. An example is rejected
    where no data that the requirements and domains allow was found.
    """
    typed = _typed(program)

    @st.composite
    def made(draw: Any) -> Mapping[str, Array]:
        found = data.draw(typed, Given({}), Drawn(lambda lo, hi: draw(st.integers(lo, hi))), shapes, rows=OFTEN)
        if isinstance(found, str):
            reject()
        return {i.name: found.bound.inputs[i.buffer] for i in typed.inputs}

    return made()


def _typed(program: Any) -> TypedProgram:
    if isinstance(program, Path):
        return compile_source(read_source(program), search=program.parent).typed
    if isinstance(program, str):
        return compile_source(Source("<string>", program)).typed
    typed: TypedProgram = program._typed  # of an `lf.Program`, which is above this module
    return typed
