"""Runs emitted CUDA kernels on the CPU, so that they can be tested without a GPU.

`build(code).run(inputs, params, sizes, outputs)` gives the outputs of a `Code`; `check` runs it in several orders of
threads and blocks and compares the bits. What a GPU would do in silence is an error here: a barrier that not all
threads reach, an access outside a buffer or misaligned, memory read before it is written (it is poisoned).
What goes on beside the threads (copies to shared memory, tiles, values sent to other blocks, products of a warpgroup)
happens at once in one order and as late as it may in another, so that `check` notices who does not wait for it, or
overwrites what it still reads.
A prelude function with inline PTX needs a definition in `host.HOST` (those of tiles and matrix units: `matrix.MATRIX`).
"""

from emulator.building import EmulatorError, available
from emulator.host import HOST, has_ptx
from emulator.running import Emulated, build

__all__ = ["HOST", "Emulated", "EmulatorError", "available", "build", "has_ptx"]
