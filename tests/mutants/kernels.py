"""Examples that run emitted kernels on the CPU: those of the tests of each emitter, small ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_emit_columns
import test_emit_contractions
import test_emit_fragments
import test_emit_maps
import test_emit_row_products
import test_emit_rows
import test_emit_scatters
import test_emit_segments
import test_emit_threads
import test_emit_warps
import test_emulated_programs
from compiled_checks import trouble
from gpu_cases import Suite, suites

from loopfuse.emit import contractions, maps

from .examples import Call, Example

Patch = pytest.MonkeyPatch
MAPS = (("flat", 0), ("flat", 1), ("row", 2), ("row", 5), ("column", 0), ("gates", 0), ("transposed", 1), ("transposed", 2), ("transposed bf16", 1),
        ("both ways", 1), ("permuted", 0), ("strided", 1), ("reversed", 1), ("slices", 0), ("edge", 0), ("wrap", 1), ("rows around", 1),
        ("fill", 0), ("gather", 0), ("embedding", 1), ("types", 1), ("guarded", 0), ("triangle", 1), ("joined", 1), ("indices", 1),
        ("param", 0), ("steps", 0))  # fmt: skip
ROWS = (("argmax", (5, 100), "registers"), ("extremes", (3, 257), "registers"),
    ("extremes", (3, 1000), "memory"),
    ("argmax", (2, 1000), "memory"), ("triangle", (33,), "registers"), ("where", (5, 257), "registers"),
        ("local row", (5, 1000), "registers"), ("own", (5, 129), "memory"), ("array", (3, 100), "registers"), ("nested", (3, 257), "registers"),
        ("two dims", (3, 5, 7), "registers"), ("types", (5, 64), "staged"), ("shifted", (3, 100), "memory"), ("reversed", (3, 257), "registers"),
        ("any and bits", (3, 257), "registers"), ("dot", (40, 1024), "registers"), ("two softmaxes", (3, 1000), "staged"),
        ("two softmaxes", (5, 96), "registers"), ("lengths", (3, 64, 7), "registers"), ("other order", (3, 64), "registers"),
        ("two softmaxes", (5, 96), "dynamic"))  # fmt: skip
SPECIAL = (("bench/peers/softmax_f32", "registers"), ("bench/peers/softmax_bf16", "staged"), ("fusion/log_softmax", "memory"),
           ("bench/peers/layernorm_residual", "registers"), ("bench/peers/cross_entropy", "registers"))  # fmt: skip
CLUSTERS = (("argmax", 2, False), ("own", 8, True), ("two softmaxes", 2, False), ("bytes", 2, False))
COLUMNS = (("moments", (5, 3)), ("sumsq", (1000,)), ("extremes", (77, 33)),
    ("extremes", (300, 64)),
    ("moments", (300, 4)), ("many", (9000,)), ("from one", (8193,)), ("read back", (8192,)), ("two dims", (37, 100)), ("where", (90, 70)),
           ("variance cols", (300, 4)), ("variance rows", (3, 2000)), ("logsumexp cols", (2, 500, 16)), ("gemv", (777, 51)),
           ("rank3", (50, 3, 16)), ("triangle", (30, 20)), ("edges", (30, 20)), ("nested", (30, 20)), ("flat", (33, 1001)),
           ("cols", (500, 6, 6)), ("softmax cols", (77, 33)), ("kept", (1, 77, 33)), ("dependent", (77, 33, 37)),
           ("mid", (2, 500, 6, 4)))  # fmt: skip
SCATTERS = (("histogram", (5, 7)), ("histogram", (100, 128)), ("segments", (1000, 5)), ("segments", (20000, 300)),
            ("segments", (20000, 60000)), ("other monoids", (1000, 5)), ("guarded", (20, 50, 5)))  # fmt: skip
THREADS = (("matmul", (37, 41, 13)), ("matmul", (136, 72, 32)), ("turned", (37, 41, 13)), ("linear gelu", (19, 67, 11)),
           ("views", (29, 31, 11)), ("doubles", (37, 41, 13)), ("integers", (37, 41, 13)), ("bytes", (37, 41, 13)),
           ("prologue", (37, 41, 13)), ("masks", (37, 41, 13)), ("halves", (37, 41, 13)), ("dual", (64, 64, 32)),
           ("column sums", (37, 41, 13)), ("row best", (2, 37, 41, 13)), ("factors", (37, 41, 13)), ("convolution", (2, 9, 3, 5, 7)),
           ("gathered", (37, 41, 13)))  # fmt: skip
WARPS = (("gelu", 1), ("residual", 1), ("column sums", 1), ("row maxima", 1), ("rows below zero", 1), ("batch", 1), ("dual", 1), ("cast", 1), ("slices", 1),
         ("f64 residual", 1), ("f64 column sums", 1), ("outputs", 1), ("activated", 1), ("two axes", 1))  # fmt: skip
LAYOUTS = (("bf16", "nn", (70, 134, 66)), ("f16", "tt", (68, 132, 100)), ("tf32", "nt", (67, 131, 71)), ("i8", "nn", (68, 132, 100)),
           ("f64", "tn", (67, 131, 71)), ("bf16", "nt", (136, 272, 144)))  # fmt: skip
WARPGROUPS = ("one", "nn", "nt", "tn", "turned", "bias", "row and column", "residual", "two residuals", "two outputs", "wide output",
              "odd rows of the result", "dual", "halves", "batch", "columns", "columns of a map", "rows", "rows below zero", "columns below zero", "best", "tf32", "factor",
              "two depths", "window", "no depth")  # fmt: skip
FRAGMENTS = (("nn", (64, 32, 132)), ("tt", (260, 131, 36)), ("residual", (65, 36, 12)), ("row maxima", (300, 36, 12)), ("i8", (64, 33, 16)),
             ("i8 scaled", (65, 36, 272)), ("dual", (33, 20, 24)))  # fmt: skip
ROW_PRODUCTS = (("layernorm", (70, 520, 40)), ("softmax", (70, 520, 40)), ("both", (65, 1024, 16)), ("two shifts", (70, 72, 40)), ("centred", (130, 200, 72)),
                ("softmax tf32", (130, 256, 64)))  # fmt: skip
CUT = ("residual", "f64")
TILES = (("columns of a map", test_emit_contractions.TILES[1]), ("two outputs", test_emit_contractions.TILES[6]))
SHARED_ROWS = (("bench/peers/softmax_f32", (4, 1)), ("fusion/rmsnorm", (128, 1)), ("bench/peers/cross_entropy", (16, 1)),
               ("bench/peers/mean_var_rows", (64, 2)), ("bench/peers/softmax_bf16", (1, 1)))  # fmt: skip
SEGMENTS = ("narrow", "biases", "two of one")
PROGRAMS = ("programs", "scripts", "finished", "regressions")
GENERAL = ("programs", "reference", "finished")
HEAVY = frozenset(("scripts/11_histeq", "scripts/12_kmeans", "scripts/04_conv_bn_relu", "finished/histogram", "finished/conv",
                   "finished/conv-statistics", "finished/lstm", "finished/ffn", "finished/attention", "scripts/07_attention",
                   "scripts/09_lstm", "finished/moments", "finished/sumsq"))  # fmt: skip


def _map(name: str, number: int, patch: Patch) -> None:
    for constant, value in (("SPREAD", 0), ("BLOCKS", 0), ("MOST_VECTORS", 4), ("STREAMS", 9)):
        patch.setattr(maps, constant, value)
    text, sizes = test_emit_maps.PROGRAMS[name]
    problem = test_emit_maps.verdict(text, sizes[number], strict=False)
    assert not problem, problem


def _threads(name: str, extents: tuple[int, ...], patch: Patch) -> None:
    for way in ("by_warpgroups", "by_warps"):
        patch.setattr(contractions, way, lambda whole: test_emit_threads.Declined("not here"))
    test_emit_threads.test_programs(name, extents)


def _warps(patch: Patch) -> None:
    patch.setattr(contractions, "by_warpgroups", test_emit_warps.off)
    patch.setattr(contractions, "by_threads", test_emit_warps.off)


def _by_warps(name: str, number: int, patch: Patch) -> None:
    _warps(patch)
    text, sets = test_emit_warps.PROGRAMS[name]
    test_emit_warps.judged(text, test_emit_warps.named(text, sets[number]))


def _cut(name: str, patch: Patch) -> None:
    _warps(patch)
    test_emit_warps.test_sums_cut_into_parts(name, patch)


def _layout(kind: str, how: str, extents: tuple[int, ...], patch: Patch) -> None:
    _warps(patch)
    test_emit_warps.judged(test_emit_warps.layout(kind, *how), dict(zip("MNK", extents, strict=True)))


def _suite(suite: Suite, run: Any) -> None:
    """The last set of data alone: odd extents, or what is given."""
    found = suite.sets(False)
    problem = trouble(Suite(suite.id, suite.program, suite.data, suite.passes), found[-1], run, twice=False)
    assert not problem, problem


def _call(id: str, call: Callable[..., object], *arguments: Any) -> Call:
    return Call(id, lambda patch: call(*arguments, patch))


def _plain(id: str, call: Callable[..., object], *arguments: Any) -> Call:
    return Call(id, lambda patch: call(*arguments))


def _each(groups: tuple[str, ...], test: str, run: Any) -> Iterator[Example]:
    for suite in suites():
        if suite.id.split("/")[0] in groups and suite.id not in HEAVY:
            yield _plain(f"test_emulated_programs.py::{test}[{suite.id}]", _suite, suite, run)


def by_maps() -> Iterator[Example]:
    """Maps, with tiles and without."""
    for name, number in MAPS:
        yield _call(f"test_emit_maps.py::test_values[{name}]", _map, name, number)


def by_rows() -> Iterator[Example]:
    """Rows in registers, through memory, in shared memory, over a cluster."""
    for name, extents, form in ROWS:
        yield _call(
            f"test_emit_rows.py::test_programs[{name}-{form}]", test_emit_rows.test_programs, name, extents, form
        )
    for name, form in SPECIAL:
        yield _call(
            f"test_emit_rows.py::test_special_values[{name}-{form}]", test_emit_rows.test_special_values, name, form
        )
    for name, blocks, memory in CLUSTERS:
        id = f"test_emit_rows.py::test_states_of_all_kinds[{name}-{blocks}]"
        yield _call(id, test_emit_rows.test_states_of_all_kinds, name, blocks, memory)
    for name, sharing in SHARED_ROWS:
        id = f"test_emit_rows.py::test_scripts[{name}-{'x'.join(map(str, sharing))}]"
        yield _call(id, test_emit_rows.test_scripts, name, sharing)


def by_columns() -> Iterator[Example]:
    """Reductions of columns, and tables that many threads update."""
    for name, extents in COLUMNS:
        yield _plain(f"test_emit_columns.py::test_values[{name}]", test_emit_columns.test_values, name, extents, False)
    for name, extents in SCATTERS:
        yield _plain(
            f"test_emit_scatters.py::test_values[{name}]", test_emit_scatters.test_values, name, extents, False
        )


def by_general() -> Iterator[Example]:
    """The kernels that take everything."""
    yield from _each(GENERAL, "test_general_kernels", test_emulated_programs.run_general)


def as_chosen() -> Iterator[Example]:
    """Programs by the kernels that their plans choose."""
    yield from _each(PROGRAMS, "test_program", test_emulated_programs.run)


def by_threads() -> Iterator[Example]:
    """Products on the ordinary units."""
    for name, extents in THREADS:
        yield _call(f"test_emit_threads.py::test_programs[{name}]", _threads, name, extents)


def by_warps() -> Iterator[Example]:
    """Products by warps."""
    for name, number in WARPS:
        yield _call(f"test_emit_warps.py::test_programs[{name}]", _by_warps, name, number)
    for kind, how, extents in LAYOUTS:
        yield _call(f"test_emit_warps.py::test_layouts[{how}-{kind}]", _layout, kind, how, extents)
    for name in CUT:
        yield _call(f"test_emit_warps.py::test_sums_cut_into_parts[{name}]", _cut, name)


def by_warpgroups() -> Iterator[Example]:
    """Products by warpgroups, of whole rows and in turn too."""
    for name in WARPGROUPS:
        yield _plain(f"test_emit_contractions.py::test_scripts[{name}]", test_emit_contractions.test_scripts, name)
    for name in test_emit_contractions.COMPUTED:
        id = f"test_emit_contractions.py::test_computed_operands[{name}]"
        yield _plain(id, test_emit_contractions.test_computed_operands, name)
    for name in test_emit_contractions.FOLDS[::-1]:
        id = f"test_emit_contractions.py::test_folds_that_ride[{name}]"
        yield _plain(id, test_emit_contractions.test_folds_that_ride, name)
    for name, choice in TILES:
        id = f"test_emit_contractions.py::test_tiles_of_folds[{choice}-{name}]"
        yield _call(id, test_emit_contractions.test_tiles_of_folds, name, choice)
    side = test_emit_contractions.test_products_side_by_side
    for name, (_, found) in test_emit_contractions.SEVERAL.items():
        choice = next(iter(found))
        yield _call(f"test_emit_contractions.py::{side.__name__}[{name}-{choice}]", side, name, choice)
    for choice in test_emit_contractions.SHARED[:1]:
        yield _call(
            f"test_emit_contractions.py::test_tiles[bias-{choice}]", test_emit_contractions.test_tiles, "bias", choice
        )
    for name, extents in FRAGMENTS:
        yield _plain(f"test_emit_fragments.py::test_programs[{name}]", test_emit_fragments.test_programs, name, extents)
    for name, extents in ROW_PRODUCTS:
        yield _plain(
            f"test_emit_row_products.py::test_programs[{name}]", test_emit_row_products.test_programs, name, extents
        )
    for name in SEGMENTS:
        yield _plain(f"test_emit_segments.py::test_scripts[{name}]", test_emit_segments.test_scripts, name)
