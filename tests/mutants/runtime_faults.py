"""Faults planted in what stands between a compiled program and its callers."""

from __future__ import annotations

from .planting import Edit, Mutant

WHERE = "runtime"


def _edit(name: str, mistake: str, place: str, old: str, new: str) -> Mutant:
    return Mutant(name, WHERE, mistake, (Edit(place, old, new),))


RUNTIME: tuple[Mutant, ...] = (
    _edit("stale-kernel-key", "a kernel is found again under other options", "cuda.version:kernel_key", "*options.flags, ", ""),
    _edit("stale-program-key", "a program is found again for another device", "cuda.version:program_key", '"device": device', '"device": None'),
    _edit("key-without-the-script", "a program is found again under another script", "cuda.version:program_key", '"texts": dict(texts)', '"texts": sorted(texts)'),
    _edit("arguments-in-reverse", "a launch gets its arguments in another order", "cuda.launch:Slots.__init__",
          "for slot in start.arguments]", "for slot in reversed(start.arguments)]"),
    _edit("zeroed-once-never-again", "what an interrupted call left is not set back to zero", "cuda.program:Loaded.call",
          "lane.dirty = True", "pass"),
    _edit("plans-of-other-sizes", "temporaries of one call are those of another size", "cuda.program:Loaded.lane",
          "key = tuple(sizes[name] for name in self._names), stream", "key = (len(self._names),), stream"),
    _edit("temporaries-of-two-streams", "calls on two streams share their temporaries", "cuda.program:Loaded.lane",
          "key = tuple(sizes[name] for name in self._names), stream", "key = tuple(sizes[name] for name in self._names), 0"),
)  # fmt: skip
