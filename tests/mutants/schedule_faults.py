"""Faults planted in plans: what may be done ahead or in parallel, what is guarded, how much memory there is, how many blocks."""

from __future__ import annotations

from .planting import Edit, Mutant

WHERE = "schedule"


def _edit(name: str, mistake: str, place: str, old: str, new: str) -> Mutant:
    return Mutant(name, WHERE, mistake, (Edit(place, old, new),))


SCHEDULES: tuple[Mutant, ...] = (
    _edit("temporaries-alias", "a temporary lies where one that is still read lies", "cuda.arena:pack",
          "o.first <= interval.last and interval.first <= o.last", "o.first < interval.last and interval.first < o.last"),
    _edit("life-from-the-last-use", "a temporary lives only in the last step that names it", "cuda.arena:lifetimes",
          "(found.get(id, (number, number))[0], number)", "(number, number)"),
    _edit("partial-states-one-short", "scratch holds the states of one part fewer", "emit.reductions:Reduction.partial",
          "self.width * (self.parts *", "self.width * ((self.parts - 1) *"),
    _edit("parts-forget-the-batch", "scratch of a product's folds is that of one batch", "emit.matrix.finish:Parts.memory",
          "self.axis.extent * batch *", "self.axis.extent *"),
    _edit("cut-sums-one-short", "scratch of a cut sum holds one part fewer", "emit.matrix.split:Split.memory",
          "self.total * (self.parts *", "self.total * ((self.parts - 1) *"),
    _edit("temporaries-of-half-size", "a temporary of f32 gets two bytes an element", "emit.program:_Made.code",
          "* buffer.dtype.itemsize", "* min(2, buffer.dtype.itemsize)"),
    _edit("last-block-not-launched", "the number of blocks is rounded down", "emit.code:ceil_div",
          "(value + (by - 1)) // by", "value // by"),
    _edit("vectors-across-rows", "a vector may reach into the next row", "emit.rows_fit:_width",
          "return gcd(width, *(multiple(shape, p) for p in lengths))", "return width"),
    _edit("remainder-of-a-share", "what does not divide by the parts is left out", "emit.columns_across:Across.share",
          "count = -(-known // per) * lanes", "count = known // per * lanes"),
    _edit("columns-past-the-last", "threads past the last column are not masked", "emit.reductions:Reduction.column",
          "if number is not None and number % (side * lanes) == 0:", "if True:"),
)  # fmt: skip
