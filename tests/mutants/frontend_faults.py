"""Faults planted in the front end, in the meaning of operations, and in the law of subscripts."""

from __future__ import annotations

from .planting import Edit, Mutant

WHERE = "front end"
CONVERT = "frontend.check.convert:Convert"
REDUCE = "frontend.check.reduce:Reduce"
INDEX = "frontend.check.index:Index"
LOOPS = "frontend.check.loops:Loops"
MATH = "numerics"


def _edit(name: str, mistake: str, place: str, old: str, new: str) -> Mutant:
    return Mutant(name, WHERE, mistake, (Edit(place, old, new),))


RAW_MOMENTS = (
    ("x = self.centred(x, axes, span)", 'mean = self.reduce_array("mean", x, axes, True, None, span)'),
    ("    result = self.map(total, span, finish, wide)", """
    if name != "norm":
        one = ops.OPS
        total = self.reduce_array("sum", square, axes, True, None, span)
        whole = self.map(total, span, lambda e: Op("div", (e, below), acc, span=span), acc)
        raw = self.apply(one["sub"], (whole, self.apply(one["mul"], (mean, mean), (span, span), span)), (span, span), span)
        raw = self.map(raw, span, lambda e: cast(e if name == "var" else Op("sqrt", (e,), acc), wide), wide)
        return raw if keepdims or not isinstance(raw, Array) else self.reduce_array("sum", raw, axes, False, None, span)
    result = self.map(total, span, finish, wide)"""),
)  # fmt: skip

FRONTEND: tuple[Mutant, ...] = (
    _edit("weak-constant-by-f32", "a number of no type is rounded to f32 before it becomes f64", f"{CONVERT}.literal",
          "ops.constant(float(value)", "ops.constant(float(np.float32(value))"),
    _edit("weak-fold-in-f32", "arithmetic of numbers of no type is done in f32", f"{CONVERT}.apply_weak",
          "np.asarray(c, np.float64) for c in known], F64)", "np.asarray(c, np.float32) for c in known], F32)"),
    _edit("overflow-of-a-literal", "a number that is infinite in its type is taken", f"{CONVERT}.literal",
          "if math.isinf(held) and not math.isinf(value)", "if math.isinf(held) and not math.isinf(value) and False"),
    _edit("integers-meet-floats", "an integer array and a float array meet in silence", f"{CONVERT}.meet",
          "met = promote(common, item.dtype)", "met = promote(common, item.dtype) or common"),
    _edit("broadcast-anything", "axes of different extents broadcast", f"{CONVERT}.broadcast",
          "elif not self.require_equal(", "elif False and not self.require_equal("),
    _edit("broadcast-from-the-front", "axes are aligned at the front", f"{CONVERT}.pull",
          "subs[skip:]", "subs[: value.rank]"),
    _edit("mean-by-one-less", "a mean divides by the count less one", f"{REDUCE}.mean",
          "cast(self.count(body), acc)", 'Op("sub", (cast(self.count(body), acc), Const(ops.constant(1, acc), acc)), acc)'),
    _edit("logsumexp-without-guard", "logsumexp subtracts a maximum that is infinite", f"{REDUCE}.logsumexp",
          'shift = Op("where", (finite, top, Const(0, acc)), acc)', "shift = top"),
    Mutant("variance-by-raw-moments", WHERE, "a variance is the mean of squares less the square of the mean",
           (Edit(f"{REDUCE}.second_moment", *RAW_MOMENTS[0], also=RAW_MOMENTS[1:]),)),
    _edit("flat-position-by-another-extent", "the position of argmax over two axes counts by the wrong extent", f"{REDUCE}.reduce_at",
          "flat = flat * array.shape[k] + Poly.of(dims[k].id)", "flat = flat * array.shape[axes[0]] + Poly.of(dims[k].id)"),
    _edit("f16-sums-in-f16", "sums of f16 are kept in f16", "ops:Monoid.accumulator",
          "return dtype.accumulator if self.widens else dtype", "return dtype if dtype.is_float and dtype.bits == 16 or not self.widens else dtype.accumulator"),
    _edit("subscript-one-past-the-end", "a subscript may be the extent", "prove.judge:judge",
          "state.normal(extent) - 1 - poly", "state.normal(extent) - poly"),
    Mutant("negative-subscripts-proved", WHERE, "only the upper end of a subscript is proved",
           (Edit("prove.judge:judge", "if low is not None and high is not None", "if high is not None",
                 also=(("_domains(state, tags, low, high)", "_domains(state, tags, *(x for x in proofs if x is not None))"),)),)),
    _edit("slice-rounded-down", "a slice with a step has no last element where the step does not divide", f"{INDEX}.slice",
          "(length + abs(step) - 1) // abs(step)", "length // abs(step)"),
    _edit("slice-of-the-other-end", "a slice with a negative step begins one too early", f"{INDEX}.slice",
          "else extent - 1, hi", "else extent - 2, hi"),
    _edit("reversed-scan-from-its-end", "a scan by -2 begins at the last index", f"{LOOPS}.scan",
          "lo + (count - 1 - s) * size", "hi - 1 - s * size"),
    _edit("reversed-emits", "what a reversed scan emits is in the order of its trips", f"{LOOPS}.scan",
          "row = s if step > 0 else count - 1 - s", "row = s"),
    _edit("carry-of-another-type", "the next value of a carry may have another type", f"{LOOPS}.next",
          "if value.dtype != carry.dtype:", "if value.dtype != carry.dtype and False:"),
    _edit("fill-of-a-view-never-used", "a constant view clips as an edge view does", f"{INDEX}.view_element",
          "mode = Mode(view.kind, fill if isinstance(fill, Const) else None)", 'mode = Mode("edge" if view.kind == "constant" else view.kind)'),
    _edit("truncating-division", "// of integers rounds toward zero", f"{MATH}:int_floordiv",
          "np.asarray(np.where(zero, a.dtype.type(0)",
          "np.asarray(np.where(zero, a.dtype.type(0) * (quotient := quotient + ((np.remainder(a, np.where(zero, 1, b)) != 0)"
          " & ((a < 0) != (b < 0))).astype(a.dtype))"),
    _edit("remainder-of-the-dividend", "% of integers has the sign of the dividend", f"{MATH}:int_mod",
          "np.remainder(", "np.fmod("),
    _edit("maximum-drops-nan", "maximum ignores NaN", f"{MATH}:maximum", "np.maximum(a, b)", "np.fmax(a, b)"),
    _edit("zeros-of-one-sign", "the greater of -0.0 and +0.0 is the first", f"{MATH}:maximum",
          "a + b, greater", "a, greater"),
    _edit("casts-wrap", "a float past the end of an integer type wraps", f"{MATH}:_saturate",
          "np.where(high, dtype.numpy.type(dtype.greatest), inside)", "inside"),
)  # fmt: skip
