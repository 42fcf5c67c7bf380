"""The roofline model: what a kernel takes, from bytes, operations, threads and launches.

    T = L + max(Tm, Tc) + 0.05 min(Tm, Tc)

Tm: bytes of device memory at the bandwidth that the bytes in flight can draw, and bytes from the cache at its own. Tc:
matrix products at the peak that their waves of tiles leave, other operations and special functions at theirs. L: the
launches, replayed from a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopfuse.analysis.summary import NONE, Work
from loopfuse.devices import Device
from loopfuse.schedule.plan import Cost

OVERLAP = 0.05  # of the shorter of the two times that does not hide behind the longer
REACHED = 0.7  # of the arithmetic peaks, by code that is not all fused multiply-adds
MOST_IN_FLIGHT = 64 << 10  # bytes that one multiprocessor can have outstanding
FEEDS = 512  # threads a multiprocessor that keep its arithmetic busy


@dataclass
class Load:
    """What a plan asks of a device. Bytes and operations of the whole kernel; the rest describes one block."""

    reads: float = 0
    writes: float = 0
    rereads: float = 0
    work: Work = NONE
    local: float = 0  # bytes that pass between threads and the first-level cache or shared memory
    matrix: float = 0  # operations on the matrix units
    matrix_seconds: float = 0.0
    least: float = 0.0  # seconds that a chain of dependent steps takes, whatever the bandwidth
    launches: int = 1
    blocks: int = 1
    threads: int = 256
    registers: int = 32
    shared: int = 0
    ahead: float = 64.0  # bytes that a thread has outstanding
    fed: float = 0  # bytes from the cache whose time stands in `matrix_seconds`


def resident(device: Device, ask: Load) -> int:
    """The blocks that fit on a multiprocessor at once; 0 where not even one does."""
    if device.kind == "cpu":
        return 1
    if ask.shared > device.shared or ask.threads > 1024:
        return 0
    by_registers = device.registers // max(1, ask.threads * max(16, -(-ask.registers // 8) * 8))
    by_shared = 32 if not ask.shared else (device.shared + 1024) // (ask.shared + 1024)
    return min(32, by_registers, by_shared, device.threads // max(1, ask.threads))


def arithmetic(device: Device, work: Work) -> float:
    """Seconds that operations take outside the matrix units."""
    ordinary = work.flops / (device.fp32 * REACHED) + work.doubles / (device.fp64 * REACHED)
    return max(ordinary + work.integers / device.integer, work.special / device.special)


def cost(device: Device, ask: Load) -> Cost:
    """The estimate."""
    fit = max(1, resident(device, ask))
    active = min(device.units, max(1, ask.blocks))
    held = min(max(1, ask.blocks), device.units * fit) / active
    in_flight = min(MOST_IN_FLIGHT, held * ask.threads * ask.ahead)
    moved = ask.reads + ask.writes
    share = feed = 1.0
    if device.kind != "cpu":
        share = min(1.0, active * min(in_flight, max(1.0, moved / active)) / (device.bandwidth * device.latency))
        feed = min(1.0, active * held * ask.threads / (device.units * FEEDS))
    memory = moved / (device.bandwidth * max(share, 1e-6)) if moved else 0.0
    memory += ask.rereads / (device.cache_bandwidth * max(feed, active / device.units))
    work = ask.work
    ordinary = max(arithmetic(device, work), ask.local / (device.fp32 / 2)) / feed
    compute = both(ask.matrix_seconds, ordinary)
    launch = ask.launches * device.graph_launch
    busy = max(memory, compute, ask.least)
    seconds = launch + busy + OVERLAP * min(memory, compute)
    return Cost(
        seconds, round(ask.reads), round(ask.writes), round(ask.rereads + ask.fed), work.all, round(ask.matrix), work.special,
        memory, max(compute, ask.least if memory < ask.least else 0.0), launch, ask.registers, ask.shared,
        min(1.0, held * ask.threads / device.threads) if device.kind != "cpu" else 1.0, round(in_flight), ordinary,
    )  # fmt: skip


def with_products(found: Cost, products: float) -> float:
    """The seconds of a contraction whose products take so many in the tiles that its kernel has, where an estimate was made
    for other tiles."""
    compute = both(products, found.ordinary)
    return found.launch + both(found.memory, compute)


def both(one: float, other: float) -> float:
    """Seconds of two things that go on at once."""
    return max(one, other) + OVERLAP * min(one, other)
