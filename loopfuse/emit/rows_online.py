"""A fold over a row in one pass, where every accumulator that waits for another has a repair: a batch of vectors first moves
the accumulators that others depend on, then those are repaired and absorb the batch."""

from __future__ import annotations

from loopfuse.emit.merging import aliases, value
from loopfuse.emit.rows_shape import Line, Run
from loopfuse.emit.rows_vectors import Part
from loopfuse.emit.rows_write import Rows
from loopfuse.emit.slices import levels, prune
from loopfuse.emit.writer import c_type, state_type
from loopfuse.ir import Acc, Loop
from loopfuse.walking import expr_names


class Online(Rows):
    """Statements of a thread that takes its part of a row a batch at a time."""

    def batch(self, line: Line, level: dict[str, int], counts: dict[str, int], part: Part) -> None:
        """A part of the row into running states."""
        loop, w = line.loop, self.w
        asked = {n for a in loop.accs if a.repair is not None for n in expr_names(a.repair).values}
        old: dict[str, str] = {}
        for acc in loop.accs:
            name = w.names(acc.id)
            if f"{acc.id}.old" in asked:
                old[acc.id] = w.names.fresh(f"{acc.id}.old")
                w.line(f"const {state_type(acc.monoid, acc.dtype)} {old[acc.id]} = {name};")
        for acc in loop.accs:
            if acc.id in counts:
                self.tally(acc, line.run, counts[acc.id], part)
        hoisted = set(self.hoisted)
        for number in range(1 + max(level.values())):
            mine = [a for a in loop.accs if level[a.id] == number and a.id not in counts]
            body = prune(loop.body, {a.id for a in mine}, stores=number == 0)
            for acc in mine:
                if acc.repair is not None:
                    self.repair(loop, acc, old)
            if body:
                moving = self.hoist(line, body)
                if not self.packed(line, mine, moving):
                    self.sweep(line, moving)
        self.hoisted = hoisted
        for name in old.values():
            w.names.free(name)

    def repair(self, loop: Loop, acc: Acc, old: dict[str, str]) -> None:
        """An accumulator brought to what those that it depends on are now."""
        w, name = self.w, self.w.names(acc.id)
        named = {"self": name}
        for other in loop.accs:
            if other.id in old:
                named[f"{other.id}.old"] = value(other, old[other.id])
                named[f"{other.id}.new"] = value(other, w.names(other.id))
        assert acc.repair is not None
        with aliases(w, named):
            w.line(f"{name} = {w.expr(acc.repair)};")

    def tally(self, acc: Acc, run: Run, step: int, part: Part) -> None:
        """A constant for each element of the part."""
        w, name, kind = self.w, self.w.names(acc.id), c_type(acc.dtype)
        each = self.fit.width[run] * step
        if part.full:
            w.line(f"{name} = ({kind})({name} + {part.count * each});")
            return
        with self.vectors(run, "at"):
            w.line(f"{name} = ({kind})({name} + {each});")


def online(loop: Loop) -> bool:
    """Whether every accumulator that waits for another has a repair."""
    level = levels(loop)
    return any(level.values()) and all(a.repair is not None or not level[a.id] for a in loop.accs)
