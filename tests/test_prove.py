"""The prover: the law of subscripts on the sample programs, its rules one by one, verdicts and values."""

from __future__ import annotations

from dataclasses import replace

import prove_random
import pytest
from prove_cases import CASES, Case
from prove_terms import Terms, known

from loopfuse.constants import constant
from loopfuse.dtypes import BOOL, F32, I64
from loopfuse.ir import Affine, Const, Load, Mode, Op, Ref
from loopfuse.prove import Facts, Judgement, conditions, entail, judge
from loopfuse.prove.state import Context, Derived, State
from loopfuse.sizes import ONE, ZERO, Poly


def facts_of(case: Case, terms: Terms) -> Facts:
    """The facts of a case."""
    return known(terms, case.sizes, case.require, case.loops, case.where, case.ranges, case.defs, case.refs, case.lets)


def verdict(case: Case) -> Judgement:
    """The verdict on the case's only subscript."""
    terms = Terms(case.arrays, case.reftypes)
    sub, _, extent = case.subs[0].rpartition(" < ")
    return judge(facts_of(case, terms), terms.expr(sub), terms.poly(extent))


def shown(case: Case) -> str:
    """A verdict in one line: what is required, or the range that the message shows."""
    found = verdict(case)
    if found.verdict == "requires":
        return "requires " + ", ".join(f"{p} >= 0" for p in found.requires)
    if found.verdict == "wrong":
        return f"wrong: {found.lo} .. {found.hi}"
    return found.verdict


# -- the sample programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.program)
def test_program(case: Case) -> None:
    """Every subscript of the sample programs gets the verdict that the language promises."""
    terms = Terms(case.arrays, case.reftypes)
    facts = facts_of(case, terms)
    for text in case.subs:
        sub, _, extent = text.rpartition(" < ")
        assert judge(facts, terms.expr(sub), terms.poly(extent)).verdict == case.verdict, text


def as_problem(case: Case, shift: int) -> prove_random.Problem:
    """A case without arrays as a problem for brute force, its subscripts moved."""
    terms = Terms()
    sizes, params = {}, {}
    for word in case.sizes.split():
        name, _, value = word.partition("=")
        if name.endswith("?"):
            params[name[:-1]] = range(-2, 4)
        else:
            sizes[name] = range(int(value), int(value) + 1) if value else range(5 if len(case.sizes) < 12 else 4)
    loops = []
    for loop in filter(None, map(str.strip, case.loops.split(";"))):
        name, _, span = loop.partition(" in ")
        lo, hi = span.split("..")
        loops.append((name, (terms.poly(lo),), (terms.poly(hi),), 1))
    require = [terms.expr(c) for c in filter(None, map(str.strip, case.require.split(";")))]
    where = [c.strip() for c in case.where.split(";") if c.strip()]
    guards = [(terms.expr(c.removeprefix("else ")), not c.startswith("else ")) for c in where]
    subs = [Affine(terms.poly(text.rpartition(" < ")[0]) + shift) for text in case.subs]
    return prove_random.Problem(sizes, params, loops, require, guards, subs=subs)


@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize("case", [c for c in CASES if not c.arrays and "^" not in c.subs[0]], ids=lambda c: c.program)
def test_off_by_one(case: Case, shift: int) -> None:
    """Moved by one, the verdicts still agree with brute force: nothing is proved that has a counterexample."""
    terms = Terms()
    whole = as_problem(case, shift)
    facts = facts_of(case, terms)
    for text, sub in zip(case.subs, whole.subs, strict=True):
        problem = replace(whole, subs=[sub], extent=terms.poly(text.rpartition(" < ")[2]))
        prove_random.compare(problem, facts, 7, assignments=12, points=300)


# -- each rule is needed ----------------------------------------------------------------------------------------------

RULES = {
    "conditions hold in what they guard": Case("", ("i - 1 < N",), "N", "", "i in 0..N", "i > 0"),
    "floor quotients": Case("", ("2*i + 1 < H",), "H", "", "i in 0..H // 2"),
    "the domain of an input": Case(
        "", ("ids[n] < V",), "N V", "", "n in 0..N", arrays={"ids": "i32"}, ranges={"ids": ("0", "V - 1")}
    ),
    "require": Case("", ("i < M",), "N M", "N <= M", "i in 0..N"),
    "a multiple": Case("", ("k // D < K // D",), "K D", "K % D == 0", "k in 0..K"),
    "equal products": Case("", ("g*K + k < C",), "C G K", "C == G*K", "g in 0..G; k in 0..K"),
    "types of data": Case("", ("img[n] < 256",), "N", "", "n in 0..N", arrays={"img": "u8"}),
    "bits": Case("", ("codes[n] & 15 < 16",), "N", "", "n in 0..N", arrays={"codes": "u32"}),
    "minimum": Case("", ("minimum(i + 1, N - 1) < N",), "N", "", "i in 0..N"),
    "argmax": Case("", ("best < K",), "K", reftypes={"best": "i64"}, refs={"best": ("0", "K - 1")}),
    "the else arm": Case("", ("i - 1 < N",), "N", "", "i in 0..N", "else i == 0"),
    "a named mask": Case(
        "", ("i - 1 < N",), "N", "", "i in 0..N", "m[i]", arrays={"m": "bool"}, defs={"m": ("z", "z > 0")}
    ),
    "a negated goal times sizes": Case("", ("h // (Q // K) < K",), "Q K", "Q % K == 0", "h in 0..Q"),
    "a numerator": Case("", ("0 < M",), "M", "", "", "(M + 1) // 2 > 0"),
    "a quotient of a quotient": Case("", ("12 < M",), "M", "", "", "((M + 1) // 2 + 2) // 3 > 2"),
    "the numerator of a loop": Case("", ("0 < M",), "M S", "", "i in 0..(M + S - 1) // S"),
    "a quotient that is not zero": Case("", ("0 < M",), "M", "", "", "(M + 1) // 2 != 0"),
    "a numerator in one of two": Case("", ("0 < M",), "M N", "", "", "(M + 1) // 2 > 0 or N < 0"),
    "a fact times sizes": Case("", ("h*D + d < H*D",), "H D", "", "h in 0..H; d in 0..D"),
}


def without(name: str, patch: pytest.MonkeyPatch) -> None:
    """Switch a rule off."""
    assume = Facts.assume
    if name in ("conditions hold in what they guard", "require", "a multiple", "equal products"):
        patch.setattr(Facts, "assume", lambda self, cond, truth=True: self)
    elif name == "the else arm":
        patch.setattr(Facts, "assume", lambda self, cond, truth=True: assume(self, cond) if truth else self)
    elif name == "floor quotients":
        patch.setattr(entail, "quotient_facts", lambda state, quot: Derived())
    elif "numerator" in name or name == "a quotient of a quotient":
        patch.setattr("loopfuse.prove.facts.numerators", lambda state, fact: [])
    elif name == "a quotient that is not zero":
        patch.setattr("loopfuse.prove.facts.apart", lambda state, fact: [])
    elif name == "the domain of an input":
        patch.setattr(Facts, "value_range", lambda self, buffer, lo, hi: self)
    elif name == "a named mask":
        patch.setattr(conditions, "looked_through", lambda state, e: None)
    elif name in ("a negated goal times sizes", "a fact times sizes"):
        patch.setattr(entail._Search, "multiply", lambda self: None)
        patch.setattr(entail._Search, "pair", lambda self: None)
    else:
        patch.setattr(Facts, "empty", staticmethod(lambda: Facts(State(Context(lambda state, name: Derived())))))


@pytest.mark.parametrize("name", RULES)
def test_rule_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule the subscript is proved, and without it it is not."""
    assert verdict(RULES[name]).verdict == "proved"
    without(name, monkeypatch)
    assert verdict(RULES[name]).verdict != "proved"


def test_right_operand_is_guarded_by_the_left() -> None:
    """What stands to the right of `and` may use the left, as facts and in later conversions."""
    terms = Terms({"v": "i32"})
    facts = known(terms, "N", "", "n in 0..N", "0 <= v[n] < N and v[n] + 1 < N")
    assert judge(facts, terms.expr("v[n] + 1"), terms.poly("N")).verdict == "proved"
    assert judge(facts, terms.expr("v[n] + 2"), terms.poly("N")).verdict == "checked"


# -- verdicts ---------------------------------------------------------------------------------------------------------

VERDICTS = {
    "x[i - 1]": (Case("", ("i - 1 < N",), "N", "", "i in 0..N"), "wrong: -1 .. N - 2"),
    "x[i + 1]": (Case("", ("i + 1 < N",), "N", "", "i in 0..N"), "wrong: 1 .. N"),
    "x[i + r - 1]": (Case("", ("i + r - 1 < N",), "N", "", "i in 0..N; r in 0..3"), "wrong: -1 .. N"),
    "guard too weak": (Case("", ("i - 2 < N",), "N", "", "i in 0..N", "i > 0"), "wrong: -1 .. N - 3"),
    "a constant": (Case("", ("3 < 3",)), "wrong: 3 .. 3"),
    "a last element": (Case("", ("N < N",), "N"), "wrong: N .. N"),
    "a triangle": (Case("", ("j < N",), "N", "", "i in 0..N; j in 0..i + 2"), "wrong: 0 .. N"),
    "i in 0..8": (Case("", ("i < N",), "N", "", "i in 0..8"), "requires N - 8 >= 0"),
    "another size": (Case("", ("i < M",), "N M", "", "i in 0..N"), "requires M - N >= 0"),
    "a param": (Case("", ("p + i < N",), "N T p?", "", "i in 0..T"), "requires N - T - p >= 0, p >= 0"),
    "a window": (Case("", ("i + r < N",), "N R", "", "i in 0..N; r in 0..R"), "requires -R + 1 >= 0"),
    "a stride": (Case("", ("2*i + 1 < N",), "N M", "", "i in 0..M"), "requires -2*M + N >= 0"),
    "pairs of an odd row": (
        Case("", ("2*i + 2 < N",), "N", "", "i in 0..N // 2"),
        "requires -1 + N % 2 >= 0",
    ),
    "a multiple goes back": (
        Case("", ("i < M",), "N M", "N % 4 == 0", "i in 0..N // 4"),
        "requires M - N // 4 >= 0",
    ),
    "data": (Case("", ("v[n] < N",), "N", "", "n in 0..N", arrays={"v": "i32"}), "checked"),
    "data with another domain": (
        Case("", ("v[n] < M",), "N M", "", "n in 0..N", arrays={"v": "i32"}, ranges={"v": ("0", "N - 1")}),
        "checked",
    ),
    "a filter of data": (
        Case("", ("i + 1 < N",), "N", "", "i in 0..N", "m[i]", arrays={"m": "bool"}),
        "checked",
    ),
    "a filter of data on another index": (
        Case("", ("i + 1 < N",), "N", "", "b in 0..N; i in 0..N", "m[b]", arrays={"m": "bool"}),
        "wrong: 1 .. N",
    ),
    "an index that data choose": (
        Case("", ("i + 1 < N",), "N", "", "i in 0..N", "v[0] == i", arrays={"v": "i64"}),
        "checked",
    ),
    "an element equal to a constant": (
        Case("", ("i + 1 < N",), "N", "", "i in 0..N", "v[i] == 3", arrays={"v": "i64"}),
        "checked",
    ),
    "outside in every iteration": (
        Case("", ("N + i < N",), "N", "", "i in 0..N", "m[i]", arrays={"m": "bool"}),
        "wrong: N .. 2*N - 1",
    ),
    "an empty loop": (Case("", ("i + 7 < N",), "N", "", "i in 0..0"), "proved"),
    "by 2": (Case("", ("i + 1 < N",), "N", "", "i in 0..N by 2"), "requires -1 + (N + 1) % 2 >= 0"),
    "by 2 of an even size": (Case("", ("i + 1 < N",), "N", "N % 2 == 0", "i in 0..N by 2"), "proved"),
    "modulo": (Case("", ("(i + 3) % N < N",), "N", "", "i in 0..N"), "proved"),
    "flattened": (Case("", ("v[n] // W < H",), "N H W", "", "n in 0..N", arrays={"v": "i32"},
                       ranges={"v": ("0", "H*W - 1")}), "proved"),
    "flattened rest": (Case("", ("v[n] % W < W",), "N H W", "", "n in 0..N", arrays={"v": "i32"},
                            ranges={"v": ("0", "H*W - 1")}), "proved"),
    "remainder by what may be zero": (
        Case("", ("v[n] % W < W",), "N W", "", "n in 0..N", arrays={"v": "i32"}), "checked"),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str) -> None:
    """Verdicts, conditions and the range in the message."""
    case, expected = VERDICTS[name]
    assert shown(case) == expected


def test_failed_sides() -> None:
    """A verdict says which side is open."""
    low = verdict(Case("", ("i - 1 < N",), "N", "", "i in 0..N"))
    assert (low.low_failed, low.high_failed) == (True, False)
    high = verdict(Case("", ("i + 1 < N",), "N", "", "i in 0..N"))
    assert (high.low_failed, high.high_failed) == (False, True)


def test_domains_of_a_proof() -> None:
    """The buffers whose range a proof needed are named; a range that was not needed is not."""
    terms = Terms({"v": "i32", "w": "i32"})
    facts = known(terms, "N", "", "n in 0..N", ranges={"v": ("0", "N - 1"), "w": ("0", "N - 1")})
    assert judge(facts, terms.expr("n"), terms.poly("N")).domains == frozenset()
    assert facts.used_domains() == frozenset()
    assert judge(facts, terms.expr("v[w[n]]"), terms.poly("N")).domains == {"v"}
    assert facts.used_domains() == {"v"}
    assert facts.nonneg(terms.poly(0)) and facts.index("k", (ZERO,), (ONE,)).used_domains() == {"v"}


def test_domain_under_an_answer() -> None:
    """A range that was told after an answer names what the answer rested on."""
    terms = Terms({"v": "i32", "w": "i32"})
    facts = known(terms, "N", "", "n in 0..N", ranges={"v": ("0", "N - 1")})
    lo, hi = facts.bounds(terms.expr("v[n]"), frozenset({"N"}))
    facts = facts.value_range("w", lo[:1], hi[:1])
    assert judge(facts, terms.expr("w[n]"), terms.poly("N")).domains == {"v", "w"}


# -- values -----------------------------------------------------------------------------------------------------------

PROVED = {
    "u8 sums wrap": ("u[n] + u[n] < 256", True),
    "widened u8 sums do not": ("i32(u[n]) + i32(u[n]) < 511", True),
    "widened u8 sums are not below": ("i32(u[n]) + i32(u[n]) < 510", False),
    "u8 differences wrap": ("i32(u[n] - u[n + 1]) + i32(u[n + 1]) < 256", False),
    "index in i32": ("i32(n) + 1 < N + 1", True),
    "index in u32 below zero": ("(u32(n) - 1) >> 1 < N", False),
    "index in u8": ("u8(n) < N", False),
    "a hash in u32": ("(u32(n) * 2654435761) // 2654435761 < N", False),
    "top bits of a hash": ("(u32(n) * 2654435761) >> 24 < 256", True),
    "a doubled power": ("minimum((i32(1) << i32(n & 30)) + (i32(1) << i32(n & 30)), 7) < 8", False),
    "shift right": ("u[n] >> 4 < 16", True),
    "shift left": ("i64(1) << i64(u[n] & 3) < 9", True),
    "shift left too far": ("i64(1) << i64(u[n] & 3) < 8", False),
    "or of bits": ("(u[n] & 3) | (u[n] & 8) < 16", True),
    "xor of bits": ("(u[n] & 3) ^ (u[n] & 4) < 8", True),
    "xor of bits, not less": ("(u[n] & 3) ^ (u[n] & 4) < 7", False),
    "popcount": ("popcount(u[n]) < 9", True),
    "complement": ("~u[n] < 256", True),
    "modulo of data": ("v[n] % 10 < 10", True),
    "modulo by a size that may be zero": ("v[n] % N < N", True),
    "quotient of data": ("u[n] // 16 < 16", True),
    "clip": ("clip(v[n], 0, N - 1) < N", True),
    "clip, not less": ("clip(v[n], 0, N) < N", False),
    "maximum": ("minimum(maximum(v[n], 0), N - 1) < N", True),
    "abs of narrow data": ("abs(i32(u[n]) - 255) < 256", True),
    "abs of data": ("abs(v[n]) % 7 - abs(v[n]) % 7 < 1", True),
    "abs of INT_MIN": ("minimum(abs(v[n]), N - 1) < N", False),
    "a choice": ("v[n] if 0 <= v[n] < N else 0 < N", True),
    "a choice without else": ("v[n] if 0 <= v[n] else 0 < N", False),
    "where": ("where(0 <= v[n] and v[n] < N, v[n], 0) < N", True),
    "a count of truth": ("i32(v[n] > 3) < 2", True),
    "sign": ("sign(v[n]) + 1 < 3", True),
    "float cut": ("i32(clip(f[n], 0.0, 15.5)) < 16", True),
    "float cut, not less": ("i32(clip(f[n], 0.0, 16.0)) < 16", False),
    "float scaled": ("i32(round(clip(f[n], 0.0, 1.0) * 15.0)) < 16", True),
    "float above zero may be NaN": ("i32(clip(f[n], 1.0, 3.0)) - 1 < 3", False),
    "float from u8": ("i32(f32(u[n]) * 0.5) < 128", True),
    "float unknown": ("i32(f[n]) < N", False),
    "float that holds u16": ("i32(f32(w[n])) < 65536", True),
    "float rounded up": ("i32(bf16(w[n])) < 65536", False),
    "float not above what it is rounded to": ("i32(bf16(w[n])) < 65537", True),
    "float that may be infinite": ("i32(f16(w[n])) < 65537", False),
    "float of an infinite product": ("i32(f16(u[n]) * f16(u[n]) * f16(u[n])) < 65537", False),
    "float of a great integer": ("i32(f16(i32(70000))) < 70001", False),
    "float of a great negative integer": ("1 - i32(f16(i32(-70000))) < 70002", False),
    "float within f16 but for its size": ("i32(f16(clip(bf16(f[n]), 0.0, 70000.0))) < 70145", False),
    "float within bf16 and f16": ("i32(f16(clip(bf16(f[n]), 0.0, 60000.0))) < 60001", True),
}


@pytest.mark.parametrize("name", PROVED)
def test_value(name: str) -> None:
    """Ranges of values by what they are: types, wrapping, bits, choices, floats."""
    text, expected = PROVED[name]
    arrays = {"u": "u8", "v": "i32", "w": "u16", "f": "f32"}
    case = Case("", (text,), "N", "", "n in 0..N", arrays=arrays)
    assert (verdict(case).verdict == "proved") == expected


def test_float_coordinate_leaves_conditions() -> None:
    """A coordinate clipped to a symbolic axis needs a first element, and an extent that f32 holds."""
    case = Case("", ("i32(floor(clip(f[n], 0.0, f32(H - 1)))) < H",), "N H", "", "n in 0..N", arrays={"f": "f32"})
    assert shown(case) == "requires -H + 16777217 >= 0, H - 1 >= 0"
    wide = replace(case, subs=("i32(floor(clip(g[n], g0[0], f64(H - 1)))) < H",), arrays={"g": "f64", "g0": "f64"})
    assert verdict(wide).verdict == "checked"
    bounded = replace(case, require="1 <= H <= 4096")
    assert verdict(bounded).verdict == "proved"


def test_modes_of_inner_reads() -> None:
    """A read outside an axis gives the fill or zero, which need not keep the buffer's range."""
    terms = Terms({"v": "i32"})
    facts = known(terms, "N", "", "n in 0..N", ranges={"v": ("1", "N")})
    inner = (Affine(terms.poly("n - 1")),)

    def proved(mode: Mode | None) -> bool:
        load = Load("v", inner, (mode,), terms.arrays["v"])
        return facts.nonneg(facts.poly(load) - 1)  # type: ignore[operator]

    assert proved(Mode("edge"))
    assert not proved(Mode("checked"))
    assert not proved(Mode("constant", Const(0, terms.arrays["v"])))
    assert proved(Mode("constant", Const(1, terms.arrays["v"])))


# -- names, definitions, scopes ---------------------------------------------------------------------------------------


def test_let_is_a_substitution() -> None:
    """An integer let may stand in an affine subscript and as a Ref."""
    terms = Terms(refs={"t": "i64"})
    facts = known(terms, "N", "", "i in 1..N", lets={"t": "i - 1"})
    assert judge(facts, Affine(Poly.of("t")), terms.poly("N - 1")).verdict == "proved"
    assert judge(facts, terms.expr("t"), terms.poly("N - 1")).verdict == "proved"
    assert judge(facts, Affine(Poly.of("t") + 1), terms.poly("N - 1")).verdict == "wrong"


def test_definitions_nest() -> None:
    """Definitions are looked through at computed places, and definitions inside them too."""
    terms = Terms({"a": "i64", "b": "i64", "m": "bool"})
    defs = {"a": ("i", "i - 1"), "b": ("j", "a[j + 2] * 2"), "m": ("k", "b[k] < N")}
    facts = known(terms, "N", "", "x in 0..N", "m[x]", defs=defs)
    assert judge(facts, terms.expr("2*x + 2"), terms.poly("N")).verdict == "proved"
    assert judge(facts, terms.expr("b[x]"), terms.poly("N")).verdict == "proved"


def test_values_inside_a_definition_belong_to_its_element() -> None:
    """A fold inside a definition has another value at every element."""
    terms = Terms({"best": "i64"}, {"f": "i64"})
    facts = known(terms, "N K", "", "n in 0..N", defs={"best": ("z", "f")}, refs={"f": ("0", "K - 1")})
    assert judge(facts, terms.expr("best[n]"), terms.poly("K")).verdict == "proved"
    assert facts.zero(facts.poly(terms.expr("best[n]")) - facts.poly(terms.expr("best[n]")))  # type: ignore[operator]
    assert not facts.zero(facts.poly(terms.expr("best[n]")) - facts.poly(terms.expr("best[n + 1]")))  # type: ignore[operator]


def test_definition_does_not_see_the_readers_index() -> None:
    """A fact about the reader's index i says nothing of the definition's own index i."""
    terms = Terms({"a": "i64"})
    facts = known(terms, "N", "", "i in 0..N", "i == 3", defs={"a": ("i", "i")})
    assert facts.zero(facts.poly(terms.expr("a[i]")) - 3)  # type: ignore[operator]
    assert not facts.zero(facts.poly(terms.expr("a[7]")) - 3)  # type: ignore[operator]


def test_an_index_declared_again_is_another() -> None:
    """Facts about the earlier index of the same name are dropped, those of data at it too."""
    terms = Terms({"v": "i32"})
    facts = known(terms, "N M", "", "i in 0..N", "i > 0; v[i] > 0")
    assert facts.nonneg(terms.poly("i - 1")) and facts.nonneg(facts.poly(terms.expr("v[i]")) - 1)  # type: ignore[operator]
    again = facts.index("i", (ZERO,), (Poly.of("M"),))
    assert again.nonneg(terms.poly("M - 1 - i"))
    assert not again.nonneg(terms.poly("i - 1")) and not again.nonneg(terms.poly("N - 1 - i"))
    assert not again.nonneg(again.poly(terms.expr("v[i]")) - 1)  # type: ignore[operator]
    assert facts.nonneg(terms.poly("i - 1"))


def test_sizes() -> None:
    """Values, least and greatest values, multiples."""
    facts = Facts.empty().size("N", least=3, multiple=4, greatest=9).size("K", value=5).size("p", least=None)
    terms = Terms()
    assert facts.nonneg(terms.poly("N - 4")) and not facts.nonneg(terms.poly("N - 5"))
    assert facts.nonneg(terms.poly("8 - N")) and facts.zero(terms.poly("N - 4*(N // 4)"))
    assert facts.zero(terms.poly("K - 5")) and facts.negative(terms.poly("K - N - 2"))
    assert not facts.nonneg(terms.poly("p")) and not facts.negative(terms.poly("p"))


def test_unequal_and_zero() -> None:
    """Extents that are equal, that differ for every size, and neither."""
    terms = Terms()
    facts = known(terms, "N M H D", "H == 2*D; N >= M + 1")
    assert facts.zero(terms.poly("2*(H // 2) - H")) and facts.zero(terms.poly("H // D*D - 2*D"))
    assert facts.unequal(terms.poly("N"), terms.poly("M")) and facts.unequal(terms.poly("2*N + 1"), terms.poly("2*M"))
    assert not facts.unequal(terms.poly("N"), terms.poly("H")) and not facts.zero(terms.poly("N - H"))
    assert not facts.zero(terms.poly("2*(N // 2) - N")) and not facts.unequal(terms.poly("2*(N // 2)"), Poly.of("N"))


def test_contradiction_proves_all() -> None:
    """Where no iteration exists everything holds."""
    terms = Terms()
    facts = known(terms, "N", "", "i in 0..N", "i > 3 and i < 2")
    assert facts.nonneg(terms.poly("-1 - N")) and facts.zero(terms.poly("N - 77"))


DIVISIONS = {
    "rows": ("H D", "", "h in 0..H; d in 0..D", "h*D + d", "D", "h", "d"),
    "planes": ("C H W", "", "c in 0..C; h in 0..H; w in 0..W", "c*H*W + h*W + w", "H*W", "c", "h*W + w"),
    "columns": ("C H W", "", "c in 0..C; h in 0..H; w in 0..W", "c*H*W + h*W + w", "W", "c*H + h", "w"),
    "constants": ("H", "", "h in 0..H; d in 0..6", "12*h + d + 6", "6", "2*h + 1", "d"),
    "small": ("H", "", "h in 0..H", "h", "H", "0", "h"),
    "groups": ("N C G HW", "C % G == 0", "n in 0..N; g in 0..G; k in 0..(C // G)*HW", "(n*G + g)*(C // G)*HW + k",
               "C*HW", "n", "g*(C // G)*HW + k"),
    "quotient as divisor": ("O G", "O % G == 0", "g in 0..G; o in 0..O // G", "g*(O // G) + o", "O // G", "g", "o"),
    "too wide": ("H D", "", "h in 0..H; d in 0..D + 1", "h*D + d", "D", None, None),
    "negative": ("H D", "", "h in 0..H; d in 0..D", "h*D + d - 1", "D", None, None),
    "unknown sign": ("H p?", "", "h in 0..H", "h*p", "p", None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVISIONS)
def test_divide(name: str) -> None:
    """Quotient and rest of flattened indices."""
    sizes, require, loops, num, den, q, r = DIVISIONS[name]
    terms = Terms()
    found = known(terms, sizes, require, loops).divide(terms.poly(num), terms.poly(den))
    assert found == (None if q is None or r is None else (terms.poly(q), terms.poly(r)))


def test_bounds() -> None:
    """Bounds over the kept names, several where several hold."""
    terms = Terms({"v": "i32", "u": "u8"})
    facts = known(terms, "N M", "", "i in 0..N; j in i..N", ranges={"v": ("0", "M - 1")})
    keep = frozenset({"N", "M"})
    assert facts.bounds(terms.expr("2*j - i"), keep) == ((terms.poly("0"),), (terms.poly("2*N - 2"),))
    assert facts.bounds(terms.expr("j"), frozenset({"N", "i"}))[0] == (terms.poly("i"),)
    lo, hi = facts.bounds(terms.expr("v[i] + i"), keep)
    assert terms.poly(0) in lo and terms.poly("N + M - 2") in hi
    assert facts.bounds(terms.expr("f"), keep) == ((), ())
    assert facts.bounds(Op("cast", (terms.expr("u[i]"),), F32), keep) == ((), ())
    two = facts.index("k", (ZERO,), (Poly.of("N"), Poly.of("M")))
    assert set(two.bounds(terms.expr("k"), keep)[1]) == {terms.poly("N - 1"), terms.poly("M - 1")}


def test_poly() -> None:
    """Exact polynomials of expressions; None for floats."""
    terms = Terms({"v": "i32"})
    facts = known(terms, "N", "", "i in 0..N")
    assert facts.poly(terms.expr("i32(i) * 2 + i32(N)")) == terms.poly("2*i + N")
    assert facts.poly(Op("shl", (terms.expr("i"), Const(3, I64)), I64)) == terms.poly("8*i")
    assert facts.poly(Const(constant(1.5, F32), F32)) is None
    assert str(facts.poly(terms.expr("v[i + 1]"))) == "v[i + 1]"


def test_a_condition_that_never_holds_proves_all() -> None:
    """Also where it is one of two, by a name."""
    terms = Terms({})
    facts = known(terms, "N M", "", "")
    never = Op("and", (Const(0, BOOL), Op("lt", (terms.expr("N"), terms.expr("M")), BOOL)), BOOL)
    assert facts.let("e", never).assume(Ref("e", BOOL)).nonneg(terms.poly("-N - 2"))
    assert not facts.let("e", never).assume(Ref("e", BOOL), False).nonneg(terms.poly("-N - 2"))


def test_a_positive_product_has_positive_factors() -> None:
    """What guards the first element of a fold over several axes: `H*W*(C // 2) > 0`."""
    facts = Facts.empty()
    for name in "HWC":
        facts = facts.size(name)
    product = Poly.of("H") * Poly.of("W") * (Poly.of("C") // 2)
    known_positive = facts.assume(Op("gt", (Affine(product), Affine(ZERO)), BOOL))
    for factor in (Poly.of("H"), Poly.of("W"), Poly.of("C") // 2):
        assert known_positive.nonneg(factor - 1)
        assert not facts.nonneg(factor - 1)
    signed = Facts.empty().size("A", least=None).size("B", least=None)
    both = signed.assume(Op("gt", (Affine(Poly.of("A") * Poly.of("B")), Affine(ZERO)), BOOL))
    assert not both.nonneg(Poly.of("A") - 1), "two negative factors have a positive product too"
