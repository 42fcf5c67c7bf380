"""Faults planted in several processes at once.

Each process plants one fault at a time and keeps what it prepared for it: examples run without a fault, kernels compiled. So
it is given faults that ask the same checks first, as long as there are any. A process that ends, or that has nothing to say
for too long, takes only its fault with it.
"""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from .planting import Mutant
from .running import kill, order
from .table import Found

LIMIT = 1500.0  # seconds for a fault, with what has to be prepared for it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a fault: what found it, or None; `lost`: why there is no answer."""

    mutant: Mutant
    found: Found | None
    lost: str = ""


@dataclass
class Worker:
    """A process, the way to it, the fault that it has and since when; `kind`: which checks it has prepared."""

    process: BaseProcess
    pipe: Connection
    mutant: Mutant | None = None
    kind: str = ""
    since: float = field(default_factory=time.monotonic)


def planted(mutants: Sequence[Mutant], jobs: int, limit: float = LIMIT) -> Iterator[Verdict]:
    """Plant each, `jobs` at once; gives verdicts as they come."""
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(kind_of(mutant), []).append(mutant)
    workers = [_started() for _ in range(max(1, min(jobs, len(mutants))))]
    try:
        for worker in workers:
            _give(worker, groups, workers)
        while busy := [w for w in workers if w.mutant is not None]:
            ready = wait([w.pipe for w in busy], timeout=min(5.0, limit))
            for worker in busy:
                verdict = _answer(worker, worker.pipe in ready, limit)
                if verdict is None:
                    continue
                yield verdict
                if not worker.process.is_alive():
                    if not any(groups.values()):
                        continue
                    workers[workers.index(worker)] = worker = _started()
                _give(worker, groups, workers)
    finally:
        for worker in workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def kind_of(mutant: Mutant) -> str:
    """The checks that are asked first, by name."""
    return f"{mutant.where}: {order(mutant)[0].name}"


def _give(worker: Worker, groups: dict[str, list[Mutant]], workers: Sequence[Worker]) -> None:
    """The next fault: one of the kind that the process has had, else of the kind with most left for each process at it."""
    at = {kind: sum(w.kind == kind and w.mutant is not None for w in workers) for kind in groups}
    left = [kind for kind, many in groups.items() if many]
    worker.mutant = None
    if not left:
        return
    worker.kind = worker.kind if worker.kind in left else max(left, key=lambda k: len(groups[k]) / (1 + at[k]))
    worker.mutant, worker.since = groups[worker.kind].pop(0), time.monotonic()
    worker.pipe.send(worker.mutant.name)


def _answer(worker: Worker, ready: bool, limit: float) -> Verdict | None:
    """What a process says of its fault, or that it has ended; None while it is at work."""
    mutant = worker.mutant
    assert mutant is not None
    lost = ""
    if ready:
        try:
            found, lost = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            lost = f"the process ended with {worker.process.exitcode}"
        else:
            worker.mutant = None
            return Verdict(mutant, found, lost)
    elif time.monotonic() - worker.since > limit:
        worker.process.kill()
        worker.process.join()
        lost = f"no answer after {limit:.0f} seconds"
    if not lost:
        return None
    worker.mutant = None
    worker.pipe.close()
    return Verdict(mutant, None, lost)


def _started() -> Worker:
    """A process of its own memory: nothing that was imported, planted or started here is there."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of several processes each has one core
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,))
    process.start()
    theirs.close()
    return Worker(process, ours)


def _work(pipe: Connection) -> None:
    """A process: faults by name come in, what found them goes out. What checks print is nobody's."""
    from .catalogue import MUTANTS

    warnings.simplefilter("ignore")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    named = {m.name: m for m in MUTANTS}
    while True:
        try:
            mutant = named[pipe.recv()]
        except (EOFError, OSError):
            return
        found, lost = None, ""
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                found = kill(mutant)
        except Exception as why:
            lost = f"{type(why).__name__}: {str(why)[:200]}"
        pipe.send((found, lost))
