"""The abstract search: against the optimum, against order, on constraints, and at size."""

from __future__ import annotations

import itertools
import random
from statistics import mean

import pytest
from fusion_graphs import Model

from loopfuse.passes.fuse.partition import Components, Quotient, bits
from loopfuse.passes.fuse.search import Effort, Graph, Partition, Ways, mix, search

HEURISTIC = Effort(exhaustive=False, budget=None)


def optimum(model: Model) -> float:
    """The cost of the best partition, by dynamic programming over all groups."""
    graph = model.graph()
    masks = Components([sum(1 << m for m in after) for after in graph.after], graph.links)
    total = 0.0
    for nodes in masks.components():
        groups = {m: c for m in masks.connected(nodes) if (c := model.cost(frozenset(bits(m)))) is not None}
        total += sum(groups[m] for m in Ways(masks, nodes, list(groups)).cheapest(groups))
    return total


def check(model: Model, found: Partition) -> None:
    """Every nest once, legal groups, in an order that can run."""
    graph = model.graph()
    assert sorted(n for g in found.groups for n in g) == list(range(model.count))
    costs = [model.cost(g) for g in found.groups]
    assert None not in costs
    assert sum(c for c in costs if c is not None) == pytest.approx(found.cost)
    at = {n: i for i, g in enumerate(found.groups) for n in g}
    assert all(at[a] <= at[b] for a, after in enumerate(graph.after) for b in after)


def partitions(nodes: list[int]) -> list[list[set[int]]]:
    """All partitions of a few nodes."""
    if not nodes:
        return [[]]
    first, *rest = nodes
    found = []
    for part in partitions(rest):
        found.append([{first}, *part])
        found += [[*part[:i], part[i] | {first}, *part[i + 1 :]] for i in range(len(part))]
    return found


def brute(model: Model) -> float:
    """The optimum by trying every partition into connected groups whose quotient has no cycle."""
    graph = model.graph()
    masks = Components([sum(1 << m for m in after) for after in graph.after], graph.links)
    best = float("inf")
    for part in partitions(list(range(model.count))):
        sets = [sum(1 << n for n in g) for g in part]
        costs = [model.cost(frozenset(g)) for g in part]
        if None in costs or any(len(list(masks.pieces(m))) > 1 for m in sets) or not masks.acyclic(sets):
            continue
        best = min(best, sum(c for c in costs if c is not None))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_search_is_exact(seed: int) -> None:
    model = Model(1000 + seed, 6)
    found = search(model.graph(), model.cost, Effort(budget=None))
    check(model, found)
    assert found.exact
    assert found.cost == pytest.approx(brute(model))


def test_the_mean_gap_on_graphs_of_eight_is_small() -> None:
    gaps = []
    for seed in range(150):
        model = Model(seed, 8)
        found = search(model.graph(), model.cost, HEURISTIC)
        check(model, found)
        gaps.append(found.cost / optimum(model) - 1)
    assert min(gaps) > -1e-9
    assert mean(gaps) < 0.005


@pytest.mark.parametrize("count", [11, 12])
def test_the_mean_gap_on_graphs_of_a_dozen_is_small(count: int) -> None:
    gaps = []
    for seed in range(12):
        model = Model(seed, count)
        found = search(model.graph(), model.cost, HEURISTIC)
        check(model, found)
        gaps.append(found.cost / optimum(model) - 1)
    assert min(gaps) > -1e-9
    assert mean(gaps) < 0.005


@pytest.mark.parametrize("effort", [HEURISTIC, Effort(), Effort(exhaustive=False, budget=20, seed=3)])
@pytest.mark.parametrize("seed", range(6))
def test_the_numbers_of_the_nests_do_not_matter(seed: int, effort: Effort) -> None:
    model = Model(seed, 9)
    order = list(range(model.count))
    random.Random(seed).shuffle(order)
    names = dict(enumerate(order))
    back = {v: k for k, v in names.items()}
    plain = search(model.graph(), model.cost, effort)
    other = search(model.graph(names), lambda g: model.cost(frozenset(back[n] for n in g)), effort)
    assert other.cost == plain.cost
    assert {frozenset(back[n] for n in g) for g in other.groups} == set(plain.groups)


def test_no_more_groups_are_costed_than_the_budget_allows_and_none_twice() -> None:
    model = Model(5, 14)
    asked: list[frozenset[int]] = []

    def cost(group: frozenset[int]) -> float | None:
        asked.append(group)
        return model.cost(group)

    found = search(model.graph(), cost, Effort(budget=40))
    check(model, found)
    assert len(asked) == len(set(asked))
    assert sum(len(g) > 1 for g in asked) <= 40


@pytest.mark.parametrize("seed", range(10))
def test_a_bound_saves_questions_and_changes_nothing(seed: int) -> None:
    model = Model(seed, 9)
    asked: set[frozenset[int]] = set()

    def cost(group: frozenset[int]) -> float | None:
        asked.add(group)
        return model.cost(group)

    plain = search(model.graph(), cost, Effort(budget=None))
    every = len(asked)
    asked.clear()
    found = search(model.graph(), cost, Effort(budget=None), lambda g: 0.9 * model.seconds(g))
    check(model, found)
    assert found.exact
    assert found.cost == pytest.approx(plain.cost)
    assert len(asked) < every


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_does_not_lead_the_heuristic_astray(seed: int) -> None:
    model = Model(seed, 12)
    plain = search(model.graph(), model.cost, HEURISTIC)
    found = search(model.graph(), model.cost, HEURISTIC, model.seconds)
    check(model, found)
    assert found.cost <= plain.cost * 1.02


def test_two_nests_with_a_third_between_them_are_not_one_group() -> None:
    # 0 -> 1 -> 2 and 0 -> 2, where 1 fits with neither.
    graph = Graph((frozenset({1, 2}), frozenset({2}), frozenset()), frozenset(), (1, 2, 3))

    def cost(group: frozenset[int]) -> float | None:
        return None if 1 in group and len(group) > 1 else 1.0

    for effort in (Effort(), HEURISTIC):
        assert search(graph, cost, effort).groups == (frozenset({0}), frozenset({1}), frozenset({2}))


def test_nests_that_share_nothing_stay_apart() -> None:
    graph = Graph((frozenset(), frozenset()), frozenset(), (1, 2))
    assert len(search(graph, lambda g: 1.0).groups) == 2
    assert len(search(Graph(graph.after, frozenset({(0, 1)}), graph.keys), lambda g: 1.0).groups) == 1


def test_a_group_that_only_three_can_form_is_found() -> None:
    graph = Graph((frozenset({1}), frozenset({2}), frozenset()), frozenset(), (1, 2, 3))

    def cost(group: frozenset[int]) -> float | None:
        return {1: 1.0, 2: None, 3: 1.5}[len(group)]

    assert search(graph, cost, HEURISTIC).groups == (frozenset({0, 1, 2}),)


def test_the_seed_is_all_that_is_random() -> None:
    model = Model(7, 12)
    assert search(model.graph(), model.cost, HEURISTIC) == search(model.graph(), model.cost, HEURISTIC)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_stay_an_order_while_groups_merge(seed: int) -> None:
    draw = random.Random(seed)
    graph = Model(seed, 14).graph()
    masks = Components([sum(1 << m for m in after) for after in graph.after], graph.links)
    quotient = Quotient(masks, [1 << n for n in range(14)])
    for _ in range(10):
        pairs = [(a, b) for a, b in itertools.combinations(sorted(quotient.masks), 2)]
        a, b = draw.choice(pairs)
        merged = [m for g, m in quotient.masks.items() if g not in (a, b)] + [quotient.masks[a] | quotient.masks[b]]
        assert quotient.joinable(a, b) == masks.acyclic(merged)
        if quotient.joinable(a, b):
            quotient.join(a, b)
        assert all(quotient.rank[g] < quotient.rank[h] for g in quotient.masks for h in quotient.after[g])
        assert all(g in quotient.before[h] for g in quotient.masks for h in quotient.after[g])


def test_a_long_chain_is_cut_where_it_must_be() -> None:
    count = 600
    after = tuple(frozenset({n + 1} if n + 1 < count else ()) for n in range(count))
    graph = Graph(after, frozenset(), tuple(range(count)))
    found = search(graph, lambda g: None if len(g) > 6 else 2.0 + 0.1 * len(g), Effort(restarts=1, budget=None))
    assert all(len(g) <= 6 for g in found.groups)
    assert len(found.groups) < count / 3


def siblings(count: int) -> Graph:
    """Nests that read one input and nothing of one another, each linked with a few."""
    links = {(n, n + step) for n in range(count) for step in (1, 2, 3, 4, 8, 16, 32) if n + step < count}
    return Graph((frozenset(),) * count, frozenset(links), tuple(mix(n) for n in range(count)))


@pytest.mark.parametrize("count", [30, 90])
def test_what_a_wide_program_costs_grows_with_its_nests(count: int) -> None:
    asked: list[int] = []

    def cost(group: frozenset[int]) -> float | None:
        asked.append(len(group))
        return least(group) + 0.4 * len(group)  # the bound is far from the cost, as that of many kernels is

    def least(group: frozenset[int]) -> float:
        return 2.0 + 4.0 + len(group)  # a launch, the input once, a result each

    found = search(siblings(count), cost, Effort(budget=4 * count), least)
    assert len(found.groups) == 1
    assert max(map(len, found.groups)) <= 128
    assert sum(asked) <= 129 * count
    assert found.steps <= 1001 * count


def test_a_search_that_ends_at_a_limit_says_so_and_takes_what_it_has() -> None:
    graph = siblings(16)

    def cost(group: frozenset[int]) -> float:
        return 2.0 + len(group)

    whole = search(graph, cost, Effort(restarts=1), cost)
    assert (len(whole.groups), whole.cut) == (1, ())
    for effort in (Effort(budget=5), Effort(work=2), Effort(steps=1)):
        some = search(graph, cost, effort, cost)
        assert some.cut == (frozenset(range(16)),)
        assert sorted(n for g in some.groups for n in g) == list(range(16))
        assert some == search(graph, cost, effort, cost)
