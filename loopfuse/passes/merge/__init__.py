"""Joining two kernels into one: which loops pair, what that requires, and the joint loop nest.

`merge` joins loop nests, `inline` computes a producer again where it is read, `instance` one with reductions where its
reader takes each element once. All are legal or refused, never a matter
of cost: that is for fusion to decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopfuse.analysis.env import Env
from loopfuse.decisions import Cause, Kind
from loopfuse.ir import Buffer, Kernel, Loop, Size, Stmt, Store
from loopfuse.passes.merge.accesses import Scope
from loopfuse.passes.merge.blocks import Block, forward, join
from loopfuse.passes.merge.inlining import inlined
from loopfuse.passes.merge.instances import instances
from loopfuse.passes.merge.kinds import contractions, kind_of
from loopfuse.passes.merge.pairs import obstacle, pairing
from loopfuse.rewrite import rename, walk
from loopfuse.sizes import Poly

__all__ = ["Merged", "abreast", "inline", "instance", "merge"]


@dataclass(frozen=True, slots=True)
class Merged:
    """A joint kernel: the kind of fusion, the operations computed again, and sizes of tiles that it introduces.

    `buffers`: those that become local with a window, as the form needs it, or whose window has another index now.
    `cause`: the two have no loop in common and run one after the other inside the kernel, and why. `apart`: why loops
    inside a loop that they have in common stay two, one after the other.
    """

    kernel: Kernel
    kind: Kind
    recomputed: int = 0
    sizes: tuple[Size, ...] = ()
    cause: Cause | None = None
    apart: Cause | None = None
    buffers: tuple[Buffer, ...] = ()


def merge(a: Kernel, b: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """One kernel that does what `a` and then `b` do, with their loops joined as far as that is legal.

    `b` must not compute what `a` reads. Loads of what was stored in the same iteration become the value itself; which
    arrays need not exist any more is for `contract` to find.
    """
    return _merged(a, b, Scope(env), env)


def abreast(a: Kernel, b: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """`merge` of two kernels of which none reads the other, with their parallel loops one where both reduce over the same
    array: the sums of both are taken in one walk over it."""
    return _merged(a, b, Scope(env, abreast=True), env)


def _merged(a: Kernel, b: Kernel, scope: Scope, env: Env) -> Merged:
    scope.learn(a)
    scope.learn(b)
    b = _apart(a, b, scope)
    body = forward(join(a.body, b.body, scope), scope)
    buffers = tuple(b for b in scope.windows.values() if b != env.buffers[b.id])
    if buffers:
        body, buffers = _own_names(body, buffers, (a, b), env)
    kernel = Kernel(a.id, body, span=a.span)
    if scope.joined:
        inner = next(
            (
                found
                for pair in scope.apart
                if (found := _between(pair[0], pair[1], scope, pair[2])).code != "unrelated"
            ),
            None,
        )
        return Merged(kernel, kind_of(a, b, scope), apart=inner, buffers=buffers)
    return Merged(kernel, "block", cause=_obstacle(a, b, scope), buffers=buffers)


def _own_names(body: Block, buffers: tuple[Buffer, ...], parts: tuple[Kernel, Kernel],
               env: Env) -> tuple[Block, tuple[Buffer, ...]]:  # fmt: skip
    """The joint body and the windows, an index that windows slide along having a name that no other kernel's index has: a
    window tells by the name alone which loop is meant."""
    slid = frozenset[str]().union(*map(_slides, buffers)) - env.sizes.keys()
    own, every = _indices(parts), _indices(env.program.kernels)
    names = {n: env.fresh(n) for n in sorted(slid) if every[n] > own[n]}
    if not names:
        return body, buffers
    table = {old: Poly.of(new) for old, new in names.items()}
    stored = {s.buffer for s in walk(body) if isinstance(s, Store)}
    held = {b.id: b for b in (*(env.buffers[n] for n in stored if n in env.buffers), *buffers)}
    moved = {
        b.id: replace(b, window=tuple(
            (tuple(p.subs(table) for p in low), tuple(p.subs(table) for p in high)) for low, high in b.window or ()))
        for b in held.values() if _slides(b) & names.keys()
    }  # fmt: skip
    return rename(body, names), tuple({**{b.id: b for b in buffers}, **moved}.values())


def _slides(buffer: Buffer) -> frozenset[str]:
    """The names in a buffer's window."""
    return frozenset[str]().union(*(p.names for low, high in buffer.window or () for p in (*low, *high)))


def _indices(kernels: Iterable[Kernel]) -> Counter[str]:
    """How often each name is that of a loop's index."""
    return Counter(d.id for k in kernels for s in walk(k.body) if isinstance(s, Loop) for d in s.dims)


def _obstacle(a: Kernel, b: Kernel, scope: Scope) -> Cause:
    """Why no top-level loops of the two kernels joined."""
    found: Cause | None = None
    for place, first in enumerate(a.body):
        for second in b.body:
            if isinstance(first, Loop) and isinstance(second, Loop) and (found is None or found.code == "unrelated"):
                found = _awaited(first, a.body[place + 1 :], second, scope) or _between(first, second, scope)
    return found or Cause("unrelated", "the two have no loops to join")


def _awaited(fold: Loop, after: Block, second: Loop, scope: Scope) -> Cause | None:
    """Why a loop cannot join a fold whose result, stored behind it, it reads."""
    results = {acc.id for acc in fold.accs}
    stored = {name for s in after if results & scope.names(s)[0].all for name in scope.names(s)[1]}
    read = sorted(stored & scope.names(second)[0].loads)
    if not read:
        return None
    over = ", ".join(f"`{d.id}`" for d in fold.dims)
    message = (
        f"`{read[0]}` is complete only after the whole loop over {over}, and the other loop needs it at its first step"
    )
    spans = tuple(s for s in (fold.span, second.span) if s)
    return Cause(
        "reduction", message, lift="a loop around both of them, along an axis that is not reduced", spans=spans
    )


def _between(first: Loop, second: Loop, scope: Scope, blocker: Stmt | None = None) -> Cause:
    """Why two loops did not join; `blocker` must stand between them."""
    if not pairing(first, second, scope):
        found = obstacle(first, second, scope)
        if first.order == "seq" and found.code in ("subscripts", "spread", "reduction"):
            given = sorted(scope.accesses(first).stores.keys() & scope.accesses(second).loads.keys())
            word = f"`{given[0]}`" if given else "the result"
            return replace(found, code="recurrence", message=f"{word} is complete only after all steps of the recurrence "
                           "that computes it, which runs in order, and it is read in another order")  # fmt: skip
        return found
    spans = tuple(s for s in (first.span, second.span) if s)
    if first.order == "seq" or second.order == "seq":
        return Cause("recurrence", "a recurrence runs in order, step after step, and the other loop does not keep to its "
                     "steps", spans=spans)  # fmt: skip
    if blocker is not None:
        _, made = scope.names(blocker)
        needed = sorted(made & (scope.names(second)[0].values | scope.names(second)[0].loads))
        given = sorted(scope.names(first)[1] & scope.names(second)[0].loads)
        word = f"`{needed[0]}`" if needed else "what stands between"
        again = f"`{given[0]}`" if given else "its result"
        return Cause("reduction", f"{word} needs all of {again}, and {again} is read again once {word} is complete",
                     lift="keep it in memory, or compute it twice", spans=spans)  # fmt: skip
    if any(a.id in scope.names(second)[0].all for a in first.accs):
        return Cause("reduction", "a reduction is complete only after its loop, and the other loop needs it in every step",
                     lift="a loop around both of them, along an axis that is not reduced", spans=spans)  # fmt: skip
    a, b = ("reduction" if loop.accs else "parallel loop" for loop in (first, second))
    return Cause("order", f"a {a} and a {b} cannot be one loop here: what they need of each other, their conditions or the "
                 "order in which they reduce do not fit", spans=spans)  # fmt: skip


def _apart(a: Kernel, b: Kernel, scope: Scope) -> Kernel:
    """`b` with other names for those of its indices that `a` has too."""
    body = _renamed_apart(a.body, b.body, scope)
    return b if body is b.body else replace(b, body=body)


def _renamed_apart(first: Block, second: Block, scope: Scope) -> Block:
    mine = {d.id for s in walk(first) if isinstance(s, Loop) for d in s.dims}
    yours = {d.id: None for s in walk(second) if isinstance(s, Loop) for d in s.dims}
    taken = mine | yours.keys()
    table: dict[str, str] = {}
    for name in yours:
        if name in mine:
            table[name] = scope.env.index(name, taken)
            taken.add(table[name])
    if not table:
        return second
    for stmt in walk(second):
        if isinstance(stmt, Loop):
            scope.slide(stmt, {old: Poly.of(new) for old, new in table.items()})
    return rename(second, table)


def inline(a: Kernel, b: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """`b` with what `a` computes computed again wherever `b` reads it.

    `a` is a single loop nest without folds. Arrays of `a` that are live elsewhere need `a` beside the result.
    """
    scope = Scope(env)
    scope.learn(a)
    scope.learn(b)
    found = inlined(a, b, scope)
    if isinstance(found, Cause):
        return found
    kernel, recomputed = found
    return Merged(kernel, "prologue" if kind_of(a, b, scope) == "prologue" else "vertical", recomputed)


def instance(a: Kernel, b: Kernel, env: Env, live: frozenset[str]) -> Merged | Cause:
    """`b` with an instance of what `a` computes, reductions included, for each of the disjoint windows that `b` reads.

    No element is computed twice. Arrays of `a` that are live elsewhere need `a` beside the result.
    """
    scope = Scope(env)
    scope.learn(a)
    scope.learn(b)
    found = instances(a, b, scope)
    if isinstance(found, Cause):
        return found
    sums = any(len(loop.accs) > 1 for loop in contractions(found))
    return Merged(found, "dual contraction" if sums else kind_of(a, b, scope))
