"""What follows from facts: linear reasoning over monomials, floor quotients, products on demand, case splits.

A goal is negated and refuted. Rows near the goal are gathered first; then what the atoms in them are known to be (the
floor of a quotient, the range of an opaque value); then products of facts with non-negative monomials and with each
other, for the monomials that are still needed; last, the alternatives of splits one by one. Every step is sound over
the integers; none is complete, and fuel bounds the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loopfuse.prove.linear import Monomial, Row, infeasible
from loopfuse.prove.state import NO_TAGS, Alternative, Derived, Fact, Split, State, Tag, Tags
from loopfuse.sizes import Poly, Quot

_LINEAR, _PRODUCTS, _PAIRS, _SPLITS = range(4)
_NEAR_ROWS = 90
_MOST_ROWS = 110
_MOST_PAIRED = 24
_MOST_WORK = 8_000  # entries of the table that one refutation may touch
_FUEL = 30_000  # the same for all refutations of one question, those inside it included


def proves(state: State, goal: Poly, conditional: bool = False) -> Tags | None:
    """What a proof of `goal >= 0` rests on, or None without a proof.

    With `conditional`, facts that rest on unpromised conditions may be used; the tags then name the conditions.
    """
    return _fuelled(state, goal, conditional, _SPLITS)


def proves_fast(state: State, goal: Poly) -> Tags | None:
    """A proof without splits or products of facts, for questions that come up inside other proofs."""
    return _fuelled(state, goal, False, _PRODUCTS)


def proves_plain(state: State, goal: Poly) -> Tags | None:
    """A proof by linear reasoning alone."""
    return _fuelled(state, goal, False, _LINEAR)


def _fuelled(state: State, goal: Poly, conditional: bool, level: int) -> Tags | None:
    if state.ctx.fuel is not None:
        return _prove(state, goal, conditional, level)
    state.ctx.fuel = _FUEL
    try:
        return _prove(state, goal, conditional, level)
    finally:
        state.ctx.fuel = None


def positive(state: State, den: Poly) -> Tags | None:
    """Why a divisor is at least 1, or None. A divisor of sizes alone is non-zero by requirement."""
    if den.is_const:
        return NO_TAGS if den.constant >= 1 else None
    least = 0 if state.only_sizes(den) else 1
    return proves_fast(state, den - least)


def _prove(state: State, goal: Poly, conditional: bool, level: int) -> Tags | None:
    goal = state.normal(goal)
    if goal.is_const and goal.constant >= 0:
        return NO_TAGS
    key = (goal, conditional)
    known = state.memo.get(key)
    if known is not None:
        found, tried = known
        if found is not None or tried >= level:
            result: Tags | None = found
            return result
    state.memo[key] = (None, level)  # a question inside its own answer is answered "not proved"
    result = _lookup(state, goal)
    if result is None:
        result = _Search(state, goal, conditional).run(level)
    state.memo[key] = (result, level)
    return result


def _lookup(state: State, goal: Poly) -> Tags | None:
    """A fact that is the goal but for its constant, or one that is never true."""
    table = state.memo.get("table")
    if table is None:
        table = state.memo["table"] = {}
        for fact in state.facts:
            terms, constant = _body(fact.poly)
            if terms not in table or constant < table[terms][0]:
                table[terms] = (constant, fact.tags)
    terms, constant = _body(goal)
    for found, limit in ((table.get(terms), constant), (table.get(()), -1)):  # below 0: nothing ever happens here
        if found is not None and found[0] <= limit and not any(isinstance(t, Poly) for t in found[1]):
            tags: Tags = found[1]
            return tags
    return None


def _body(poly: Poly) -> tuple[object, int]:
    constant = poly.constant
    return (poly.terms[:-1] if constant else poly.terms), constant


def quotient_facts(state: State, quot: Quot) -> Derived:
    """`den * q <= num <= den * q + den - 1`, and the signs that follow."""
    q = Poly.of(quot)
    why = positive(state, quot.den)
    if why is None:
        return Derived()
    facts = [Fact(quot.num - quot.den * q, why), Fact(quot.den * q + quot.den - 1 - quot.num, why)]
    if not quot.den.is_const:
        facts.append(Fact(quot.den - 1, why))
        sign = proves_fast(state, quot.num)
        if sign is not None:
            facts += [Fact(q, why | sign), Fact(quot.num - q, why | sign)]
        less = proves_fast(state, quot.den - 1 - quot.num)
        if less is not None:
            facts.append(Fact(-q, why | less))
    return Derived(tuple(facts))


def derived(state: State, atom: str | Quot) -> Derived:
    """What holds of an atom by what it is."""
    key = ("atom", atom)
    found: Derived | None = state.memo.get(key)
    if found is None:
        state.memo[key] = Derived()  # no facts of itself while they are worked out
        found = quotient_facts(state, atom) if isinstance(atom, Quot) else state.ctx.derive(state, atom)
        facts = tuple(map(state.normal_fact, found.facts))
        splits = tuple(tuple(tuple(map(state.normal_fact, a)) for a in s) for s in found.splits)
        found = state.memo[key] = Derived(facts, splits)
    return found


class _Search:
    """The rows gathered for one goal."""

    def __init__(self, state: State, goal: Poly, conditional: bool) -> None:
        self.state, self.ctx, self.conditional = state, state.ctx, conditional
        self.rows: list[Row] = []
        self.tags: list[Tags] = []
        self.seen: set[tuple[frozenset[tuple[Monomial, int]], int]] = set()
        self.by_monomial: dict[Monomial, list[int]] = {}
        self.queue: list[Monomial] = []
        self.met: set[int] = set()
        self.splits: list[Split] = []
        self.multiplied: set[tuple[int, Monomial]] = set()
        self.first = 0
        self.signs: dict[int, Tags | None] = {}
        self.limit = _NEAR_ROWS
        row = self.ctx.row(-goal - 1)
        self.goal = frozenset(row.terms)
        self.add(row, NO_TAGS)

    # -- gathering ----------------------------------------------------------------------------------------------------

    def add(self, row: Row, tags: Tags) -> None:
        """Take a row in, and put its monomials on the list of those to look into."""
        row = row.tight()
        if (not row.terms and row.constant >= 0) or len(self.rows) >= self.limit:
            return
        if not self.conditional and any(isinstance(t, Poly) for t in tags):
            return
        key = (frozenset(row.terms.items()), row.constant)
        if key in self.seen:
            return
        self.seen.add(key)
        for monomial in row.terms:
            if monomial not in self.by_monomial:
                self.by_monomial[monomial] = []
                self.queue.append(monomial)
            self.by_monomial[monomial].append(len(self.rows))
        self.rows.append(row)
        self.tags.append(tags)

    def add_fact(self, fact: Fact) -> None:
        """Take a fact in."""
        self.add(self.ctx.row(fact.poly), fact.tags)

    def close(self) -> None:
        """Take in all facts that share a monomial with the rows here, and what is known of their atoms."""
        index = self.state.index()
        while self.queue:
            monomial = self.queue.pop(0)
            for number in monomial:
                if number not in self.met:
                    self.met.add(number)
                    known = derived(self.state, self.ctx.by_number[number])
                    self.splits += known.splits
                    for fact in known.facts:
                        self.add_fact(fact)
            for fact in index.get(monomial, ()):
                self.add_fact(fact)

    def nonneg(self, number: int) -> Tags | None:
        """Why an atom is non-negative."""
        if number not in self.signs:
            self.signs[number] = _prove(self.state, Poly.of(self.ctx.by_number[number]), False, _LINEAR)
        return self.signs[number]

    def nonneg_all(self, monomial: Monomial) -> Tags | None:
        """Why a monomial is non-negative: all its atoms are."""
        tags = NO_TAGS
        for number in set(monomial):
            if monomial.count(number) % 2 == 0:
                continue
            why = self.nonneg(number)
            if why is None:
                return None
            tags |= why
        return tags

    def multiply(self) -> None:
        """Products of rows with non-negative monomials, for the monomials of degree two and more."""
        index = self.state.index()
        for monomial in [m for m in self.by_monomial if len(m) > 1]:
            for part, rest in _parts(monomial):
                if len(self.rows) >= self.limit:
                    return
                for fact in index.get(part, ()):
                    self.add_fact(fact)
                rows = self.by_monomial.get(part, []) if part else [-1]
                rows = [i for i in rows if (i, rest) not in self.multiplied]
                why = self.nonneg_all(rest) if rows else None
                if why is None:
                    continue
                for i in rows:
                    self.multiplied.add((i, rest))
                    if i < 0:
                        self.add(Row({rest: 1}, 0), why)
                    else:
                        self.add(self.rows[i].times(rest), self.tags[i] | why)

    def pair(self) -> None:
        """Products of two short rows of the first round that speak of monomials already here, and of no others."""
        short = [i for i, row in enumerate(self.rows[: self.first]) if len(row.terms) <= 3][:_MOST_PAIRED]
        for at, i in enumerate(short):
            for j in short[at:]:
                product = self.rows[i].product(self.rows[j])
                if product.terms.keys() <= self.by_monomial.keys():
                    self.add(product, self.tags[i] | self.tags[j])

    def spent(self) -> bool:
        """Whether the work allowed to the question is used up."""
        return self.ctx.fuel is None or self.ctx.fuel <= 0

    # -- refuting -----------------------------------------------------------------------------------------------------

    def refute(self) -> Tags | None:
        """Why the rows contradict each other, or None."""
        if self.spent():
            return None
        found, work = infeasible(self.rows, _MOST_WORK)
        self.ctx.fuel = (self.ctx.fuel or 0) - work - 10 * len(self.rows)
        return None if found is None else frozenset[Tag]().union(*(self.tags[i] for i in found))

    def run(self, level: int) -> Tags | None:
        """Try harder and harder, up to a level."""
        self.close()
        self.first = len(self.rows)
        result = self.refute()
        if result is not None or level == _LINEAR:
            return result
        result = self.grow(self.multiply) if any(len(m) > 1 for m in self.by_monomial) else None
        if result is not None or level == _PRODUCTS:
            return result
        if any(len(m) > 1 for m in self.by_monomial):
            result = self.grow(self.pair)
        if result is not None or level == _PAIRS:
            return result
        return self.split(self.relevant_splits(), 3)

    def grow(self, step: Callable[[], None]) -> Tags | None:
        """Two rounds of products, with what they bring in."""
        self.limit = _MOST_ROWS
        for _ in range(2):
            before = len(self.rows)
            step()
            self.close()
            if len(self.rows) == before:
                return None
            result = self.refute()
            if result is not None:
                return result
        return None

    # -- splits -------------------------------------------------------------------------------------------------------

    def relevant_splits(self) -> list[Split]:
        """Splits that touch the rows here, those nearest the goal first."""
        splits = list(self.splits)
        for fact in self.state.unequal:
            splits.append(((Fact(fact.poly - 1, fact.tags),), (Fact(-fact.poly - 1, fact.tags),)))
        splits += self.state.splits
        near, far = [], []
        for split in splits:
            touched = {m for alternative in split for fact in alternative for m in self.ctx.row(fact.poly).terms}
            if touched & self.goal:
                near.append(split)
            elif not touched.isdisjoint(self.by_monomial):
                far.append(split)
        return near + far

    def split(self, splits: list[Split], depth: int) -> Tags | None:
        """Prove the goal under each alternative of some split."""
        if depth == 0:
            return None
        for at, split in enumerate(splits):
            tags: Tags | None = NO_TAGS
            for alternative in split:
                found = self.under(alternative, splits[at + 1 :], depth)
                tags = None if found is None or tags is None else tags | found
                if tags is None:
                    break
            if tags is not None:
                return tags
            if self.spent():
                return None
        return None

    def under(self, alternative: Alternative, splits: list[Split], depth: int) -> Tags | None:
        """Prove the goal under one alternative, splitting on if need be."""
        rows, known = len(self.rows), len(self.splits)
        mark = ({m: list(v) for m, v in self.by_monomial.items()}, set(self.seen), set(self.met), set(self.multiplied))
        for fact in alternative:
            self.add_fact(fact)
        self.close()
        result = self.refute()
        if result is None and any(len(m) > 1 for m in self.by_monomial):
            result = self.grow(self.multiply)
        if result is None:
            result = self.split([*splits, *self.splits[known:]], depth - 1)
        self.by_monomial, self.seen, self.met, self.multiplied = mark
        del self.rows[rows:], self.tags[rows:], self.splits[known:]
        self.queue.clear()
        return result


def _parts(monomial: Monomial) -> Iterator[tuple[Monomial, Monomial]]:
    """The ways to write a monomial as a product of two, the second not one."""
    size = len(monomial)
    if size > 5:
        return
    found = set()
    for mask in range((1 << size) - 1):
        part = tuple(a for i, a in enumerate(monomial) if mask >> i & 1)
        if part not in found:
            found.add(part)
            yield part, tuple(a for i, a in enumerate(monomial) if not mask >> i & 1)
