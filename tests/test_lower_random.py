"""Random typed programs: the loop IR is valid, and computes the bits that the definitions say."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scalar_runs import arrays, run_ir, run_typed
from typed_terms import CHECKED, A, T, buf, define, dim, fn, fold, names, program, ref, term

from loopfuse.backends import reference
from loopfuse.dtypes import BOOL, I64, DType
from loopfuse.frontend.lower import lower
from loopfuse.frontend.typed import Define, Fold, Scan, Stmt, TypedProgram
from loopfuse.ir import Buffer, Const, Expr, Select
from loopfuse.printer import print_program
from loopfuse.rewrite import subexprs
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.verify import violations

N, M, L, t = names("N M L t")
EXTENTS = {"i": N, "j": M}
Needs = frozenset[str]
FALSE = Const(0, BOOL)


@dataclass
class Made:
    """A term with what must hold where it is evaluated: indices in scope, conditions, sizes that are not zero."""

    term: T
    needs: Needs


@dataclass
class Maker:
    """Makes one program from a source of choices."""

    rng: Random
    arrays: dict[str, tuple[Poly, ...]] = field(default_factory=lambda: {"x": (N,), "z": (N, M), "w": (M,)})
    lead: dict[str, tuple[Poly, ...]] = field(default_factory=dict)
    pool: list[Made] = field(default_factory=list)
    folds: dict[str, Fold] = field(default_factory=dict)
    conds: dict[str, T] = field(default_factory=dict)
    count: int = 0

    # -- terms ----------------------------------------------------------------------------------------------------

    def float_term(self, levels: int, scope: dict[str, Poly], held: tuple[str, ...]) -> Made:
        """A float: from the pool, or a new one. `held` names the conditions around."""
        here = {*scope, *held, *(str(e) for e in scope.values())}
        if self.pool and self.rng.random() < 0.3:
            known = self.rng.choice(self.pool)
            if known.needs <= here:
                return known
        if levels == 0 or self.rng.random() < 0.15:
            made = self.leaf(scope, held)
        else:
            step = self.rng.choice([self.operation, self.operation, self.choice, self.reduction])
            made = step(levels - 1, scope, held)
        self.pool.append(made)
        return made

    def leaf(self, scope: dict[str, Poly], held: tuple[str, ...]) -> Made:
        if self.rng.random() < 0.2:
            return Made(term(float(self.rng.randrange(-2, 3))), frozenset())
        id = self.rng.choice(sorted(self.arrays))
        subs: list[object] = list(self.lead.get(id, ()))
        needs: set[str] = {p.name for p in subs if isinstance(p, Poly) and p.name} & {"t"}
        for extent in self.arrays[id]:
            fitting = [name for name, e in scope.items() if e == extent]
            if not fitting:
                subs.append((Poly.of(self.rng.randrange(3)), CHECKED))
                continue
            name = self.rng.choice(fitting)
            kind = self.rng.random()
            if kind < 0.2:
                subs.append(ZERO)
                needs.add(str(extent))
            elif kind < 0.5 and f"{name} >= 1" in held:
                subs.append(Poly.of(name) - 1)
                needs |= {name, f"{name} >= 1"}
            else:
                subs.append(Poly.of(name))
                needs.add(name)
        return Made(A(id)[tuple(subs)] if subs else A(id)[()], frozenset(needs))

    def operation(self, levels: int, scope: dict[str, Poly], held: tuple[str, ...]) -> Made:
        a = self.float_term(levels, scope, held)
        if self.rng.random() < 0.3:
            return Made(fn(self.rng.choice(["sin", "abs", "neg"]), a.term), a.needs)
        b = self.float_term(levels, scope, held)
        name = self.rng.choice(["add", "mul", "sub", "maximum"])
        return Made(fn(name, a.term, b.term), a.needs | b.needs)

    def condition(self, levels: int, scope: dict[str, Poly], held: tuple[str, ...]) -> tuple[T, Needs, str | None]:
        """A condition, what it needs, and its name if it is one that reads may rest on."""
        if scope and self.rng.random() < 0.5:
            name = self.rng.choice(sorted(scope))
            id = f"{name} >= 1"
            self.conds.setdefault(id, term(Poly.of(name)) >= 1)
            if self.rng.random() < 0.4:
                more, needs, _ = self.condition(0, scope, (*held, id))
                return T(Select(self.conds[id].e, more.e, FALSE)), (needs - {id}) | {name}, None
            return self.conds[id], frozenset({name}), id
        a = self.float_term(levels, scope, held)
        if self.rng.random() < 0.3:
            b = self.float_term(0, scope, held)
            return (a.term > 0.5).both(b.term < 1.0), a.needs | b.needs, None
        return a.term > 0.5, a.needs, None

    def choice(self, levels: int, scope: dict[str, Poly], held: tuple[str, ...]) -> Made:
        cond, needs, id = self.condition(levels, scope, held)
        then = self.float_term(levels, scope, held if id is None else (*held, id))
        other = self.float_term(levels, scope, held)
        return Made(T(Select(cond.e, then.term.e, other.term.e)), needs | other.needs | (then.needs - {id or ""}))

    def reduction(self, levels: int, scope: dict[str, Poly], held: tuple[str, ...]) -> Made:
        self.count += 1
        id, k = f"s{self.count}", f"k{self.count}"
        extent = self.rng.choice([N, M])
        ragged = [n for n, e in scope.items() if e == extent]
        bound = (
            Poly.of(self.rng.choice(ragged)) + self.rng.randrange(2) if ragged and self.rng.random() < 0.2 else extent
        )
        inner = {**scope, k: extent}
        where, needs, cond = None, frozenset[str](), None
        if self.rng.random() < 0.3:
            where, needs, cond = self.condition(levels, inner, held)
        value = self.float_term(levels, inner, held if cond is None else (*held, cond))
        monoid = self.rng.choice(["sum", "max", "min", "argmin"] if where is None else ["sum", "max"])
        needs |= value.needs - {cond or ""}
        needs = (needs - {k, f"{k} >= 1"} - ({str(extent)} - {str(e) for e in scope.values()})) | (
            bound.names & scope.keys()
        )
        guard = None
        for name in held:
            guard = self.conds[name] if guard is None else T(Select(guard.e, self.conds[name].e, FALSE))
        if not any(" >= " in n for n in needs) and self.rng.random() < 0.5:
            guard = None
        at = Poly.of(k) if monoid == "argmin" else None
        self.folds[id] = fold(id, monoid, dim(k, bound), value.term, where, guard, at)
        if guard is not None:
            needs |= {*held, *(n.split(" ")[0] for n in held)}
        result = ref(id)
        if at is not None:
            result = A("w")[((ref(id, I64), CHECKED),)]
        return Made(result, needs)

    # -- statements -----------------------------------------------------------------------------------------------

    def used(self, *roots: Expr) -> tuple[Fold, ...]:
        """The folds that terms mention, inner ones first."""
        found: set[str] = set()
        pending = list(roots)
        while pending:
            for e in subexprs(pending.pop()):
                f = self.folds.get(getattr(e, "id", ""))
                if f is not None and f.id not in found:
                    found.add(f.id)
                    pending += [p for p in (f.value, f.where, f.guard, f.at) if p is not None]
        return tuple(f for id, f in self.folds.items() if id in found)

    def define(self, buffer: str, dims: str, lead: tuple[Poly, ...] = ()) -> Define:
        self.pool = [p for p in self.pool if "t" not in p.needs or lead]
        scope = {d: EXTENTS[d] for d in dims}
        value = self.float_term(4, scope, ()).term
        return define(buffer, [dim(d, EXTENTS[d]) for d in dims], value, *self.used(value.e), lead=lead)

    def program(self) -> TypedProgram:
        buffers: list[Buffer] = [buf(id, *shape, role="in") for id, shape in self.arrays.items()]
        body: list[Stmt] = []
        for number in range(self.rng.randrange(1, 4)):
            id, dims = f"a{number}", self.rng.choice(["", "i", "j", "ij"])
            body.append(self.define(id, dims))
            self.arrays[id] = tuple(EXTENTS[d] for d in dims)
            buffers.append(buf(id, *self.arrays[id]))
        if self.rng.random() < 0.4:
            self.scan(buffers, body)
        return program("N M L", buffers, body, " ".join(b.id for b in buffers if b.role == "temp" and b.window is None))

    def scan(self, buffers: list[Buffer], body: list[Stmt]) -> None:
        """A carry over N, and an array that its trips fill."""
        body.append(self.define("h", "i", (ZERO,)))
        self.arrays["h"], self.lead["h"] = (N,), (t,)
        buffers.append(buf("h", L + 1, N, trips=[(t, 2)]))
        inner: list[Stmt] = [self.define("u", "ij", (t,))]
        self.arrays["u"], self.lead["u"] = (N, M), (t,)
        buffers.append(buf("u", L, N, M, trips=[(t, 1)]))
        inner += [self.define("h", "i", (t + ONE,)), self.define("e", "j", (t,))]
        buffers.append(buf("e", L, M))
        body.append(Scan(dim(t, L), tuple(inner)))
        self.arrays.pop("u")
        self.arrays["h"], self.lead["h"] = (N,), (L,)
        self.pool.clear()
        body.append(self.define("y", "i"))
        buffers.append(buf("y", N))


def random_array(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.random.default_rng(3).integers(-2, 3, shape).astype(dtype.numpy)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.tuples(*[st.integers(0, 2)] * 3))
def test_lowering_keeps_the_meaning(rng: Random, extents: tuple[int, int, int]) -> None:
    p = Maker(rng).program()
    sizes = dict(zip("NML", extents, strict=True))
    inputs = arrays(p.buffers, sizes, random_array)
    wanted = run_typed(p, inputs, sizes)
    r = lower(p)
    text = print_program(r)
    assert [str(v) for v in violations(r, ranges=True)] == [], text
    found = run_ir(r, inputs, sizes)
    computed = reference.run(r, inputs, sizes).outputs
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=text)
        np.testing.assert_array_equal(computed[name], value, err_msg=text)
