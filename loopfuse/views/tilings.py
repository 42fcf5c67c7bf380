"""Contraction kernels as they were emitted: instructions, tiles, waves, the share of the device's roof, what follows the
products, and why they are not faster ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from loopfuse.devices import Device
from loopfuse.emit.code import Code, Tiling
from loopfuse.views.tables import microseconds, names, significant, table

FASTER = "faster contraction: "  # how refusals of a faster path begin


def found(code: Code, kernel: str) -> list[Tiling]:
    """The tilings of a kernel of the IR."""
    return [k.tiling for k in code.kernels if k.kernel == kernel and k.tiling is not None]


def declined(code: Code, kernel: str) -> list[str]:
    """Why a contraction kernel of the IR was not written for a faster path, each reason with the path's name."""
    return [why.removeprefix(FASTER) for why in code.refusals.get(kernel, ()) if why.startswith(FASTER)]


def lines(code: Code, kernel: str, device: Device) -> list[str]:
    """A table for each tiling of a kernel; empty where it is no contraction."""
    said: list[str] = []
    for tiling in found(code, kernel):
        sizes = ", ".join(code.sizes)
        any_ = [("for", f"any {sizes}; `--dims` shows the kernel for given ones")] * bool(sizes)
        rows = [*any_, *_rows(tiling, device), *_lock(code, kernel), *(("not", why) for why in declined(code, kernel))]
        said += table((), rows)
    return said


def as_record(code: Code, kernel: str, device: Device) -> dict[str, Any]:
    """The JSON form; empty where a kernel is no contraction."""
    tilings = found(code, kernel)
    if not tilings:
        return {}
    facts = []
    for tiling in tilings:
        bound, least = roof(tiling, device)
        share = least / tiling.seconds if tiling.seconds else 0.0
        facts.append({**asdict(tiling), "waves": tiling.waves, "last_wave": tiling.last, "roof": bound, "share": share,
                      "exposed": exposed(tiling)})  # fmt: skip
    chosen = [asdict(c) for c in code.chosen if c.kernel == kernel]
    return {"tilings": facts, "faster": declined(code, kernel), **({"chosen": chosen[0]} if chosen else {})}


def peak(tiling: Tiling, device: Device) -> float:
    """Operations a second of the units that a kernel uses."""
    if tiling.matrix:
        return device.matrix_peak(tiling.dtype) or device.fp32
    return {"f64": device.fp64, "i32": device.integer}.get(tiling.dtype, device.fp32)


def roof(tiling: Tiling, device: Device) -> tuple[str, float]:
    """What bounds a kernel that wastes nothing, and the seconds that it then takes."""
    compute, memory = tiling.operations / peak(tiling, device), tiling.bytes / device.bandwidth
    if memory > compute:
        return "bandwidth of memory", memory
    return f"{tiling.dtype} peak of the {'matrix' if tiling.matrix else 'ordinary'} units", compute


def exposed(tiling: Tiling) -> float | None:
    """The share of a tile's time that is its epilogue; None where that was not reckoned."""
    if tiling.main is None or tiling.epilogue is None:
        return None
    return tiling.epilogue / (tiling.main + tiling.epilogue)


# -- rows -------------------------------------------------------------------------------------------------------------


def _rows(tiling: Tiling, device: Device) -> list[tuple[str, str]]:
    bound, least = roof(tiling, device)
    share = f"{least / tiling.seconds:.0%} of the {bound}" if tiling.seconds else ""
    rows = [
        ("by", tiling.path), ("tile", _tile(tiling)), ("ring", _ring(tiling)),
        ("results", f"{tiling.results} registers a thread"), ("waves", _waves(tiling)),
        ("predicted", f"{microseconds(tiling.seconds * 1e6)} us, {share}"), ("epilogue", _epilogue(tiling)),
    ]  # fmt: skip
    passing = {
        "in": _passing(tiling.comes, tiling.reads, tiling.once), "out": _passing(tiling.goes, tiling.writes),
        "folds": names(tiling.folds),
    }  # fmt: skip
    return [*rows, *((name, text) for name, text in passing.items() if text)]


def _lock(code: Code, kernel: str) -> list[tuple[str, str]]:
    """Where the tile comes from, where a lock file has one for the kernel."""
    found = next((c for c in code.chosen if c.kernel == kernel and c.wanted), None)
    if found is None:
        return []
    if found.why:
        return [("lock", f"{found.wanted} is left out: {found.why}")]
    model = "as of the model" if found.model == found.tile else f"the model would take {found.model}"
    return [("lock", f"{found.tile}, {model}")]


def _cut(tiling: Tiling) -> bool:
    """Whether parts of sums are added by a second kernel, not by a cluster."""
    return tiling.split > 1 and not tiling.path.startswith("wgmma")


def _tile(tiling: Tiling) -> str:
    each = f" of each of {tiling.products} products" if tiling.products > 1 else ""
    how = f"for each of {tiling.crew}, which take turns" if tiling.turns else f"by {tiling.crew}"
    blocks = f"; {tiling.resident} blocks a multiprocessor" if tiling.resident > 1 else ""
    share = f"; each sum cut into {tiling.split} parts, which a second kernel adds" if _cut(tiling) else \
        f"; {tiling.split} blocks of a cluster share each sum"  # fmt: skip
    share *= tiling.split > 1
    row = f"; clusters of {tiling.cluster} blocks hold whole rows" if tiling.cluster > 1 else ""
    return f"{tiling.rows} x {tiling.columns}{each} {how}{share}{row}{blocks}"


def _ring(tiling: Tiling) -> str:
    slots = f"; {tiling.slots} slots a warpgroup for what comes and goes" if tiling.slots else ""
    return f"{tiling.stages} stages of {tiling.depth} of the sum, {tiling.trips} of them a tile{slots}"


def _waves(tiling: Tiling) -> str:
    what = "part" if _cut(tiling) else "tile"
    tiles = f"{tiling.tiles} {what}{'s' * (tiling.tiles != 1)}, {tiling.at_once} at once"
    if tiling.nests:
        tiles += f", of {len(tiling.nests)} products in turn: {', '.join(str(n) for n in tiling.nests)}"
    last = "the last one" if tiling.waves > 1 else "which is"
    return f"{tiling.waves}, {last} {tiling.last:.0%} full ({tiles})"


def _epilogue(tiling: Tiling) -> str:
    share = exposed(tiling)
    if share is None or tiling.epilogue is None:
        return "in the second kernel" if _cut(tiling) else "after the products of a tile; not reckoned apart"
    clocks = f"{significant(tiling.epilogue)} clocks of a tile, {share:.0%} of its time"
    if tiling.turns and tiling.waves > 1:
        return f"hidden behind the other consumer's products, but for {clocks}"
    if tiling.resident > 1 and tiling.tiles > tiling.at_once // tiling.resident:
        return f"{clocks}; the rest is hidden behind the other block's products"
    return f"{clocks}, which no product hides"


def _passing(tiles: Sequence[str], elements: Sequence[str], once: Sequence[str] = ()) -> str:
    said = [f"{names(tiles)} as tiles"] * bool(tiles) + [f"{names(elements)} by elements"] * bool(elements)
    return "; ".join(said + [f"{names(once)} once a tile"] * bool(once))
