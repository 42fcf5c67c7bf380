"""Adjacent dims of a loop along which everything moves as along one are made one."""

from __future__ import annotations

from loopfuse.emit.base import Job
from loopfuse.ir import Stmt


def collapsed(job: Job) -> tuple[Stmt, ...]:
    """The body of a job's kernel."""
    return job.kernel.body
