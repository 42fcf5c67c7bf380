"""Adjacent dims of a loop along which everything moves as along one are made one.

Of dims a and b, b having e values, every access then moves along a as along e steps of b. Subscripts are rewritten with
a at 0 and b beyond its extent: they name the same elements, by their offsets, though no longer inside their axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loopfuse.emit.base import Job
from loopfuse.emit.writer import Target
from loopfuse.ir import Affine, Dim, Expr, Load, Loop, Stmt, Store
from loopfuse.rewrite import Substitution
from loopfuse.sizes import ONE, ZERO, Poly
from loopfuse.walking import children, exprs, polys, walk


def collapsed(job: Job) -> tuple[Stmt, ...]:
    """The body of a job's kernel, with the dims of its bands and of the folds in them collapsed."""
    return _Collapse(job).body(job.kernel.body)


class _Collapse:
    def __init__(self, job: Job) -> None:
        self.target: Target = job.target
        self.buffers = job.buffers
        self.vectors = {n for n, role in job.plan.roles.items() if role == "vector"}
        windows = [w for b in job.ask.local for w in job.buffers[b].window or ()]
        self.seen = {n for lows, highs in windows for p in (*lows, *highs) for n in p.names}  # by windows

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements at the level of a band."""
        return tuple(self.loop(s) if isinstance(s, Loop) and s.order == "par" else s for s in body)

    def loop(self, loop: Loop) -> Loop:
        """A band or a fold."""
        k = len(loop.dims) - 1
        while k > 0:
            made = self.joined(loop, k - 1)
            loop = made or loop
            k -= 1
        return loop if loop.accs else replace(loop, body=self.body(loop.body))

    def joined(self, loop: Loop, at: int) -> Loop | None:
        """The loop with the dims `at` and `at + 1` as one, if they can be."""
        a, b = loop.dims[at], loop.dims[at + 1]
        if not all(_plain(d) for d in (a, b)) or a.id in self.vectors:
            return None
        ids = {a.id, b.id}
        bounds = [p for d in loop.dims for p in (*d.lo, *d.hi, d.step)]
        bounds += [p for s in walk(loop.body) for p in polys(s)]
        if ids & self.seen or any(p.names & ids for p in bounds):
            return None
        pair = a.id, b.id, self.target.poly(b.hi[0])
        roots = [loop.where] if loop.where is not None else []
        if not all(self.moves(e, pair) for e in roots) or not all(self.fits(s, pair) for s in walk(loop.body)):
            return None
        put = Substitution(indices={a.id: ZERO})
        dim = Dim(b.id, (ZERO,), (self.target.poly(a.hi[0] * b.hi[0]),), span=b.span)
        where = put.expr(loop.where) if loop.where is not None else None
        dims = (*loop.dims[:at], dim, *loop.dims[at + 2 :])
        return replace(loop, dims=dims, where=where, body=put.body(loop.body))

    def fits(self, stmt: Stmt, pair: tuple[str, str, Poly]) -> bool:
        """Whether everything in a statement moves along the two indices as along one."""
        if isinstance(stmt, Store) and not stmt.absorb:
            found = self.access(stmt, pair)
            values = [stmt.value] if found else list(exprs(stmt))
            return found is not False and all(self.moves(e, pair) for e in values)
        if isinstance(stmt, Loop):  # its bounds have neither index, its condition may
            return stmt.where is None or self.moves(stmt.where, pair)
        return all(self.moves(e, pair) for e in exprs(stmt))

    def moves(self, root: Expr, pair: tuple[str, str, Poly]) -> bool:
        """Whether everything in an expression does."""
        stack = [root]
        while stack:
            node = stack.pop()
            if isinstance(node, Affine) and not self.linear(node.poly, pair):
                return False
            if isinstance(node, Load):
                found = self.access(node, pair)
                if found is False:
                    return False
                if found:
                    continue
            stack += children(node)
        return True

    def access(self, node: Load | Store, pair: tuple[str, str, Poly]) -> bool | None:
        """Whether the offset of an access does; None where its subscripts must be asked one by one."""
        buffer = self.buffers.get(node.buffer)
        subs = [s.poly for s in node.subs if isinstance(s, Affine)]
        if not any(p.names & {pair[0], pair[1]} for p in _inside(node.subs)):
            return True
        if buffer is None or len(subs) < len(node.subs) or any(m is not None for m in node.modes):
            return None if not any(m is not None for m in node.modes) else False
        offset, stride = ZERO, ONE
        for sub, extent in zip(reversed(subs), reversed(buffer.shape), strict=True):
            offset, stride = offset + self.target.poly(sub) * stride, stride * self.target.poly(extent)
        return self.linear(offset, pair)

    def linear(self, poly: Poly, pair: tuple[str, str, Poly]) -> bool:
        """Whether a polynomial is a multiple of `a * e + b` and something free of both."""
        a, b, extent = pair
        poly = self.target.poly(poly)
        if not poly.names & {a, b}:
            return True
        if any((q.num.names | q.den.names) & {a, b} for q in poly.quotients()):
            return False
        if poly.degree(a) > 1 or poly.degree(b) != 1:
            return False
        step = poly.coefficient(b)
        return not step.names & {a, b} and poly.coefficient(a) == step * extent


def _inside(roots: Sequence[Expr]) -> Iterator[Poly]:
    """The polynomials in expressions."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        if isinstance(node, Affine):
            yield node.poly
        stack += children(node)


def _plain(dim: Dim) -> bool:
    """Whether a dim counts from 0 to one bound."""
    return dim.lo == (ZERO,) and len(dim.hi) == 1 and dim.step == ONE
