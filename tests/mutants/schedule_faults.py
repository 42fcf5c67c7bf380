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
    _edit("threads-meet-in-an-element", "threads absorb into one element without taking turns", "emit.team:Team.apart",
          "return False", "return True"),
    _edit("row-lanes-lose-the-last", "rows of a thread's strip past the end are not masked", "emit.strips:Strip._rows",
          "if end is not None:", "if False:"),
    _edit("falling-positions-rise", "of equal values the last one counts where positions fall", "emit.strips:Strip._rises",
          "return factor.is_const and factor.constant > 0", "return factor.is_const"),
    _edit("lanes-of-one-index", "every lane of a strip has the index of the first", "emit.strips:Strip._lanes",
          'f"{lane.first} + {v}"', 'f"{lane.first}"'),
    _edit("boundary-taken-as-inside", "subscripts of maps are always inside", "emit.maps_access:Study._inside",
          "return self.facts.nonneg(poly) and self.facts.nonneg(extent - poly - 1)", "return True"),
    _edit("vectors-off-their-boundary", "vectors begin at any offset", "emit.fetching:Accesses.aligned",
          "gcd(self.divisor(start), lanes) * size", "lanes * size"),
    _edit("guarded-loads-ahead", "a load goes ahead of the condition that keeps it in range", "emit.fetching:Accesses.inside",
          "return self.facts.nonneg(poly) and self.facts.nonneg(extent - poly - 1)", "return True"),
    _edit("loads-before-the-store", "a load goes ahead of the store that it reads", "emit.fetching:Accesses._gather",
          "if load in known or load.buffer in self.written:", "if load in known:"),
    _edit("rows-without-a-barrier", "threads of different rows exchange values through memory", "schedule.base:agree",
          "if not _never_meet(w, r) and", "if False and"),
    _edit("index-of-32-bits", "subscripts of large arrays have 32 bits", "emit.base:too_many",
          "return count is None or count > MOST_NARROW", "return False"),
)  # fmt: skip
