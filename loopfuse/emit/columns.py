"""Column: reductions whose partial results meet in a finish.

Of a reduction over everything, or along rows, a block's threads lie along the reduction (`Along`): each takes vectors of
it. Of a reduction of columns (`Across`) each thread owns adjacent columns, in a vector, and the rows of a block's share
lie over its row lanes. In both a thread holds partial states, the block joins them by halves, and where the reduction is
split, states go through scratch to a finish, which joins them in the order of the splits and goes on with what follows.
"""

from __future__ import annotations

from loopfuse.emit.base import Declined, Emitted, Job
from loopfuse.emit.columns_across import Across
from loopfuse.emit.columns_along import Along
from loopfuse.emit.columns_whole import Whole
from loopfuse.emit.reductions import nest_of


def emit(job: Job) -> Emitted | Declined:
    """The kernels of a `column` plan."""
    found = nest_of(job)
    if isinstance(found, Declined):
        return found
    if found.whole:
        return Whole(job, found).emit()
    return Across(job, found).emit() if found.vector else Along(job, found).emit()


__all__ = ["emit"]
