"""Faults planted in emitters, most of them one word of the CUDA C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loopfuse.spelling import Spelling

from .planting import Edit, Mutant, Value

WHERE = "emitter"
MADE = "emit.matrix.made:Made"
WARPGROUP, PRODUCTS, RESULTS = (
    "emit.matrix.warpgroup:Kernel",
    "emit.matrix.products:Products",
    "emit.matrix.results:Results",
)
JOINS, TILE = "emit.rows_join:Joins", "emit.maps_tile:Tile"
WARPS, THREADS = "emit.matrix.warps:Kernel", "emit.matrix.threads:Kernel"

FMAX = (Spelling("f32", "fmaxf({0}, {1})"), Spelling("f64", "fmax({0}, {1})"))


def _edit(name: str, mistake: str, place: str, old: str, new: str, every: bool = False) -> Mutant:
    return Mutant(name, WHERE, mistake, (Edit(place, old, new, every),))


def _function(name: str, mistake: str, function: str, old: str, new: str) -> Mutant:
    """A function of the prelude with one part replaced."""

    def changed(text: str) -> str:
        assert old in text, (function, old)
        return text.replace(old, new)

    change: Callable[[str], str] = changed
    return Mutant(name, WHERE, mistake, (Value(f"emit.prelude:FUNCTIONS['{function}']", change),))


EMITTERS: tuple[Mutant, ...] = (
    # functions that kernels call
    Mutant("kernel-maximum-drops-nan", WHERE, "maximum ignores NaN on the device",
           (Value("ops:OPS['maximum']", lambda row: replace(row, cuda=(*row.cuda[:-2], *FMAX))),)),
    _function("kernel-division-truncates", "// rounds toward zero on the device", "lf_floordiv",
              " - (a % b != 0 && lf_negative(a) != lf_negative(b))", ""),
    _function("last-of-equal-values", "argmax gives the last of equal values", "lf_argmax", "b.at < a.at", "b.at > a.at"),
    _function("wrap-keeps-negative", "a wrapped subscript stays negative", "lf_wrap", "r < 0 ? r + n : r", "r"),
    _function("symmetric-one-off", "a symmetric boundary leaves out the last element", "lf_symmetric", "p - 1 - r", "p - r - 1 - (r > n)"),
    _function("half-of-a-double", "a shuffle of 8 bytes moves the lower half twice", "lf_shfl_xor",
              "u.w[1] = __shfl_xor_sync(0xffffffffu, u.w[1], k)", "u.w[1] = u.w[1]"),
    _function("tail-of-a-vector", "the tail of a vector is written unmasked", "lf_write_part", "if (k < left) ", ""),
    _function("halves-swapped", "two elements of a word of bf16 change places", "lf_pack_bf16",
              "x.v[2 * k], x.v[2 * k + 1]", "x.v[2 * k + 1], x.v[2 * k]"),
    _function("counter-left-over", "the count of finished blocks is not set back", "lf_last_block", "if (*flag) *done = 0u;", ""),
    _function("turns-without-waiting", "lanes that meet in an element do not wait for one another", "lf_in_turn",
              "if (k == turn && key >= 0)", "if (key >= 0)"),
    # what every kernel has
    _edit("written-memory-restricted", "a pointer that a kernel writes by is said to be the only one", "emit.writer:Writer.parameters",
          'f"{element}* {name}" if written else f"const {element}* __restrict__ {name}"',
          "f\"{element}* __restrict__ {name}\" if written else f\"const {element}* __restrict__ {name}\""),
    # maps
    _edit("tail-of-a-map", "the last block of a map is not masked", "emit.maps_plain:Plain.flat",
          'self.branch([f"{first} + {block} <= {last}"], whole, rest)', "whole()"),
    _edit("row-tail-unmasked", "a patch at the right edge is not masked", "emit.maps_plain:Plain.rows",
          "if ({row} < {w.poly(rows)} && {column} < {w.poly(inner.extent)})", "if ({row} < {w.poly(rows)})"),
    _edit("tile-without-a-barrier", "a turned tile is read before all of it is there", f"{TILE}.whole", 'w.line("lf_sync();")', "pass"),
    _edit("swizzle-one-off", "a vector goes to the place of its neighbour in the tile", f"{TILE}.turn_in",
          'f"({self.turned_row} + e)"', 'f"({self.turned_row} + (e ^ 1))"'),
    _edit("cut-tile-taken-whole", "a tile at the edge is taken as a whole one", f"{TILE}.write",
          "self.branch(tests, self.whole, self.edge)", "self.branch([], self.whole, self.edge)"),
    # rows
    _edit("row-states-without-a-barrier", "partial states of warps are read before they are written", f"{JOINS}._through_memory",
          'w.line("lf_sync();")', "pass"),
    _edit("butterfly-without-last-step", "neighbouring lanes are not joined", f"{JOINS}._butterfly", "{h} > 0; {h} >>= 1", "{h} > 1; {h} >>= 1"),
    _edit("phase-parity", "a barrier is waited for in the other phase", f"{JOINS}._send", "self.joined // 2 % 2", "(self.joined // 2 + 1) % 2"),
    _edit("bytes-expected-short", "a barrier expects the bytes of the states of fewer warps", f"{JOINS}._send",
          "lf_bar_expect({bar}, {total})", "lf_bar_expect({bar}, {total // 2})"),
    _edit("rows-past-the-last", "threads past the last row store", "emit.rows_write:Rows.place_in_grid",
          "tail = fit.together > 1 and (rows is None or rows % fit.together != 0)", "tail = False"),
    # the general kernels
    _edit("block-without-a-barrier", "what another thread wrote is read without a barrier", "emit.team:Team._settle", "if self.dirty and", "if False and"),
    _edit("warps-joined-too-early", "states of warps are read before all are there", "emit.team:Team.join",
          'w.line("lf_sync();")\n            w.line(f"{name} = {slots}[0];")', 'w.line(f"{name} = {slots}[0];")'),
    _edit("stores-by-all-threads", "every thread absorbs a value that one should", "emit.team:Team.team",
          'with self.w.block("if (threadIdx.x == 0)"):', 'with self.w.block(""):'),
    # columns
    _edit("halving-without-a-barrier", "a block's states are joined before they are there", "emit.partials:_halves",
          'w.line("lf_sync();")\n        with w.block(f"if (threadIdx.x < {h})")', 'with w.block(f"if (threadIdx.x < {h})")'),
    _edit("lanes-from-zero", "states of lanes start at 0 whatever the reduction", "emit.partials:States.declare",
          '{self.names[acc.id]}[{v}] = {self.w.identity(acc.monoid, acc.dtype)};', "{self.names[acc.id]}[{v}] = {{}};"),
    _edit("states-from-zero", "a thread's state starts at 0 whatever the reduction", "emit.serial:Serial.declare",
          "self.w.identity(acc.monoid, acc.dtype)};", "'{}'};"),
    _edit("tile-states-from-zero", "states of a tile's rows start at 0 whatever the reduction", f"{RESULTS}.start",
          "w.identity(acc.monoid, acc.dtype)", '"{}"'),
    _edit("finish-from-zero", "the second step of a fold starts at 0 whatever the reduction", "emit.matrix.finish:Parts.finish",
          "{w.identity(acc.monoid, acc.dtype)}", "{{}}"),
    # products by threads and warps
    _edit("buffers-of-one-turn", "a product reads the buffer that is being filled", f"{THREADS}._products", "({step} - 1 & 1)", "({step} & 1)"),
    _edit("step-without-a-barrier", "a step of a product begins before its operands are there", f"{THREADS}._products", 'w.line("lf_sync();")', "pass"),
    _edit("lane-of-another-column", "two lanes take the same columns", f"{THREADS}.write", "% 32 / 16 * 2) * 2", "% 32 / 16) * 2"),
    _edit("sums-of-doubles-in-float", "sums of f64 grow in f32", "emit.matrix.threads_form:summed",
          "return c_type(acc), acc.itemsize", 'return ("float" if acc.is_float else c_type(acc)), acc.itemsize'),
    _edit("stage-not-waited-for", "a stage of a product is read while its copies are on their way", f"{WARPS}.products",
          "lf_stage_wait<{form.stages - 2}>", "lf_stage_wait<{form.stages - 1}>", every=True),
    _edit("fragments-in-another-order", "the matrices of a left fragment change places", f"{WARPS}.reader",
          "(high, low) if operand.left else (low, high)", "(low, high)"),
    _edit("parts-added-short", "the last part of a cut sum is not added", "emit.matrix.split:Split.finish", "{p} < {self.parts}; ++{p}", "{p} < {self.parts - 1}; ++{p}"),
    # products by warpgroups
    _edit("ring-phase", "the producer waits for places that nobody has filled yet", f"{WARPGROUP}.producer", "unsigned int {phase} = 1;", "unsigned int {phase} = 0;"),
    _edit("place-released-early", "a place of the ring is released while it is multiplied", f"{PRODUCTS}.loop",
          'self.release(before, f"{step} > 0 && ")', "self.release(self.slot)"),
    _edit("run-turned-round", "products of one instruction change places", f"{PRODUCTS}.products",
          'f"{name}[{k}]" for k', 'f"{name}[{len(ids) - 1 - k}]" for k'),
    _edit("difference-of-another-mean", "elements keep a difference for one of another value of the row", "emit.matrix.row_shape:_difference",
          "(base, rows[right.id])", "(base, Ref(base, F32))"),
    _edit("slot-taken-early", "results take a slot that others still leave", f"{RESULTS}.vacate", "sent + count > slots", "sent > slots"),
    _edit("tile-coordinate-off", "the second panel of an operand comes from one panel further", f"{WARPGROUP}.copy",
          "{first} + {width * k}", "{first} + {width * (k + (k > 0))}"),
    _edit("sum-along-the-wrong-depth", "a stage of the sum is copied from the stage after it", f"{WARPGROUP}.copy",
          'inner = f"{step} * {form.depth}"', 'inner = f"({step} + 1) * {form.depth}"'),
    _edit("products-not-waited-for", "results are read before the products are done", f"{PRODUCTS}.loop", 'w.line("lf_mma_wait<0>();")', "pass"),
    _edit("epilogue-column-off", "the second half of a tile goes eight columns too far", f"{RESULTS}.corner", "c + half * 32", "c + half * 40"),
    _edit("residual-slot-reused-early", "a residual comes into a slot that results still leave", f"{RESULTS}.refill",
          'self.w.line("lf_tile_store_read<0>();")', "pass"),
    _edit("swizzle-of-four-rows", "rows of a tile are permuted in groups of four", f"{RESULTS}.move", "^ {own} & 7)", "^ {own} & 3)"),
    _edit("tile-without-a-fence", "a tile is copied out before what threads wrote is seen", f"{RESULTS}.piece", 'w.line("lf_async_fence();")', "pass"),
    _edit("made-told-too-early", "a stage is reported full before all threads have written it", f"{MADE}.producer",
          'w.line(f"lf_group_sync({FED} + {self.group}, {THREADS});")', "pass"),
    _edit("made-too-soon", "threads make an operand in a place that is still read", f"{MADE}.producer",
          'w.line(f"lf_bar_wait({self.empty} + {slot}, {phase});")', "pass"),
    _edit("made-of-another-stage", "the stage of an operand that is loaded next is one on, not two", f"{MADE}.producer",
          'chunks.ahead(f"({step} + {MAKERS})")', 'chunks.ahead(f"({step} + 1)")'),
    _edit("cluster-does-not-wait", "sums of other blocks are read before they have come", f"{RESULTS}.exchange", 'w.line("lf_cluster_sync();")', "pass"),
    _edit("warps-of-a-column-lost", "a column's fold leaves out the lanes sixteen apart", f"{RESULTS}._columns", "(4, 8, 16)", "(4, 8)"),
    _edit("folded-columns-unmasked", "columns past the last are written by a fold's second step", "emit.matrix.finish:Parts.finish",
          "{part} > 0 || !{own}", "{part} > 0"),
)  # fmt: skip
