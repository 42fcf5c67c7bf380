"""Processes that run trials. One that hangs or dies is a failure of its program, and another process takes its place."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from loopfuse.diag import MachineError
from loopfuse.testing.trial import Case, Failure, Outcome

STARTING = 60.0  # seconds that a process has to begin, beside its limit, on a machine that is busy
LOOK = 1.0  # seconds between two looks at the clock
GRACE = 0.5  # seconds after the end in which a process may say what it has found
Serve = Callable[[Any, Callable[[str], None]], Iterator[Outcome]]


@dataclass
class Worker:
    """A process: the batch that it has, how many of its programs are done, which one runs since when."""

    process: Any
    pipe: Connection
    batch: Any = None
    done: int = 0
    text: str = ""
    since: float = 0.0


def _serve(pipe: Connection, trials: Serve) -> None:
    """The process: batches come, outcomes go, each after the text that it is of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes itself
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            batch = pipe.recv()
            for outcome in trials(batch, pipe.send):
                pipe.send(outcome)
            pipe.send(None)


class Workers:
    """So many processes. `trials` yields the outcomes of a batch and tells the text of each before it runs; no program may
    take longer than `seconds` of the clock. At the `end`, by `time.monotonic()`, whatever still runs is stopped."""

    def __init__(self, jobs: int, trials: Serve, seconds: float, end: float | None = None) -> None:
        self.jobs, self.trials, self.seconds, self.end = jobs, trials, seconds, end
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[Worker] = []

    def run(self, batches: Callable[[], Any | None]) -> Iterator[Outcome]:
        """The outcomes of batches, which are asked for as long as there are any."""
        try:
            while True:
                self._feed(batches)
                busy = [w for w in self.workers if w.batch is not None]
                left = LOOK if self.end is None else self.end + GRACE - time.monotonic()
                if not busy or left <= 0:
                    return
                ready = wait([w.pipe for w in busy], timeout=min(LOOK, left))
                for worker in busy:
                    if worker.pipe in ready:
                        yield from self._heard(worker)
                    elif time.monotonic() - worker.since > self.seconds + (0 if worker.text else STARTING):
                        yield self._lost(worker, "hang", f"it did not end within {self.seconds:g} s")
        finally:
            for worker in self.workers:
                worker.process.kill()
            for worker in self.workers:
                worker.process.join()
                worker.pipe.close()

    def _feed(self, batches: Callable[[], Any | None]) -> None:
        while sum(w.batch is not None for w in self.workers) < self.jobs:
            batch = batches()
            if batch is None:
                return
            idle = next((w for w in self.workers if w.batch is None), None) or self._started()
            self._give(idle, batch)

    def _started(self) -> Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.trials), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        worker = Worker(process, ours)
        self.workers.append(worker)
        return worker

    def _give(self, worker: Worker, batch: Any) -> None:
        worker.batch, worker.done, worker.text, worker.since = batch, 0, "", time.monotonic()
        with suppress(OSError):  # of a process that died: its pipe says so when it is read
            worker.pipe.send(batch)

    def _heard(self, worker: Worker) -> Iterator[Outcome]:
        """What a process says next."""
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            if not worker.text:  # it never began: another would not either
                raise MachineError(f"processes for trials end at once, with {worker.process.exitcode}") from None
            yield self._lost(worker, "crash", f"the process ended with {worker.process.exitcode}")
            return
        worker.since = time.monotonic()
        if isinstance(said, str):
            worker.text = said
        elif said is None:
            worker.batch = None
        else:
            worker.done += 1
            yield said
            if said.failure is not None and said.failure.taints:
                self._replaced(worker)

    def _lost(self, worker: Worker, what: str, problem: str) -> Outcome:
        """The failure of the program that a process ran."""
        text, seconds = worker.text, time.monotonic() - worker.since
        worker.done += 1
        self._replaced(worker)
        return Outcome(Failure(what, "process", problem, Case(text)), seconds=seconds)

    def _replaced(self, worker: Worker) -> None:
        """Another process for the rest of the batch."""
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        left = worker.batch.count - worker.done
        if left > 0:
            self._give(self._started(), replace(worker.batch, start=worker.batch.start + worker.done, count=left))
