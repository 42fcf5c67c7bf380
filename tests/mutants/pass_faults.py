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
    _edit("checked-access-dropped", "an access that must be reported is dead where nothing reads it", "passes.dce:_may_fault",
          'return any(m is not None and m.kind == "checked" for m in modes)', "return False"),
    _edit("live-store-dropped", "of several stores to an array only the last one's operands are needed", "passes.dce:_collect",
          "uses.needs[name] |= mine", "uses.needs[name] = mine"),
    # cse, bodies
    _edit("cse-commutes-differences", "a - b and b - a are equal", "analysis.hashing:_op",
          'elif len(operands) == 2 and row.law("commutative", node.args[-1].dtype):', "elif len(operands) == 2:"),
    _edit("cse-ignores-modes", "reads at different boundaries are equal", "analysis.hashing:Keys._modes",
          "if not any(modes):", "if True:"),
    _edit("load-out-of-its-guard", "a load is moved out of the condition that keeps it in range", "passes.sharing.safety:Safety._load",
          'if judge(facts, sub, shape[axis]).verdict != "proved":', "if False:"),
    _edit("cse-by-python-equality", "constants are equal as Python compares them: 0.0 == -0.0, 1 == 1.0", "analysis.hashing:Keys.node",
          'mix(f"const {node.dtype} {node.bits}")',
          '__import__("loopfuse.constants").constants and mix(f"const {hash(float(__import__(\'loopfuse.constants\').constants.to_number('
          'node.bits, node.dtype)))}")'),
    _edit("loads-of-two-arms-ahead", "what two arms of conditions load is loaded before both", "passes.sharing.place:Sharing._point",
          " or not self._safe(node, ctx.infos, ctx.point)", ""),
    # distribute
    _edit("own-recurrence-ignored", "a definition that needs itself is taken out of its loop", "passes.distribute.units:carried",
          "not (d.reader is d.writer and d.trip == 0)", "d.reader is not d.writer"),
    _edit("carried-dependence-ignored", "what the trip before gives is not asked for", "passes.distribute.units:dependences",
          "for writer, store in writers.get(load.buffer, ())",
          "for writer, store in writers.get(load.buffer, ()) if _distance(found, store, load) != 1"),
    # fuse
    _edit("ordered-loop-in-parallel", "a loop that runs in order becomes parallel when it is joined", "passes.merge.blocks:_order",
          'return "seq"', 'return "par"'),
    _edit("result-before-its-fold", "the result of a fold is stored before the fold", "passes.merge.blocks:_place",
          "if any(scope.needs(s, target) for s in needed):", "if False:"),
    _edit("neighbours-never-meet", "a store and a load whose subscripts differ are independent", "passes.merge.pairs:_apart",
          "(gap := p - q).is_const and gap.constant", "str(p) != str(q)"),
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
    _edit("shared-array-made-local", "an array that another kernel reads stays on chip", "passes.contract:live_buffers",
          "return _kept(program) | {", "return _kept(program) or {"),
    _edit("sliding-window-one-short", "a recurrence keeps one value where it needs two", "passes.contract:_sliding",
          "return (at + low,), (at + high + 1,)", "return (at + low,), (at + max(high, low + 1),)"),
    _edit("window-one-short", "an array keeps one element fewer than are alive", "passes.contract:_reach",
          "(base + high + 1,)", "(base + high + (high == low),)"),
    # peephole
    _edit("lazy-arms-are-performed", "what one arm of a condition loads is known after it", "passes.redundant:performed",
          "stack.append(node.cond)", "stack += [node.cond, node.then, node.other]"),
    _edit("neighbours-are-one-element", "a load is replaced by that of the next element", "passes.redundant:Redundant._equal",
          "return not gap.terms or (", "return gap.is_const or ("),
    _rule("logical-shift", "a remainder by a power of two keeps one bit too many", "peephole",
          "x % c => x & (c + c - 1) where int(x), power(c), data(x)"),
    _rule("product-for-quotient", "a quotient by any constant is a product with its inverse", "peephole", "x / c => x * (1 / c) where float(x)"),
    _rule("division-by-shift", "a quotient by a power of two rounds toward zero", "peephole",
          "x // c => (x + ((x >> 31) & (c - 1))) >> exponent(c) where i32(x), power(c), atomic(x)"),
    # widen
    _edit("widened-under-strict", "strict numerics lose roundings", "passes.widen:widen",
          'if program.numerics == "strict":', "if False:"),
    _edit("declared-cast-dropped", "a cast to f16 that the user wrote does not round", "passes.widen:_Kernel._op",
          "if not node.implied:", "if False:"),
)  # fmt: skip
