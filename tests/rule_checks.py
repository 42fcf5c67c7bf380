"""Trying rules: both sides of every instance that a rule claims, evaluated by the op table on nasty values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np
from op_samples import few, nasty, same

from loopfuse.dtypes import DType
from loopfuse.ir import Affine, Const, Expr, Op, Ref, Select
from loopfuse.ops import OPS, from_bits, to_bits
from loopfuse.passes.patterns import Types, variables
from loopfuse.passes.rulefile import Spec
from loopfuse.rewrite import children, subexprs

Array = np.ndarray[Any, np.dtype[Any]]


def evaluate(root: Expr, values: Mapping[str, Array]) -> Array:
    """An expression without loads on arrays that broadcast."""
    found: dict[int, Array] = {}
    for node in subexprs(root):
        args = [found[id(c)] for c in children(node)]
        if isinstance(node, Const):
            found[id(node)] = np.asarray(from_bits(node.bits, node.dtype))
        elif isinstance(node, Ref):
            found[id(node)] = values[node.id]
        elif isinstance(node, Select):
            found[id(node)] = np.asarray(np.where(*args))
        elif isinstance(node, Op):
            found[id(node)] = OPS[node.op].evaluate(args, node.dtype)
        else:
            assert isinstance(node, Affine) and node.poly.is_const
            found[id(node)] = np.asarray(np.int64(node.poly.constant))
    return found[id(root)]


def samples(names: list[str], types: Mapping[str, DType]) -> dict[str, Array]:
    """Every combination of nasty values of some variables, as arrays that broadcast."""
    pick = few if len(names) > 2 else nasty
    shapes = [[-1 if n == k else 1 for k in range(len(names))] for n in range(len(names))]
    return {name: pick(types[name]).reshape(shape) for name, shape in zip(names, shapes, strict=True)}


def constants(spec: Spec, types: Mapping[str, DType]) -> Iterator[dict[str, Expr]]:
    """Values for the metavariables of a rule that stand for constants."""
    names = sorted(spec.constants)
    lists = [[Const(to_bits(v, types[n]), types[n]) for v in nasty(types[n])] for n in names]
    for chosen in product(*lists):
        yield dict(zip(names, chosen, strict=True))


def instances(spec: Spec, assignment: Types) -> Iterator[tuple[Expr, Expr]]:
    """What the rule makes of its own left side at some types, for all constants: before and after."""
    types = {n: assignment[spec.slots.root(n)] for n in variables(spec.lhs)}
    rule = spec.rule()
    for values in constants(spec, types):
        for implied in (False, True):
            before = spec.example(assignment, values, implied)
            after = rule.apply(before) if before is not None else None
            if before is not None and after is not None:
                yield before, after


def refuted(spec: Spec, assignment: Types) -> str | None:
    """A value at which the two sides of an instance differ (any NaN agreeing with any), or None."""
    types = {n: assignment[spec.slots.root(n)] for n in variables(spec.lhs)}
    names = sorted(types.keys() - spec.constants)
    values = samples(names, types)
    for before, after in instances(spec, assignment):
        left, right = evaluate(before, values), evaluate(after, values)
        if left.dtype != right.dtype:
            return f"{spec.text}: {left.dtype} became {right.dtype}"
        wrong = np.argwhere(~same(*np.broadcast_arrays(left, right)))
        if len(wrong):
            return f"{spec.text} at {', '.join(f'{n}: {t}' for n, t in types.items())}"
    return None


def wrong_claims(specs: tuple[Spec, ...], most: int | None = None) -> list[str]:
    """The claims of some rules that have a counterexample."""
    found = [refuted(spec, types) for spec in specs for types in islice(spec.claims(), most)]
    return [one for one in found if one]
