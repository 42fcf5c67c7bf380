"""Typed programs by hand, one a shape of statement that lowering has to deal with."""

from __future__ import annotations

from dataclasses import replace

from typed_terms import CHECKED, ZERO_FILL, A, buf, cast, define, dim, fn, fold, names, program, ref, term

from loopfuse.dtypes import BOOL, F16, F32, I32, I64
from loopfuse.frontend.typed import Prefix, Scan, Scatter, TypedProgram, Update
from loopfuse.ir import Affine, Const, Op, Size
from loopfuse.sizes import ONE, ZERO, Poly

M, N, K, D, T, C = names("M N K D T C")
c, d, i, j, k, n, r, s, t = names("c d i j k n r s t")
w, x, y, z = A("w"), A("x"), A("y"), A("z")


def softmax() -> TypedProgram:
    e, m = A("e"), A("m")
    return program(
        "M N",
        [buf("x", M, N, role="in"), buf("m", M), buf("e", M, N), buf("p", M, N)],
        [
            define("m", [dim(i, M)], ref("top"), fold("top", "max", dim(j, N), x[i, j])),
            define("e", [dim(i, M), dim(j, N)], fn("exp", x[i, j] - m[i])),
            define("p", [dim(i, M), dim(j, N)], e[i, j] / ref("total"), fold("total", "sum", dim(k, N), e[i, k])),
        ],
        "p",
    )


def matmul() -> TypedProgram:
    """f16 operands, a bias that is added outside the reduction."""
    p, q = A("p", F16), A("q", F16)
    dot = fold("dot", "sum", dim(k, K), cast(p[i, k], F32) * cast(q[k, j], F32))
    return program(
        "M N K",
        [
            buf("p", M, K, role="in", dtype=F16),
            buf("q", K, N, role="in", dtype=F16),
            buf("w", N, role="in"),
            buf("y", M, N),
        ],
        [define("y", [dim(i, M), dim(j, N)], ref("dot") + w[j], dot)],
        "y",
    )


def attention_scores() -> TypedProgram:
    """A reduction over a reduction."""
    dot = fold("dot", "sum", dim(d, D), x[i, d] * w[j, d])
    top = fold("top", "max", dim(j, N), ref("dot") * 0.5)
    return program("M N D", [buf("x", M, D, role="in"), buf("w", N, D, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], ref("top"), dot, top)], "y")  # fmt: skip


def layernorm() -> TypedProgram:
    """In one definition: two reductions over rows, the second over the first."""
    mean = ref("total") / cast(term(D), F32)
    total = fold("total", "sum", dim(j, D), x[i, j])
    square = (x[i, k] - mean) * (x[i, k] - mean)
    var = fold("squares", "sum", dim(k, D), square)
    value = (x[i, d] - mean) * fn("rsqrt", ref("squares") / cast(term(D), F32) + 1e-5) * w[d]
    return program("M D", [buf("x", M, D, role="in"), buf("w", D, role="in"), buf("y", M, D)],
                   [define("y", [dim(i, M), dim(d, D)], value, total, var)], "y")  # fmt: skip


def kept_axis() -> TypedProgram:
    """An axis of extent 1 does not make a reduction partial."""
    return program("M N", [buf("x", M, N, role="in"), buf("y", M, 1)],
                   [define("y", [dim(i, M), dim(j, 1)], ref("total"), fold("total", "sum", dim(k, N), x[i, k]))], "y")  # fmt: skip


def convolution() -> TypedProgram:
    """Zeros around the image."""
    dims = [dim(r, 3), dim(s, 3), dim(c, C)]
    taps = fold("taps", "sum", dims, x[(i + r - 1, ZERO_FILL), (j + s - 1, ZERO_FILL), c] * w[r, s, c, k])
    return program("M N C K", [buf("x", M, N, C, role="in"), buf("w", 3, 3, C, K, role="in"), buf("y", M, N, K)],
                   [define("y", [dim(i, M), dim(j, N), dim(k, K)], fn("maximum", ref("taps"), term(0.0)), taps)], "y")  # fmt: skip


def guarded_fold() -> TypedProgram:
    """A reduction in a lazy arm, whose reads are safe only there."""
    cond = term(i) >= 1
    total = fold("total", "sum", dim(j, N), x[i - 1, j], where=x[i - 1, j] > 0.0, guard=cond)
    return program("M N", [buf("x", M, N, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], ref("total").if_(cond, 0.0), total)], "y")  # fmt: skip


def invariant_fold() -> TypedProgram:
    """A reduction inside another that does not depend on its index."""
    inner = fold("inner", "sum", dim(k, K), z[i, k])
    return program("M N K", [buf("x", M, N, role="in"), buf("z", M, K, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], ref("top"), inner, fold("top", "max", dim(j, N), x[i, j] * ref("inner")))], "y")  # fmt: skip


def inner_alone() -> TypedProgram:
    """A reduction that depends on the index of the one around it, and not on those of the statement."""
    inner = fold("inner", "max", dim(k, K), z[j, k])
    return program("M N K", [buf("x", M, N, role="in"), buf("z", N, K, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], ref("total"), inner, fold("total", "sum", dim(j, N), x[i, j] * ref("inner")))], "y")  # fmt: skip


def filtered_by_fold() -> TypedProgram:
    """A filter that reduces, over a range that depends on an index."""
    top = fold("top", "max", dim(k, K), z[i, j, k])
    total = fold("total", "sum", dim(j, i + 1), x[i, j] * ref("top"), where=ref("top") > 0.0)
    return program("M K", [buf("x", M, M, role="in"), buf("z", M, M, K, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], ref("total"), top, total)], "y")  # fmt: skip


def triangle() -> TypedProgram:
    """A reduction over two indices, the bound of one being the other."""
    total = fold("total", "sum", [dim(j, N), dim(k, j)], x[j, k])
    return program("N", [buf("x", N, N, role="in"), buf("y")], [define("y", [], ref("total"), total)], "y")


def first_element() -> TypedProgram:
    """The reduction leaves the loop over M, without which `x[0]` may not exist."""
    return program("M N", [buf("x", M, role="in"), buf("w", N, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], x[i] - ref("total"), fold("total", "sum", dim(j, N), x[0] * w[j]))], "y")  # fmt: skip


def positions() -> TypedProgram:
    """The position of a maximum, used as a subscript."""
    best = fold("best", "argmax", dim(j, N), x[i, j], at=j)
    return program("M N", [buf("x", M, N, role="in"), buf("w", N, role="in"), buf("y", M, N)],
                   [define("y", [dim(i, M), dim(k, N)], x[i, k] - w[ref("best", I64)], best)], "y")  # fmt: skip


def cumsum() -> TypedProgram:
    """Running sums of rows less their maximum, in f16."""
    top = fold("top", "max", dim(k, N), x[i, k])
    stored = Op("cast", (ref("run").e,), F16)
    prefix = Prefix("y", "run", "sum", F32, (dim(i, M),), dim(j, N), (Affine(i), Affine(j)),
                    (x[i, j] - ref("top")).e, stored, (top,))  # fmt: skip
    return program("M N", [buf("x", M, N, role="in"), buf("y", M, N, dtype=F16)], [prefix], "y")


def histogram() -> TypedProgram:
    """A scatter with a filter, out of which elements may fall; the start is an array."""
    g, start = A("g", I32), A("start", I32)
    update = Update((cast(g[i, j], I64).e,), (CHECKED,), Const(1, I32))
    result = Op("add", (start[k].e, A("acc", I32)[k].e), I32)
    scatter = Scatter("h", "acc", "sum", I32, (dim(i, M), dim(j, N)), A("keep", BOOL)[i].e, (update,), (dim(k, K),),
                      (Affine(k),), result)  # fmt: skip
    buffers = [buf("g", M, N, role="in", dtype=I32), buf("keep", M, role="in", dtype=BOOL),
               buf("start", K, role="in", dtype=I32), buf("h", K, dtype=I32)]  # fmt: skip
    return program("M N K", buffers, [scatter], "h")


def kmeans() -> TypedProgram:
    """A scan with a partial reduction, a scatter and a lazy division."""
    cent, label, total, count = A("cent"), A("label", I64), A("total"), A("count")
    dist = fold("dist", "sum", dim(d, D), (x[n, d] - cent[t, k, d]) * (x[n, d] - cent[t, k, d]))
    near = fold("near", "argmin", dim(k, K), ref("dist"), at=k)
    body = (
        define("label", [dim(n, N)], ref("near", I64), dist, near, lead=[t]),
        Scatter("total", "sums", "sum", F32, (dim(n, N), dim(d, D)), None,
                (Update((label[t, n].e, Affine(d)), (None, None), x[n, d].e),), (dim(k, K), dim(c, D)),
                (Affine(t), Affine(k), Affine(c)), A("sums")[k, c].e),
        define("count", [dim(k, K)], ref("hits"), fold("hits", "sum", dim(n, N), term(1.0), where=label[t, n].equals(k)), lead=[t]),
        define("cent", [dim(k, K), dim(d, D)],
               (total[t, k, d] / count[t, k]).if_(count[t, k] > 0.0, cent[t, k, d]), lead=[t + 1]),
    )  # fmt: skip
    buffers = [
        buf("x", N, D, role="in"), buf("start", K, D, role="in"), buf("cent", T + 1, K, D, trips=[(t, 2)]),
        buf("label", T, N, dtype=I64, trips=[(t, 1)], range=((ZERO,), (K - 1,))),
        buf("total", T, K, D, trips=[(t, 1)]), buf("count", T, K, trips=[(t, 1)]), buf("out", K, D),
    ]  # fmt: skip
    start = define("cent", [dim(k, K), dim(d, D)], A("start")[k, d], lead=[ZERO])
    out = define("out", [dim(k, K), dim(d, D)], cent[T, k, d])
    return program(
        "N D K", buffers, [start, Scan(dim(t, T), body), out], "out", least=1, more=[Size("T", "compile", value=2)]
    )


def dtw() -> TypedProgram:
    """Dynamic time warping: a scan in a scan, carries of both."""
    prev, left, cost = A("prev"), A("left"), A("cost")
    before = prev[i, j - 1].if_(term(j) >= 1, term(0.0).if_(term(i).equals(0), float("inf")))
    body = (
        define(
            "cost",
            [],
            fn("abs", x[i] - w[j]) + fn("minimum", fn("minimum", prev[i, j], left[i, j]), before),
            lead=[i, j],
        ),
        define("left", [], cost[i, j], lead=[i, j + 1]),
        define("row", [], cost[i, j], lead=[i, j]),
    )
    buffers = [
        buf("x", N, role="in"), buf("w", M, role="in"), buf("prev", N + 1, M, trips=[(i, 2)]),
        buf("left", N, M + 1, trips=[(i, 1), (j, 2)]), buf("cost", N, M, trips=[(i, 1), (j, 1)]),
        buf("row", N, M, trips=[(i, 1)]), buf("y"),
    ]  # fmt: skip
    outer = (
        define("left", [], term(float("inf")), lead=[i, ZERO]),
        Scan(dim(j, M), body),
        define("prev", [dim(k, M)], A("row")[i, k], lead=[i + 1]),
    )
    start = define("prev", [dim(k, M)], term(float("inf")), lead=[ZERO])
    return program("N M", buffers, [start, Scan(dim(i, N), outer), define("y", [], prev[N, M - 1])], "y", least=1)


def power_iteration() -> TypedProgram:
    """A scan whose statement divides by a norm of its own: the norm is lifted inside the scan."""
    v = A("v")
    row = fold("row", "sum", dim(j, N), x[i, j] * v[t, j])
    norm = fold("norm", "sum", dim(k, N), v[t, k] * v[t, k])
    start = define("v", [dim(i, N)], w[i], lead=[ZERO])
    step = define("v", [dim(i, N)], ref("row") / fn("sqrt", ref("norm")), row, norm, lead=[t + 1])
    buffers = [buf("x", N, N, role="in"), buf("w", N, role="in"), buf("v", T + 1, N, trips=[(t, 2)])]
    return program("N T", buffers, [start, Scan(dim(t, T), (step,))], "v")


def shared_terms() -> TypedProgram:
    """Equal terms in a store, in a reduction and in both arms."""
    e = fn("exp", x[i] * 2.0)
    total = fold("total", "sum", dim(j, N), e * z[i, j])
    value = (e + ref("total")).if_(x[i] > 0.0, e - ref("total"))
    return program("M N", [buf("x", M, role="in"), buf("z", M, N, role="in"), buf("y", M)],
                   [define("y", [dim(i, M)], value, total)], "y")  # fmt: skip


def shared_in_arm() -> TypedProgram:
    """What a lazy arm repeats: a small term is written again, a large one is named under the arm's condition."""
    small = x[i - 1]
    large = small
    for _ in range(4):
        large = fn("sin", large * 0.5) + small
    cond = term(i) >= 1
    return program("M", [buf("x", M, role="in"), buf("y", M), buf("z", M)],
                   [define("y", [dim(i, M)], (small * small).if_(cond, 0.0)),
                    define("z", [dim(i, M)], (large * large).if_(cond, 0.0))], "y z")  # fmt: skip


def rows_by_pointer() -> TypedProgram:
    """Rows of a sparse matrix: the bounds are read from data, in an arm where they may be read."""
    p, cond = A("p", I64), term(i) >= 1
    lets = (("lo", p[i - 1].e), ("hi", p[i].e))
    row = replace(fold("row", "sum", dim(k, Poly.of("hi"), Poly.of("lo")), A("v")[k], guard=cond), lets=lets)
    buffers = [buf("p", M, role="in", dtype=I64, range=((ZERO,), (ONE + 1,))), buf("v", 2, role="in"), buf("y", M, N)]
    return program("M N", buffers, [define("y", [dim(i, M), dim(j, N)], ref("row").if_(cond, 0.0), row)], "y")


CASES = {f.__name__: f for f in (
    softmax, matmul, attention_scores, layernorm, kept_axis, convolution, guarded_fold, invariant_fold, inner_alone,
    filtered_by_fold, triangle, first_element, positions, cumsum, histogram, kmeans, dtw, power_iteration, shared_terms,
    shared_in_arm, rows_by_pointer,
)}  # fmt: skip
