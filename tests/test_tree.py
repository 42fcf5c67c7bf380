"""The fixed reduction tree: its definition, and that no way of feeding it changes a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loopfuse.backends.reference import scalar
from loopfuse.backends.reference.tree import LEAF, Tree, cut, reduce

Array = np.ndarray[Any, Any]


def add(a: Any, b: Any) -> Any:
    return np.asarray(a + b)


def label(a: Any, b: Any) -> Any:
    """A combination that shows the shape of the tree."""
    return np.asarray("(" + np.asarray(a, dtype=object) + np.asarray(b, dtype=object) + ")", dtype=object)


def letters(count: int) -> Array:
    return np.array([chr(97 + k % 26) for k in range(count)], dtype=object)


def definition(terms: list[Any], combine: Any) -> Any:
    """Leaves of eight from the left, then neighbours, an odd one carried up."""
    level = []
    for start in range(0, len(terms), 8):
        leaf = terms[start]
        for term in terms[start + 1 : start + 8]:
            leaf = combine(leaf, term)
        level.append(leaf)
    while len(level) > 1:
        pairs = [combine(level[k], level[k + 1]) for k in range(0, len(level) - 1, 2)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def test_shape() -> None:
    assert str(reduce(label, letters(3), 3)) == "((ab)c)"
    assert str(reduce(label, letters(10), 10)) == "((((((((ab)c)d)e)f)g)h)(ij))"
    five = reduce(label, letters(5 * LEAF), 5 * LEAF)
    leaf = [str(reduce(label, letters(5 * LEAF)[k : k + LEAF], LEAF)) for k in range(0, 5 * LEAF, LEAF)]
    assert str(five) == f"((({leaf[0]}{leaf[1]})({leaf[2]}{leaf[3]})){leaf[4]})"


@given(st.integers(1, 150))
@settings(max_examples=60, deadline=None)
def test_agrees_with_its_definition(count: int) -> None:
    terms = letters(count)
    expected = str(definition([np.asarray(t, dtype=object) for t in terms], label))
    assert str(reduce(label, terms, count)) == expected
    places = {k: (np.asarray(t, dtype=object),) for k, t in enumerate(terms)}
    found = scalar.tree(places, lambda a, b: (label(a[0], b[0]),))
    assert found is not None and str(found[0]) == expected


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_blocks_change_no_bits(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    terms = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    whole = reduce(add, terms, count)
    tree, done = Tree(add), 0
    while done < count:
        size = data.draw(st.integers(1, count - done))
        if size == 1:
            tree.add(terms[done])
        else:
            tree.push(terms[done : done + size], size)
        tree.result()  # asking in between must not disturb
        done += size
    assert tree.count == count
    assert np.array_equal(tree.result(), whole)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_skipped_places_hold_the_identity(runs: list[tuple[bool, int]]) -> None:
    rng = np.random.default_rng(0)
    tree, dense = Tree(add), []
    for skip, count in runs:
        part = np.zeros(count) if skip else rng.standard_normal(count)
        dense.append(part)
        if skip:
            tree.skip(count)
        else:
            tree.push(part, count)
    terms = np.concatenate(dense)
    found = tree.result()
    assert tree.count == terms.size
    if found is None:
        assert not terms.any()
    else:
        assert np.array_equal(found, reduce(add, terms, terms.size))


def test_a_longer_tree_extends_a_shorter_one() -> None:
    terms = np.random.default_rng(1).standard_normal(200)
    for count in (1, 7, 8, 9, 100, 199):
        padded = np.concatenate((terms[:count], np.zeros(77)))
        assert reduce(add, terms[:count], count) == reduce(add, padded, padded.size)


def test_the_tree_is_no_left_fold() -> None:
    terms = np.zeros(16, dtype=np.float32)
    terms[0], terms[8:] = 2.0**24, 1.0
    # From the left every 1 is lost beside 2**24; the second leaf sums them first.
    assert reduce(add, terms, 16) == 2.0**24 + 8
    left = terms[0]
    for term in terms[1:]:
        left = left + term
    assert left == 2.0**24


def test_nodes_of_several_parts() -> None:
    values, at = np.array([3.0, 9.0, 4.0, 9.0]), np.arange(4)

    def better(a: Any, b: Any) -> Any:
        take = b[0] > a[0]
        return np.where(take, b[0], a[0]), np.where(take, b[1], a[1])

    assert tuple(float(x) for x in reduce(better, (values, at), 4)) == (9.0, 1.0)
    assert cut((values, at), 2) == (4.0, 2)


def test_nothing() -> None:
    assert reduce(add, np.zeros((0, 2)), 0) is None
    tree = Tree(add)
    tree.skip(1000)
    assert tree.result() is None and tree.count == 1000
