"""Faults planted in the passes, in the order of the pipeline."""

from __future__ import annotations

from .planting import Edit, Mutant, Rule

WHERE = "pass"


def _edit(name: str, mistake: str, place: str, old: str, new: str) -> Mutant:
    return Mutant(name, WHERE, mistake, (Edit(place, old, new),))


def _rule(name: str, mistake: str, file: str, line: str) -> Mutant:
    return Mutant(name, WHERE, mistake, (Rule(file, f"planted: {line}"),))


FOLD = """from loopfuse.dtypes import F32, F64
    wide = evaluate.__dict__.setdefault("wide", {})
    if node.dtype == F32 and all(isinstance(a, Const) and a.dtype == F32 for a in node.args):
        found = OPS[node.op].evaluate([wide.get(a.bits, _value(a).astype(np.float64)) for a in node.args], F64)
        wide[to_bits(found.astype(np.float32), F32)] = found
        found = found.astype(np.float32)
    else:
        found = OPS[node.op].evaluate([_value(a) for a in node.args], node.dtype)"""
EVALUATE = "found = OPS[node.op].evaluate([_value(a) for a in node.args], node.dtype)"

PASSES: tuple[Mutant, ...] = (
    # constprop
    _edit("fold-at-f64", "constants of f32 are folded at f64 and rounded at the end", "passes.fold:evaluate", EVALUATE, FOLD),
    _edit("loop-of-one-is-empty", "a loop of one iteration counts as one that never runs", "passes.fold:_empty",
          "gap.constant >= 0", "gap.constant >= -1"),
    _edit("constant-array-everywhere", "an array of one value has it outside its bounds too", "passes.fold:_always",
          "m.fill == value if m.kind", "True if m.kind"),
    _edit("first-store-is-all", "an array whose first part is a constant is that constant", "passes.fold:_Folder._stored",
          "len(seen) == self.stores[store.buffer] and first", "first"),
    # simplify
    _rule("difference-of-one", "x - x is 0", "simplify", "x - x => 0"),
    _rule("product-with-zero", "x * 0 is 0", "simplify", "x * 0 => 0"),
    _rule("sum-with-zero", "x + 0.0 is x", "simplify", "x + 0.0 => x where float(x)"),
    _rule("cast-pair-removed", "a cast there and back is nothing", "simplify", "T(U(x)) => x where float(x), float(U), settled(x)"),
    _rule("not-less", "not (x < y) is x >= y", "simplify", "not (x < y) => x >= y"),
    _rule("log-of-exp", "log(exp(x)) is x", "simplify", "log(exp(x)) => x"),
    _rule("equal-to-itself", "x == x is true", "simplify", "x == x => true"),
    _rule("half-power", "x ** 0.5 is sqrt(x)", "simplify", "x ** 0.5 => sqrt(x)"),
    # dce
    # cse, bodies
    _edit("cse-by-python-equality", "constants are equal as Python compares them: 0.0 == -0.0, 1 == 1.0", "analysis.hashing:Keys.node",
          'mix(f"const {node.dtype} {node.bits}")',
          '__import__("loopfuse.constants").constants and mix(f"const {hash(float(__import__(\'loopfuse.constants\').constants.to_number('
          'node.bits, node.dtype)))}")'),
    # distribute
    _edit("carried-dependence-ignored", "what the trip before gives is not asked for", "passes.distribute.units:dependences",
          "for writer, store in writers.get(load.buffer, ())",
          "for writer, store in writers.get(load.buffer, ()) if _distance(found, store, load) != 1"),
    # fuse
    _edit("dependence-ignored", "what lies between two loops may stay where it is", "passes.merge.blocks:_needed",
          "for earlier in reversed(after):", "for earlier in ():"),
    _edit("other-ends-are-equal", "loops that end at different places are joined", "passes.merge.pairs:same_bounds",
          "alike(a.lo, c.lo) and alike(a.hi, c.hi) and", "alike(a.lo, c.lo) and"),
    _edit("halo-one-short", "the part of an array that a tile needs ends one too early", "passes.window.regions:image",
          "tuple(p + 1 for p in highs)", "highs"),
    _edit("halo-without-low-side", "a clamped subscript never goes below the index", "passes.window.regions:through_mode",
          "return at + low, at + high", "return at, at + high"),
    _edit("fill-one-late", "a value computed again is not replaced by the fill one past the end", "passes.merge.inlining:_bounds",
          'Op("lt", (Affine(poly), Affine(extent)), BOOL)', 'Op("le", (Affine(poly), Affine(extent)), BOOL)'),
    # cascade
    _edit("missing-rescale", "sums of exponentials are not rescaled when the maximum grows", "passes.cascade.terms:Rewriter._exponential",
          "repaired = replace(acc, repair=Select(moves, scaled, mine))", "repaired = acc"),
    _edit("rescale-upside-down", "sums of exponentials are rescaled by the inverse", "passes.cascade.terms:Rewriter._exponential",
          "_sum_of([replace(c, sign=-c.sign) for c in change])", "_sum_of(list(change))"),
    _edit("pole-kept-as-maximum", "a maximum of -inf is subtracted", "passes.cascade.terms:Rewriter._exponential",
          "if guarded:\n        running", "if False:\n        running"),
    _edit("deviation-of-the-other-side", "merged moments weigh by the wrong count", "passes.cascade.terms:Rewriter._square",
          'Ref(f"{count.id}.old", I64)', 'Ref(f"{count.id}.new", I64)'),
    # contract
    # peephole
    # widen
)  # fmt: skip
