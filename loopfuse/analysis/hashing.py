"""Structural keys of expressions, statements and kernels: equal keys mean equal structure, up to bound names.

A key is a digest of 16 bytes, the same in every process. What a loop, a let or an accumulator binds counts by the order
of its binding, never by its id; spans do not count. The operands of an operation that commutes (a law of its row, at
the type of the operands) are in the order of their keys, and of `a > b` and `b < a` one form stands for both. Constants
count by bits and type; an i64 constant, an `Affine` and an integer let that is a polynomial are one kind of value.

What is free counts by name: a size, a buffer. `names` may give other tokens for them (the place of a size in its
declaration, the class of equal buffers), `anonymous` numbers the buffers by first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from loopfuse.dtypes import I64
from loopfuse.ir import Acc, Affine, Const, Expr, Kernel, Let, Load, Loop, Mode, Op, Ref, Select, Stmt, Store
from loopfuse.ops import OPS
from loopfuse.rewrite import children
from loopfuse.sizes import Atom, Poly

Key = bytes


def mix(tag: str, *parts: Key) -> Key:
    """The key of something made of parts; the tag says of what kind."""
    return blake2b(b"".join((tag.encode(), b"\0", *parts)), digest_size=16).digest()


def kernel_key(kernel: Kernel, names: Mapping[str, str] | None = None, anonymous: bool = False) -> Key:
    """The key of a kernel: its statements, not its id. Lets count as statements.

    With `anonymous` the buffers count by the order of their first use (a commuting operation whose operands stand the
    other way round may then get another key).
    """
    return Keys(names, anonymous=anonymous).body(kernel.body)


class Keys:
    """Keys within one kernel, whose statements are passed in order.

    `through`: a reference to a let has the key of the let's value, and lets do not count as statements, so that it does
    not matter which parts of an expression have a name. `tokens` is what the names in scope count as.
    """

    def __init__(self, names: Mapping[str, str] | None = None, through: bool = False, anonymous: bool = False) -> None:
        self.names = names or {}
        self.through, self.anonymous = through, anonymous
        self.tokens: dict[str, Key] = {}
        self.affine: dict[str, Poly] = {}
        self.bound = 0
        self.buffers = 0
        self.known: dict[int, tuple[Expr, Key]] = {}
        self.polys: dict[Poly, Key] = {}

    # -- names --------------------------------------------------------------------------------------------------------

    def bind(self, name: str, kind: str) -> Key:
        """A name gets a new meaning."""
        self.bound += 1
        return self.assign(name, mix(f"{kind} {self.bound}"))

    def assign(self, name: str, token: Key) -> Key:
        """A name counts as the token from now on."""
        if name in self.tokens:
            self.known.clear()
            self.polys.clear()
            self.affine.pop(name, None)
        self.tokens[name] = token
        return token

    def name(self, name: str, buffer: bool = False) -> Key:
        """What a name counts as."""
        found = self.tokens.get(name)
        if found is None:
            if buffer and self.anonymous and name not in self.names:
                found = mix(f"buffer {self.buffers}")
                self.buffers += 1
            else:
                found = mix(f"free {self.names.get(name, name)}")
            self.tokens[name] = found
        return found

    # -- expressions --------------------------------------------------------------------------------------------------

    def poly(self, poly: Poly) -> Key:
        """The key of a polynomial, whatever the order in which its names are sorted."""
        found = self.polys.get(poly)
        if found is None:
            full = poly.subs(self.affine) if self.affine else poly
            if full.name is not None:
                return self.name(full.name)
            terms = [(b"".join(sorted(self._atom(a) for a in m)), c) for m, c in full.terms]
            text = [mix(f"term {c}", atoms) for atoms, c in sorted(terms)]
            found = self.polys[poly] = mix("poly", *text)
        return found

    def _atom(self, atom: Atom) -> Key:
        if isinstance(atom, str):
            return self.name(atom)
        return mix("quotient", self.poly(atom.num), self.poly(atom.den))

    def expr(self, root: Expr) -> Key:
        """The key of an expression."""
        known = self.known
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in known:
                stack.pop()
                continue
            below = children(node)
            waiting = [child for child in below if id(child) not in known]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            known[id(node)] = (node, self.node(node, [known[id(child)][1] for child in below]))
        return known[id(root)][1]

    def node(self, node: Expr, operands: list[Key]) -> Key:
        """The key of a node, given those of its operands."""
        if isinstance(node, Op):
            return _op(node, operands)
        if isinstance(node, Load):
            return mix(f"load {node.dtype}", self.name(node.buffer, True), self._modes(node.modes), *operands)
        if isinstance(node, Select):
            return mix("select", *operands)
        if isinstance(node, Affine):
            return self.poly(node.poly)
        if isinstance(node, Const):
            value = node.bits - (1 << 64) if node.bits >> 63 else node.bits
            return self.poly(Poly.of(value)) if node.dtype == I64 else mix(f"const {node.dtype} {node.bits}")
        poly = node.dtype == I64 and (not self.through or node.id in self.affine)
        return self.poly(Poly.of(node.id)) if poly else self.name(node.id)

    def _modes(self, modes: tuple[Mode | None, ...]) -> Key:
        if not any(modes):
            return mix("")
        return mix(" ".join("none" if m is None else f"{m.kind} {m.fill.bits if m.fill else ''}" for m in modes))

    # -- statements ---------------------------------------------------------------------------------------------------

    def body(self, body: Iterable[Stmt]) -> Key:
        """The key of the statements of a block, which come into scope."""
        found = [self.stmt(s) for s in body]
        return mix("block", *(key for key in found if key))

    def stmt(self, stmt: Stmt) -> Key:
        """The key of a statement, which comes into scope; empty for a let that does not count as one."""
        if isinstance(stmt, Let):
            return self.let(stmt)
        if isinstance(stmt, Store):
            parts = [self.name(stmt.buffer, True), self._modes(stmt.modes), *(self.expr(s) for s in stmt.subs)]
            at = mix("") if stmt.at is None else self.expr(stmt.at)
            return mix("absorb" if stmt.absorb else "store", *parts, self.expr(stmt.value), at)
        bounds = [mix("dim", self._sides(d.lo), self._sides(d.hi), self.poly(d.step)) for d in stmt.dims]
        self.enter(stmt)
        accs = [self._acc(a) for a in stmt.accs]
        where = mix("") if stmt.where is None else self.expr(stmt.where)
        return mix(f"loop {stmt.order} {len(bounds)}", *bounds, *accs, where, self.body(stmt.body))

    def let(self, let: Let) -> Key:
        """Bind a let; its key, or nothing where lets do not count."""
        value = self.expr(let.value)
        if not self.through:
            self.bind(let.id, "let")
            return mix("let", value)
        self.assign(let.id, value)
        poly = _polynomial(let.value)
        if poly is not None:
            self.affine[let.id] = poly.subs(self.affine)
        return b""

    def enter(self, loop: Loop) -> None:
        """Bind the indices and accumulators of a loop."""
        for dim in loop.dims:
            self.bind(dim.id, "index")
        for acc in loop.accs:
            token = self.bind(acc.id, "acc")
            self.assign(f"{acc.id}.old", mix("old", token))
            self.assign(f"{acc.id}.new", mix("new", token))

    def _sides(self, polys: tuple[Poly, ...]) -> Key:
        return mix("", *sorted(self.poly(p) for p in polys))

    def _acc(self, acc: Acc) -> Key:
        repair = mix("") if acc.repair is None else self.expr(acc.repair)
        return mix(f"acc {acc.monoid} {acc.dtype}", repair, *(self.poly(p) for p in acc.shape))


def _op(node: Op, operands: list[Key]) -> Key:
    row, name = OPS[node.op], node.op
    if row.swapped is not None and row.swapped < name:
        name, operands = row.swapped, operands[::-1]
    elif len(operands) == 2 and row.law("commutative", node.args[-1].dtype):
        operands = sorted(operands)
    return mix(f"op {name} {node.dtype} {node.implied}", *operands)


def _polynomial(value: Expr) -> Poly | None:
    """The polynomial that an i64 value is, as it stands."""
    if isinstance(value, Affine):
        return value.poly
    return Poly.of(value.id) if isinstance(value, Ref) and value.dtype == I64 else None
