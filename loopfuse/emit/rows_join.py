"""Accumulators of the threads that share a row, joined into states that all of them have: by shuffles within a warp, then
through shared memory, of all blocks of a cluster where these share the row. The order is fixed.

Blocks of a cluster send each other their partial states (st.async), and each waits at a barrier of its own until the bytes
of all have come. A barrier of the cluster would do, but to arrive there with release is to wait until everything stored
before is visible to the whole device.

Join g is at barrier g % 2, in the phase g / 2 of that one. Two are enough. Here each join has slots of its own; a kernel
with many joins may use them again after two:

- A warp sends for join g + 1 only when all its lanes have passed join g (they exchange values by shuffles in between) and
  have read its slots. So when a block has passed join g + 1, all warps of the cluster have read the slots of join g, and
  join g is over at every block's barrier: what is sent for join g + 2 counts for the next phase of that barrier, and may
  overwrite those slots. And a lane that still waits for a phase sees that phase over, not already the next one too.
- One barrier would not do: a block passes join g when everything has come to it, while what a third block sent may still
  be on its way to another; bytes for join g + 1 could come there before, and would be counted for join g.
- Bytes may come before the one arrival of a phase, which says how many are expected: the phase stays open until then, and
  the count is below zero meanwhile.
- To wait is to acquire within the block only, as is usual for copies that other blocks start: at the scope of the cluster
  it would empty the first-level cache as well, in which nothing lies that was sent.
- A block waits for everything that is sent to it, so that it has not left when it comes. What it sent itself lies in
  registers: it may leave while that is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from loopfuse.emit.merging import merge
from loopfuse.emit.rows_fit import WARP, Fit
from loopfuse.emit.serial import Serial
from loopfuse.emit.writer import Writer, state_bytes, state_type
from loopfuse.ir import Acc
from loopfuse.sizes import ONE

FEW_WARPS = 8  # partial states up to which every thread reads all of them in turn
LEAST_SENT = 4  # bytes of a value that is sent to another block


class Joins(Serial):
    """Statements of a thread that shares a row with others."""

    def __init__(self, writer: Writer, fit: Fit) -> None:
        super().__init__(writer)
        self.fit = fit
        self.rank = ""  # of this block in its cluster
        self.bars = ""  # where the barriers of joins are, if several blocks share a row
        self.joined = 0  # joins that are written

    def join(self, accs: Sequence[Acc]) -> None:
        """The same states in every thread of the row."""
        states = self.states(accs)
        if not states or self.fit.sharing == 1:
            return
        self.w.comment(f"joined over the {self.fit.sharing} threads of the row")
        repaired = any(a.repair is not None for a in accs)
        lanes = min(self.fit.threads, WARP)
        self._butterfly(states, lanes)
        if self.fit.sharing > WARP or self.fit.blocks > 1:
            self._through_memory(states)
        if repaired:  # which of two sides is the left one differs from lane to lane, and so may the last bit
            first = "0" if lanes == WARP else f"threadIdx.x % 32 / {lanes} * {lanes}"
            for acc, name in states:
                self.w.line(f"{name} = lf_shfl({name}, {first});" if acc else "")

    def states(self, accs: Sequence[Acc]) -> list[tuple[Acc, str]]:
        """Each accumulator, or element of an array of them, with its variable."""
        found = []
        for acc in accs:
            name = self.w.places[acc.id].pointer if acc.shape else self.w.names(acc.id)
            count = self.w.target.number(prod(acc.shape, start=ONE)) if acc.shape else None
            found += [(acc, name)] if count is None else [(acc, f"{name}[{k}]") for k in range(count)]
        return found

    def absorb_state(self, states: Sequence[tuple[Acc, str]], other: Callable[[Acc, str], str]) -> None:
        """Another thread's states into this one's; `other` gives their texts."""
        w = self.w
        if not any(acc.repair is not None for acc, _ in states):
            for acc, name in states:
                w.line(f"{name} = {w.combine(acc.monoid, acc.dtype, name, other(acc, name))};")
            return
        theirs: dict[str, str] = {}
        for acc, name in states:
            theirs[acc.id] = w.names.fresh(f"{acc.id}.other")
            w.line(f"const {state_type(acc.monoid, acc.dtype)} {theirs[acc.id]} = {other(acc, name)};")
        for line in merge(w, [acc for acc, _ in states], {acc.id: name for acc, name in states}, theirs):
            w.line(line)

    def _butterfly(self, states: Sequence[tuple[Acc, str]], lanes: int) -> None:
        if lanes < 2:
            return
        h = self.w.names.fresh("h")
        self.w.line("#pragma unroll")
        with self.w.block(f"for (int {h} = {lanes // 2}; {h} > 0; {h} >>= 1)"):
            self.absorb_state(states, lambda acc, name: f"lf_shfl_xor({name}, {h})")

    def begin(self) -> None:
        """The blocks of a cluster wait until all of them are there."""
        if self.fit.blocks == 1:
            return
        w = self.w
        self.bars = w.names.fresh("bars")
        w.line(f"unsigned long long* {self.bars} = (unsigned long long*)(lf_shared + {self.take(16)});")
        with w.block("if (threadIdx.x == 0)"):
            w.line(f"lf_bar_init({self.bars}, 1);")
            w.line(f"lf_bar_init({self.bars} + 1, 1);")
            w.line("lf_bar_ready();")
        w.comment("no block sends anything to another one before that one's barriers are there")
        w.line("lf_cluster_meet();")

    def _through_memory(self, states: Sequence[tuple[Acc, str]]) -> None:
        """Partial states of the warps, each left where every thread of the row finds it."""
        w, fit = self.w, self.fit
        warps = max(1, fit.threads // WARP)
        count = warps * fit.blocks
        slots: dict[str, str] = {}
        total = 0
        for acc, name in states:
            kind, item = state_type(acc.monoid, acc.dtype), state_bytes(acc.monoid, acc.dtype)
            if fit.blocks > 1 and item < LEAST_SENT:
                kind, item = "int", LEAST_SENT
            slots[name] = w.names.fresh(f"{acc.id}.slots")
            total += count * item
            w.line(f"{kind}* {slots[name]} = ({kind}*)(lf_shared + {self.take(count * item)});")
        if fit.blocks == 1:
            with w.block("if (threadIdx.x % 32 == 0)"):
                for _, name in states:
                    w.line(f"{slots[name]}[threadIdx.x / 32] = {name};")
            w.line("lf_sync();")
        else:
            self._send(states, slots, f"{self.rank} * {warps} + threadIdx.x / 32", total)

        def partial(acc: Acc, name: str, k: str) -> str:
            small = fit.blocks > 1 and state_bytes(acc.monoid, acc.dtype) < LEAST_SENT
            return f"{f'({state_type(acc.monoid, acc.dtype)})' if small else ''}{slots[name]}[{k}]"

        if count <= FEW_WARPS:
            for acc, name in states:
                w.line(f"{name} = {partial(acc, name, '0')};")
            if count > 1:
                k = w.names.fresh("k")
                w.line("#pragma unroll")
                with w.block(f"for (int {k} = 1; {k} < {count}; ++{k})"):
                    self.absorb_state(states, lambda acc, name: partial(acc, name, k))
            return
        wide = min(WARP, 1 << (count - 1).bit_length())
        last = w.names.fresh("last")
        w.line(f"const int {last} = threadIdx.x % {wide};")
        for acc, name in states:
            slot, start = partial(acc, name, last), w.identity(acc.monoid, acc.dtype)
            w.line(f"{name} = {slot};" if count >= wide else f"{name} = {last} < {count} ? {slot} : {start};")
        if count > WARP:
            k = w.names.fresh("k")
            with w.block(f"for (int {k} = {last} + 32; {k} < {count}; {k} += 32)"):
                self.absorb_state(states, lambda acc, name: partial(acc, name, k))
        self._butterfly(states, wide)

    def _send(self, states: Sequence[tuple[Acc, str]], slots: dict[str, str], mine: str, total: int) -> None:
        """The partial states of a warp to slot `mine` of all blocks; waits for all that come here, `total` bytes."""
        w = self.w
        bar, parity = f"{self.bars} + {self.joined % 2}", self.joined // 2 % 2
        self.joined += 1
        w.line(f"if (threadIdx.x == 0) lf_bar_expect({bar}, {total});")
        with w.block(f"if (threadIdx.x % 32 < {self.fit.blocks})"):
            for acc, name in states:
                value = f"(int){name}" if state_bytes(acc.monoid, acc.dtype) < LEAST_SENT else name
                w.line(f"lf_send(&{slots[name]}[{mine}], {value}, {bar}, threadIdx.x % 32);")
        w.line(f"lf_bar_wait({bar}, {parity});")

    def take(self, count: int) -> int:
        """Room in shared memory, aligned to 16 bytes; its offset."""
        offset = self.w.shared
        self.w.shared += -(-count // 16) * 16
        return offset
