"""What a kernel of the search will be once the passes after fusion have run."""

from __future__ import annotations

from loopfuse.analysis.env import Env
from loopfuse.ir import Buffer, Kernel
from loopfuse.passes.cascade import cascade_kernel
from loopfuse.passes.contract import contract_kernel
from loopfuse.passes.remat import rematerialise


def finish(kernel: Kernel, env: Env, live: frozenset[str]) -> tuple[Kernel, dict[str, Buffer]]:
    """What a kernel will be after the later passes, and the buffers that they change."""
    kernel = rematerialise(kernel, env, live)
    kernel, _, _ = cascade_kernel(kernel, env, live)
    return contract_kernel(kernel, env, live)
