"""Contracting: what only one kernel uses needs no array in memory, only the part that exists at a time.

For each temporary that one kernel alone accesses (L11):

- never loaded: its stores go, and what only they needed;
- stored, and read in the block of its store or inside it: the value takes a name, the buffer goes;
- else it is local, with the smallest window: an axis whose subscripts all are `i + k`, for an index i of a loop around
  all accesses (or of the `seq` loop that carries it) and 0 <= k < w, shrinks to [i : i + w]. Other axes stay whole.

Subscripts never change: they are global coordinates. Needs: nothing. Promises: the same bits; buffers that no kernel
accesses any more are gone from the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from loopfuse.analysis.env import Env, environment
from loopfuse.ir import Buffer, Dim, Interval, Kernel, Program
from loopfuse.passes.base import Options, Outcome, Pass, Remark, steps
from loopfuse.passes.remat import forward, laid
from loopfuse.passes.sweep import arrays, sweep
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.verify.layout import Access, Frame, Layout

Take = Callable[[str], bool]

# -- the pass ---------------------------------------------------------------------------------------------------------


def contract(program: Program, options: Options) -> Outcome:
    """Contract every kernel's temporaries; kernels that are left empty go, and buffers that nothing accesses."""
    env = environment(program, options.device, options.sizes)
    step = steps(options, "contract")
    kernels = list(program.kernels)
    changed: dict[str, Buffer] = {}
    used = accessed(kernels)
    kept = _kept(program)
    for k in reversed(range(len(kernels))):  # a reader that goes frees what it reads
        live = kept | {n for n, count in used.items() if count > 1}
        made, buffers = contract_kernel(kernels[k], env, live, step.take)
        changed |= buffers
        if made is not kernels[k]:
            used.subtract(_names_of(kernels[k]))
            used.update(_names_of(made))
            kernels[k] = made
    kernels = [k for k, old in zip(kernels, program.kernels, strict=True) if k is old or k.body]
    table = tuple(changed.get(b.id, b) for b in program.buffers if b.role != "temp" or used[b.id])
    same = len(kernels) == len(program.kernels) and all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    if same and not changed and len(table) == len(program.buffers):
        return Outcome(program)
    made_program = replace(program, buffers=table, kernels=tuple(kernels))
    return Outcome(made_program, tuple(_remarks(program, made_program, env)))


PASS = Pass("contract", "Shrink what one kernel keeps to itself to what exists at a time.", contract)


def accessed(kernels: Sequence[Kernel]) -> Counter[str]:
    """How many of the kernels access each buffer."""
    return Counter(name for kernel in kernels for name in _names_of(kernel))


def _names_of(kernel: Kernel) -> frozenset[str]:
    stores, loads = arrays(kernel)
    return stores | loads


def live_buffers(program: Program) -> frozenset[str]:
    """The buffers that no kernel has for itself: of another role than `temp`, pinned, or used by several kernels."""
    return _kept(program) | {n for n, count in accessed(program.kernels).items() if count > 1}


def without_unused(program: Program) -> Program:
    """The program without the temporaries that no kernel accesses."""
    used = accessed(program.kernels)
    kept = tuple(b for b in program.buffers if b.role != "temp" or b.id in used)
    return program if len(kept) == len(program.buffers) else replace(program, buffers=kept)


def _kept(program: Program) -> frozenset[str]:
    return pinned(program) | {b.id for b in program.buffers if b.role != "temp"}


def pinned(program: Program) -> frozenset[str]:
    """The buffers that `pragma materialize` keeps in memory."""
    found: set[str] = set()
    for d in program.directives:
        if d.kind == "pragma" and d.text.replace(" ", "").startswith("materialize("):
            inside = d.text[d.text.index("(") + 1 :].rstrip().removesuffix(")")
            found.update(name.strip() for name in inside.split(","))
    return frozenset(found)


# -- one kernel -------------------------------------------------------------------------------------------------------


def contract_kernel(
    kernel: Kernel, env: Env, live: frozenset[str], take: Take | None = None
) -> tuple[Kernel, dict[str, Buffer]]:
    """The kernel with its own temporaries contracted, and the buffers whose scope or window changed.

    Temporaries that are no longer accessed are not among them. `take` is asked before each buffer is touched.
    """
    stores, loads = arrays(kernel)
    touched = [n for n in sorted(stores) if n in loads or _own(env, n, live)]
    if take is not None:
        touched = [n for n in touched if take(f"contract `{n}`")]
    if not touched:
        return kernel, {}
    mine = [n for n in touched if _own(env, n, live)]
    gone = frozenset(mine)
    made = sweep(kernel, lambda b: b not in gone)
    named = forward(made, env, frozenset(touched))
    if named is not made:
        made = sweep(named, lambda b: b not in gone)
    v = laid(made, env)
    mine = [n for n in mine if n in v.stores]
    changed: dict[str, Buffer] = {}
    for name in mine:
        old = env.buffers[name]
        new = _shrunk(v, old)
        if new != old:
            changed[name] = new
    return made, changed


def _own(env: Env, name: str, live: frozenset[str]) -> bool:
    buffer = env.buffers.get(name)
    return buffer is not None and buffer.role == "temp" and name not in live


def _shrunk(v: Layout, buffer: Buffer) -> Buffer:
    """The buffer as a local one, with the smallest window."""
    accesses = (*v.stores.get(buffer.id, ()), *v.loads.get(buffer.id, ()))
    shared = _shared(accesses)
    outer = {d.id: f for f in shared for d in f.loop.dims}
    sizes = {s.id for s in v.program.sizes}
    window: list[Interval] = []
    for axis, extent in enumerate(buffer.shape):
        whole: Interval = ((ZERO,), (extent,))
        old = buffer.window[axis] if buffer.window is not None else whole
        if _names(old) - sizes:
            window.append(old)
            continue
        found = _reach(accesses, axis, outer, sizes) or _sliding(v, accesses, axis, sizes)
        window.append(found or old)
    if buffer.window is None and not any(_names(i) - sizes for i in window):
        return replace(buffer, scope="local")
    if not _fills(v, buffer, window, sizes):
        return replace(buffer, scope="local")
    return replace(buffer, scope="local", window=tuple(window))


def _names(interval: Interval) -> frozenset[str]:
    return frozenset().union(*(p.names for side in interval for p in side))


def _shared(accesses: Sequence[Access]) -> list[Frame]:
    """The loops around all accesses, outermost first."""
    common = accesses[0].frame.chain() if accesses[0].frame else []
    for access in accesses[1:]:
        chain = access.frame.chain() if access.frame else []
        common = [x for x, y in zip(common, chain, strict=False) if x is y]
    return common


def _reach(accesses: Sequence[Access], axis: int, outer: dict[str, Frame], sizes: set[str]) -> Interval | None:
    """The interval of an axis whose subscripts differ by constants and mention indices of the common loops."""
    first = accesses[0].polys[axis]
    if first is None or not first.names <= outer.keys() | sizes or not first.names & outer.keys():
        return None
    base = first - first.constant
    low = high = first.constant
    for access in accesses:
        poly, mode = access.polys[axis], access.modes[axis]
        if poly is None or mode is not None:
            return None
        gap = poly - base
        if not gap.is_const:
            return None
        low, high = min(low, gap.constant), max(high, gap.constant)
    if high > low and not _stepped(base, outer):
        return None
    return (base + low,), (base + high + 1,)


def _stepped(base: Poly, outer: dict[str, Frame]) -> bool:
    """Whether a window wider than one may stand on the index: an index alone, of a `seq` loop of step 1.

    In other loops each iteration has its own incarnation, whose elements are all to be written in it.
    """
    frame = outer.get(base.name or "")
    return frame is not None and frame.loop.order == "seq" and frame.loop.dims[0].step == ONE


def _sliding(v: Layout, accesses: Sequence[Access], axis: int, sizes: set[str]) -> Interval | None:
    """The interval over the index of the `seq` loop that carries the axis; accesses before and after it are at its
    first and last window."""
    carry = next((f for a in accesses for f in (a.frame.chain() if a.frame else ()) if f.loop.order == "seq"), None)
    if carry is None or len(carry.loop.dims) != 1:
        return None
    (dim,) = carry.loop.dims
    if dim.step != ONE or len(dim.lo) != 1 or len(dim.hi) != 1 or not (dim.lo[0].names | dim.hi[0].names) <= sizes:
        return None
    inside: list[Access] = []
    outside: list[Access] = []
    for access in accesses:
        chain = access.frame.chain() if access.frame else []
        (inside if any(f is carry for f in chain) else outside).append(access)
        if access.polys[axis] is None or access.modes[axis] is not None:
            return None
        if outside and any(d.id == dim.id for f in chain if f is not carry for d in f.loop.dims):
            return None
    gaps = [p - Poly.of(dim.id) for a in inside if (p := a.polys[axis]) is not None]
    if not all(g.is_const for g in gaps):
        return None
    low, high = min(g.constant for g in gaps), max(g.constant for g in gaps)
    for access in outside:
        rim = dim.lo[0] if access.site.position < carry.start else dim.hi[0] - 1
        poly = access.polys[axis]
        assert poly is not None
        gap = poly - rim
        if not gap.is_const or not low <= gap.constant <= high:
            return None
    at = Poly.of(dim.id)
    return (at + low,), (at + high + 1,)


def _fills(v: Layout, buffer: Buffer, window: Sequence[Interval], sizes: set[str]) -> bool:
    """Whether it is plain that the store fills the window, where each iteration of a loop has one of its own."""
    stores = v.stores[buffer.id]
    named = frozenset().union(*(_names(i) for i in window)) - sizes
    frames = [f for s in stores for f in (s.frame.chain() if s.frame else ())]
    private = {d.id for f in frames if f.loop.order != "seq" for d in f.loop.dims} & named
    if not private or len(stores) > 1:
        return True
    around: dict[str, Dim] = {d.id: d for f in frames for d in f.loop.dims}
    for poly, interval in zip(stores[0].polys, window, strict=True):
        if poly is None:
            return False
        moving = [n for n in poly.names if n in around and n not in private]
        if not moving:
            continue
        if len(moving) > 1 or (poly - Poly.of(moving[0])).names & {moving[0]} or around[moving[0]].step != ONE:
            return False
        offset, dim = poly - Poly.of(moving[0]), around[moving[0]]
        if tuple(p + offset for p in dim.lo) != interval[0] and interval[0] != (poly,):
            return False
        if tuple(p + offset for p in dim.hi) != interval[1] and interval[1] != (poly + 1,):
            return False
    return not any(f.loop.where is not None for f in frames)


# -- what there is to say ---------------------------------------------------------------------------------------------


def _remarks(before: Program, after: Program, env: Env) -> list[Remark]:
    left = {b.id: b for b in after.buffers}
    found: list[Remark] = []
    used = accessed(before.kernels)
    loaded = set[str]().union(*(arrays(k)[1] for k in before.kernels))
    for old in before.buffers:
        new = left.get(old.id)
        if old.role != "temp" or new == old or old.id not in used:
            continue
        if new is None and old.id not in loaded:
            text = f"`{old.id}` is not stored, because nothing reads it"
        else:
            text = _told(old, new) + _saved(old, env)
        found.append(Remark(text, old.span))
    return found


def _told(old: Buffer, new: Buffer | None) -> str:
    if new is None:
        return f"`{old.id}` is a scalar in a register"
    if new.window is None:
        shape = " x ".join(map(str, new.shape)) or "1"
        return f"`{old.id}` stays within its kernel: {shape} values"
    widths = [h[0] - low[0] if len(h) == len(low) == 1 else None for low, h in new.window]
    shown = [str(w) if w is not None else "a tile" for w in widths if w is None or w != ONE]
    if not shown:
        return f"`{old.id}` is a scalar in a register"
    kind = "row" if len(shown) == 1 else "block"
    return f"`{old.id}` stays on chip: a {kind} of {' x '.join(shown)} values"


def _saved(old: Buffer, env: Env) -> str:
    """The array in memory that is not needed."""
    shape: list[Any] = [env.value(p) for p in old.shape] if all(p.names <= env.sizes.keys() for p in old.shape) else []
    if not shape or old.scope != "device":
        return ""
    size = prod(shape) * old.dtype.bits // 8
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f" instead of {size / scale:.3g} {unit} in memory"
    return f" instead of {size} bytes in memory"
