"""What is known at a point of a program, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd

from loopfuse.ir import Expr, Op
from loopfuse.prove.atoms import derive
from loopfuse.prove.bounds import extremes
from loopfuse.prove.conditions import formula
from loopfuse.prove.entail import positive, proves, proves_plain
from loopfuse.prove.equalities import with_quotient, with_zero
from loopfuse.prove.exprs import expr_names, integer, readable
from loopfuse.prove.quotients import apart, numerators
from loopfuse.prove.state import Alternative, Bounds, Context, Fact, Fresh, Loop, State, Tags
from loopfuse.sizes import ONE, ZERO, Poly, Quot


def _start() -> State:
    return State(Context(derive))


@dataclass(frozen=True)
class Facts:
    """An immutable set of facts; methods that learn return a new one, methods that ask never guess.

    Names in polynomials are sizes and integer params (`size`), loop indices (`index`) or integer lets (`let`). All
    answers hold for every value that satisfies the facts; False (or None, or an empty tuple) means "not proved". A
    divisor in index arithmetic is taken to be non-zero.
    """

    state: State = field(default_factory=_start)

    @staticmethod
    def empty() -> Facts:
        """No facts."""
        return Facts()

    # -- declarations -------------------------------------------------------------------------------------------------

    def define(self, buffer: str, indices: tuple[str, ...], value: Expr) -> Facts:
        """A definition that may be looked through: `buffer[indices] = value` (masks, integers, float coordinates)."""
        if not readable(value, definition=True):
            return self
        return Facts(self.state.derive(defs={**self.state.defs, buffer: (indices, value)}))

    def let(self, id: str, value: Expr) -> Facts:
        """`Ref(id)`, or the name `id` in an affine expression, equals `value`."""
        state = _forget(self.state, id)
        if not readable(value, definition=True):
            return Facts(state)
        state = state.derive(lets={**state.lets, id: value})
        found = integer(state, value)
        if found is None or id in state.ctx.free_names(found[0]):
            return Facts(state)
        poly, tags = state.normal(found[0]), found[1]
        if tags:
            gap = Poly.of(id) - poly
            return Facts(state.with_facts([Fact(gap, tags), Fact(-gap, tags)]))
        return Facts(state.with_equality(id, poly))

    def size(
        self,
        name: str,
        least: int | None = 0,
        multiple: int = 1,
        value: int | None = None,
        greatest: int | None = None,
    ) -> Facts:
        """A size or integer param: `least <= name <= greatest`, a multiple of `multiple`, or exactly `value`."""
        state = self.state.derive(sizes=self.state.sizes | {name})
        atom = Poly.of(name)
        if value is not None:
            return Facts(with_zero(state, Fact(atom - value)))
        facts = [] if least is None else [Fact(atom - least)]
        if greatest is not None:
            facts.append(Fact(greatest - atom))
        state = state.with_facts(facts)
        if multiple > 1 and name not in state.subst:
            state = with_quotient(state, Quot(atom, Poly.of(multiple)), ZERO) or state
        return Facts(state)

    def index(self, name: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...], step: Poly = ONE) -> Facts:
        """A loop index of a non-empty loop: at least every `lo`, less than every `hi`."""
        state = _forget(self.state, name)
        stride = state.normal(step)
        sharp = stride == ONE
        if stride.is_const and stride.constant > 1 and len(lo) == 1:
            return Facts(_strided(state, name, lo[0], hi, stride.constant))
        state = state.derive(loops={**state.loops, name: Loop(lo, hi, sharp)})
        atom = Poly.of(name)
        state = state.with_facts([*(Fact(atom - b) for b in lo), *(Fact(b - 1 - atom) for b in hi)])
        return Facts(state.with_facts(_not_empty(state, lo, hi)))

    def value_range(self, buffer: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...]) -> Facts:
        """Every element of an integer buffer lies between every `lo` and every `hi`, inclusive."""
        return Facts(self.state.derive(ranges={**self.state.ranges, buffer: (lo, hi)}))

    def ref_range(self, id: str, lo: tuple[Poly, ...], hi: tuple[Poly, ...]) -> Facts:
        """An opaque integer `Ref` (an argmax, say) lies between every `lo` and every `hi`, inclusive."""
        return Facts(self.state.derive(refs={**self.state.refs, id: (lo, hi)}))

    def assume(self, cond: Expr, truth: bool = True) -> Facts:
        """A condition that holds here (or, with `truth` false, does not); parts that are not understood are skipped."""
        state = self.state
        pending = [(cond, truth)]
        while pending:
            part, truth = pending.pop()
            if isinstance(part, Op) and part.op in (("and", "bitand") if truth else ("or", "bitor")):
                pending += [(part.args[1], truth), (part.args[0], truth)]
            elif isinstance(part, Op) and part.op in ("not", "invert"):
                pending.append((part.args[0], not truth))
            else:
                state = _assumed(state, part, truth)
        return Facts(state)

    # -- questions ----------------------------------------------------------------------------------------------------

    def normal(self, poly: Poly) -> Poly:
        """The polynomial with known equalities substituted; it may hold names made for exact quotients."""
        return self.state.normal(poly)

    def nonneg(self, poly: Poly) -> bool:
        """Proved `poly >= 0`."""
        return self._noted(poly)

    def negative(self, poly: Poly) -> bool:
        """Proved `poly < 0`."""
        return self._noted(-poly - 1)

    def zero(self, poly: Poly) -> bool:
        """Proved `poly == 0`."""
        normal = self.state.normal(poly)
        if normal.is_const:
            return normal.constant == 0
        if not any(normal.quotients()) and proves_plain(self.state, normal) is None:
            return False  # equalities are substituted already, so a polynomial is seldom zero by products of facts
        return self._noted(normal) and self._noted(-normal)

    def unequal(self, a: Poly, b: Poly) -> bool:
        """Proved `a != b`."""
        gap = self.state.normal(a - b)
        if gap.is_const:
            return gap.constant != 0
        if gap.constant % gcd(*(c for m, c in gap.terms if m)):
            return True  # a multiple of the factor never meets the constant
        return self._noted(gap - 1) or self._noted(-gap - 1)

    def poly(self, e: Expr) -> Poly | None:
        """The exact value of an integer expression, opaque parts as atoms; None for another type."""
        found = integer(self.state, e) if readable(e) else None
        if found is None:
            return None
        self._note(found[1], answer=True)
        return found[0]

    def bounds(self, e: Expr, keep: frozenset[str]) -> Bounds:
        """Inclusive bounds (greatest of lows, least of highs) that mention only names in `keep`; empty if unknown."""
        found = integer(self.state, e) if readable(e) else None
        if found is None:
            return (), ()

        def side(upper: bool) -> tuple[Poly, ...]:
            bounds = extremes(self.state, found[0], self._keeps(keep), upper)
            self._note(found[1].union(*(tags for _, tags in bounds)), answer=True)
            return tuple(dict.fromkeys(self.state.restore(bound) for bound, _ in bounds))

        return side(False), side(True)

    def divide(self, num: Poly, den: Poly) -> tuple[Poly, Poly] | None:
        """`(q, r)` with `num == q * den + r` and `0 <= r < den` proved, where terms cancel so; else None."""
        state = self.state
        why = positive(state, state.normal(den))
        if why is None:
            return None
        for n, d in ((num, den), (state.normal(num), state.normal(den))):
            for whole, rest in _splits(n, d):
                if self._noted(rest) and self._noted(d - 1 - rest):
                    self._note(why)
                    return state.restore(whole), state.restore(rest)
        return None

    def used_domains(self) -> frozenset[str]:
        """Buffers whose `value_range` any successful proof so far has used (of this object and its relatives)."""
        return frozenset(self.state.ctx.used)

    def _noted(self, poly: Poly) -> bool:
        why = proves(self.state, poly)
        if why is None:
            return False
        self._note(why)
        return True

    def _note(self, tags: Tags, answer: bool = False) -> None:
        """Count the domains in the tags as used; those of an answer may come back in what is told later."""
        domains = {t for t in tags if isinstance(t, str)}
        self.state.ctx.used |= domains
        if answer:
            self.state.ctx.rested |= domains

    def _keeps(self, keep: frozenset[str]) -> Callable[[str], bool]:
        def kept(name: str) -> bool:
            fresh = self.state.fresh.get(name)
            return name in keep or (fresh is not None and all(map(kept, fresh.names)))

        return kept


def _splits(num: Poly, den: Poly) -> list[tuple[Poly, Poly]]:
    """Ways to write `num == whole * den + rest`."""
    if den.is_const:
        whole = num // den
        if any(q not in set(num.quotients()) for q in whole.quotients()):
            whole = Poly.collect((m, c // den.constant) for m, c in num.terms)
        return [(whole, num - whole * den)]
    whole, rest = num.split(den)
    return [(whole, rest)]


def _assumed(state: State, cond: Expr, truth: bool) -> State:
    """The state where a condition that is no conjunction holds."""
    if not readable(cond):
        return state.derive(unsure=state.unsure | expr_names(state, cond)[0])
    said = formula(state, cond, truth)
    for fact in said.equal:
        state = with_zero(state, fact)
    facts = [*said.facts, *(f for fact in said.facts for f in _factors(state, fact))]
    facts += (f for fact in said.unequal for f in apart(state, fact))
    state = state.with_facts(facts)
    facts += (Fact(sign * fact.poly, fact.tags) for fact in said.equal for sign in (1, -1))
    state = state.with_facts(f for fact in facts for f in numerators(state, fact))
    unequal = tuple(f for f in map(state.normal_fact, said.unequal) if not (f.poly.is_const and f.poly.constant))
    splits = tuple(tuple(_alternative(state, a) for a in s) for s in said.splits)
    if not (unequal or splits or said.unsure - state.unsure):
        return state
    return state.derive(
        unequal=(*state.unequal, *unequal), splits=(*state.splits, *splits), unsure=state.unsure | said.unsure
    )


def _alternative(state: State, facts: Alternative) -> Alternative:
    """An alternative in normal form, with what it says of the numerators of quotients."""
    return (*map(state.normal_fact, facts), *(f for fact in facts for f in numerators(state, fact)))


def _not_empty(state: State, lo: tuple[Poly, ...], hi: tuple[Poly, ...]) -> list[Fact]:
    """What a loop that has an iteration says of the numerators in its bounds, apart from its index."""
    return [f for a in lo for b in hi for f in numerators(state, Fact(b - a - 1))]


def _factors(state: State, fact: Fact) -> list[Fact]:
    """A product of what is not negative that is at least 1 has factors that are: `a * b > 0` says `a >= 1` and `b >= 1`."""
    poly = state.normal(fact.poly)
    terms = [(m, c) for m, c in poly.terms if m]
    if len(terms) != 1 or len(terms[0][0]) < 2 or terms[0][1] < 0 or poly.constant >= 0:
        return []
    found: list[Fact] = []
    for atom in dict.fromkeys(terms[0][0]):
        why = proves(state, Poly.of(atom))
        if why is None:
            return []
        found.append(Fact(Poly.of(atom) - 1, fact.tags | why))
    return found


def _strided(state: State, name: str, lo: Poly, hi: tuple[Poly, ...], step: int) -> State:
    """An index that takes every step-th value: `lo + step * k` with a fresh index k."""
    count = f"{name}/{step}"
    state = _forget(state, count)
    trips = tuple((b - lo + (step - 1)) // step for b in hi)
    loops = {**state.loops, name: Loop((lo,), hi, False), count: Loop((ZERO,), trips, True)}
    k = Poly.of(count)
    fresh = {**state.fresh, count: Fresh(Poly.of(name), Poly.of(step), state.normal(lo))}
    state = state.derive(loops=loops, fresh=fresh).with_equality(name, state.normal(lo) + step * k)
    state = state.with_facts([Fact(k), *(Fact(b - 1 - lo - step * k) for b in hi)])
    return state.with_facts(_not_empty(state, (lo,), hi))


def _forget(state: State, name: str) -> State:
    """Drop what is known of another variable that had the same name."""
    if not (name in state.loops or name in state.lets or name in state.subst or name in state.refs):
        return state

    gone = state.dependents({name})

    def free(*polys: Poly) -> bool:
        return not any(gone & state.ctx.free_names(p) for p in polys)

    def kept(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
        return tuple(f for f in facts if free(f.poly))

    return state.derive(
        loops={n: loop for n, loop in state.loops.items() if n != name and free(*loop.lo, *loop.hi)},
        subst={n: p for n, p in state.subst.items() if n not in gone},
        facts=kept(state.facts),
        unequal=kept(state.unequal),
        splits=tuple(s for s in state.splits if all(len(kept(a)) == len(a) for a in s)),
        defs={b: d for b, d in state.defs.items() if not (gone - set(d[0])) & expr_names(state, d[1])[0]},
        lets={n: e for n, e in state.lets.items() if n != name and not gone & expr_names(state, e)[0]},
        ranges={b: r for b, r in state.ranges.items() if free(*r[0], *r[1])},
        refs={n: r for n, r in state.refs.items() if n != name and free(*r[0], *r[1])},
    )
