"""Accumulators of the threads that share a row, joined into states that all of them have: by shuffles within a warp, then
through shared memory, of all blocks of a cluster where these share the row. The order is fixed."""

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


class Joins(Serial):
    """Statements of a thread that shares a row with others."""

    def __init__(self, writer: Writer, fit: Fit) -> None:
        super().__init__(writer)
        self.fit = fit
        self.rank = ""  # of this block in its cluster
        self.twin = ""  # which of two places for partial states this row's are in, where there are two; 0 or 1

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

    def _through_memory(self, states: Sequence[tuple[Acc, str]]) -> None:
        """Partial states of the warps, each left where every thread of the row finds it."""
        w, fit = self.w, self.fit
        warps = max(1, fit.threads // WARP)
        count = warps * fit.blocks
        slots: dict[str, str] = {}
        for acc, name in states:
            kind = state_type(acc.monoid, acc.dtype)
            slots[name] = w.names.fresh(f"{acc.id}.slots")
            size = -(-count * state_bytes(acc.monoid, acc.dtype) // 16) * 16
            at = str(self.take(size * 2 if self.twin else size))
            at += f" + {self.twin} * {size}" if self.twin else ""
            w.line(f"{kind}* {slots[name]} = ({kind}*)(lf_shared + {at});")
        mine = "threadIdx.x / 32" if fit.blocks == 1 else f"{self.rank} * {warps} + threadIdx.x / 32"
        test = "== 0" if fit.blocks == 1 else f"< {fit.blocks}"
        with w.block(f"if (threadIdx.x % 32 {test})"):
            for _, name in states:
                slot = f"{slots[name]}[{mine}]"
                w.line(f"{slot if fit.blocks == 1 else f'*lf_cluster_at(&{slot}, threadIdx.x % 32)'} = {name};")
        w.line("lf_sync();" if fit.blocks == 1 else "lf_cluster_sync();")
        if count <= FEW_WARPS:
            for _, name in states:
                w.line(f"{name} = {slots[name]}[0];")
            if count > 1:
                k = w.names.fresh("k")
                w.line("#pragma unroll")
                with w.block(f"for (int {k} = 1; {k} < {count}; ++{k})"):
                    self.absorb_state(states, lambda _, name: f"{slots[name]}[{k}]")
            return
        wide = min(WARP, 1 << (count - 1).bit_length())
        last = w.names.fresh("last")
        w.line(f"const int {last} = threadIdx.x % {wide};")
        for acc, name in states:
            slot, start = slots[name], w.identity(acc.monoid, acc.dtype)
            w.line(
                f"{name} = {slot}[{last}];"
                if count >= wide
                else f"{name} = {last} < {count} ? {slot}[{last}] : {start};"
            )
        if count > WARP:
            k = w.names.fresh("k")
            with w.block(f"for (int {k} = {last} + 32; {k} < {count}; {k} += 32)"):
                self.absorb_state(states, lambda _, name: f"{slots[name]}[{k}]")
        self._butterfly(states, wide)

    def take(self, count: int) -> int:
        """Room in shared memory, aligned to 16 bytes; its offset."""
        offset = self.w.shared
        self.w.shared += -(-count // 16) * 16
        return offset
