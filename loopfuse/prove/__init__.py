"""The prover behind the law of subscripts: exact facts about sizes, indices and integer values, and what follows.

`Facts` is persistent: every method that learns returns a new object. `judge` gives the verdict on one subscript.
"""

from __future__ import annotations

from loopfuse.prove.facts import Facts
from loopfuse.prove.judge import Judgement, judge
from loopfuse.prove.reads import guarded_children, guarded_loads

__all__ = ["Facts", "Judgement", "guarded_children", "guarded_loads", "judge"]
