"""Kernels as they were emitted: how they are launched, and of contractions instructions, tiles, waves, the share of the
device's roof, what follows the products, and why they are not faster ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loopfuse.cuda.binary import Binary
from loopfuse.devices import Device
from loopfuse.emit.code import Code, KernelCode, Tiling
from loopfuse.views.launches import Launched
from loopfuse.views.tables import microseconds, names, significant, table

FASTER = "faster contraction: "  # how refusals of a faster path begin


def found(code: Code, kernel: str) -> list[Tiling]:
    """The tilings of a kernel of the IR."""
    return [tiling for _, tiling in _found(code, kernel)]


def _found(code: Code, kernel: str) -> list[tuple[KernelCode, Tiling]]:
    return [(k, k.tiling) for k in code.kernels if k.kernel == kernel and k.tiling is not None]


def declined(code: Code, kernel: str) -> list[str]:
    """Why a contraction kernel of the IR was not written for a faster path, each reason with the path's name."""
    return [why.removeprefix(FASTER) for why in code.refusals.get(kernel, ()) if why.startswith(FASTER)]


def faster(code: Code, kernel: str) -> list[str]:
    """The reasons of `declined` that stand in the tables of a kernel: none where it has no tiles."""
    return declined(code, kernel) if _found(code, kernel) else []


def lines(code: Code, kernel: str, device: Device, launched: Sequence[Launched],
          binaries: Mapping[str, Binary] | None = None, measured: float | None = None) -> list[str]:  # fmt: skip
    """A table for each function of a kernel: how it is written and launched, of products also their tiles. `launched`: the
    kernel's launches; `binaries`: of the functions that were compiled, by name; `measured`: the seconds that the kernel took
    when its tiles were timed."""
    said: list[str] = []
    sizes = ", ".join(code.sizes)
    any_ = [("for", f"any {sizes}; `--dims` shows the kernel for given ones")] * bool(sizes)
    tiled = {function.name: tiling for function, tiling in _found(code, kernel)}
    last = next((one.function for one in reversed(launched) if one.function in tiled), "")
    for one in launched:
        why_not = declined(code, kernel) if one.function == last else ()
        tiling, binary = tiled.get(one.function), (binaries or {}).get(one.function)
        if tiling is not None:
            said += table((), [*any_, *_rows(one, tiling, device, binary, measured), *_lock(code, kernel),
                               *(("not", why) for why in why_not)])  # fmt: skip
        else:
            said += table((), [*any_, ("then" if said else "by", one.why or one.function), ("blocks", one.shown),
                               ("registers", _registers(binary))])  # fmt: skip
        any_ = []
    return said


def as_record(code: Code, kernel: str, device: Device, binaries: Mapping[str, Binary] | None = None,
              measured: float | None = None) -> dict[str, Any]:  # fmt: skip
    """The JSON form; empty where a kernel is no contraction."""
    tilings = _found(code, kernel)
    if not tilings:
        return {}
    facts = []
    for function, tiling in tilings:
        bound, least = roof(tiling, device)
        share = least / tiling.seconds if tiling.seconds else 0.0
        binary = (binaries or {}).get(function.name)
        facts.append({**asdict(tiling), "waves": tiling.waves, "last_wave": tiling.last, "units": device.units,
                      "units_busy": busy(tiling, device), "roof": bound, "share": share, "exposed": exposed(tiling),
                      "registers": binary.registers if binary else None, "spills": binary.spills if binary else None,
                      "measured": measured, "measured_share": least / measured if measured else None})  # fmt: skip
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


def busy(tiling: Tiling, device: Device) -> int:
    """How many multiprocessors have work in a wave that is as full as the first."""
    each = tiling.split if tiling.split > 1 and not _cut(tiling) else 1
    return min(device.units, min(tiling.tiles, tiling.at_once) * each)


# -- rows -------------------------------------------------------------------------------------------------------------


def _rows(launched: Launched, tiling: Tiling, device: Device, binary: Binary | None,
          measured: float | None) -> list[tuple[str, str]]:  # fmt: skip
    bound, least = roof(tiling, device)
    share = f"{least / tiling.seconds:.0%} of the {bound}" if tiling.seconds else ""
    timed = [("measured", f"{microseconds(measured * 1e6)} us, {least / measured:.0%} of it")] if measured else []
    rows = [
        ("by", tiling.path), ("tile", _tile(tiling)), ("ring", _ring(tiling)),
        ("results", f"{tiling.results} registers a thread"), ("registers", _registers(binary)),
        ("blocks", launched.shown), ("waves", _waves(tiling, device)),
        ("predicted", f"{microseconds(tiling.seconds * 1e6)} us, {share}"), *timed, ("epilogue", _epilogue(tiling)),
    ]  # fmt: skip
    passing = {
        "in": _passing(tiling.comes, tiling.reads, tiling.once), "out": _passing(tiling.goes, tiling.writes),
        "folds": names(tiling.folds),
    }  # fmt: skip
    return [*rows, *((name, text) for name, text in passing.items() if text)]


def _registers(binary: Binary | None) -> str:
    """What a thread takes, which only a compiler knows."""
    if binary is None:
        return "not compiled here, so not known: `--compile` tells; a kernel that spills is then planned again"
    if binary.ptx:
        return f"known to the driver alone, for {binary.compiler} does not know {binary.arch}"
    spills = f"{binary.spills} bytes of spills" if binary.spills else "no spills"
    return f"{binary.registers} a thread, {spills} ({binary.arch}, {binary.compiler})"


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


def _waves(tiling: Tiling, device: Device) -> str:
    what = "part" if _cut(tiling) else "tile"
    tiles = f"{tiling.tiles} {what}{'s' * (tiling.tiles != 1)}"
    nests = ""
    if tiling.nests:
        nests = f", of {len(tiling.nests)} products in turn: {', '.join(str(n) for n in tiling.nests)}"
    working = busy(tiling, device)
    units = f"{working} of {device.units} multiprocessors"
    if tiling.waves > 1:
        where = f" on {units}" if working < device.units else ""
        return f"{tiling.waves}, the last one {tiling.last:.0%} full ({tiles}, {tiling.at_once} at once{where}{nests})"
    places = f", {tiling.last:.0%} of the places" if tiling.resident > 1 else ""
    return f"{tiling.waves}: {units} have work, {working / device.units:.0%} ({tiles}{places}{nests})"


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
