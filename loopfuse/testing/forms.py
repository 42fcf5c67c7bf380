"""Random statements: each adds definitions to the script that later ones may read."""

from __future__ import annotations

from collections.abc import Callable

from loopfuse.dtypes import DTYPES
from loopfuse.ops import MONOIDS, OPS
from loopfuse.testing.elements import REDUCTIONS
from loopfuse.testing.page import FLOATS, INDICES, Scope, Shape, bare, product
from loopfuse.testing.wanted import Wanted
from loopfuse.testing.wholes import CUMULATIVE

UPDATES = {"+=": "0", "max=": "", "min=": "", "*=": "1", "|=": "0", "&=": "", "^=": "0"}


class Forms(Wanted):
    """Statements."""

    def scope_of(self, shape: Shape) -> Scope:
        """Indices for extents."""
        return dict(zip(INDICES, shape, strict=False))

    def some_shape(self, least: int = 0, most: int = 3) -> Shape:
        """The extents of an array that is there, else new ones."""
        known = [a.shape for a in self.arrays if least <= len(a.shape) <= most]
        return self.choices.pick(known[::-1]) if known and self.choices.chance(60) else self.shape(least, most)

    # -- definitions --------------------------------------------------------------------------------------------------

    def form_whole(self) -> None:
        """A definition in array notation."""
        dtype, shape = self.dtype(), self.some_shape()
        self.let(self.whole(dtype, shape), dtype, shape)

    def form_equation(self) -> None:
        """A definition in index notation."""
        dtype, shape = self.dtype(), self.some_shape(1)
        scope = self.scope_of(shape)
        text = self.element(dtype, scope)
        self.let(text, dtype, shape, self.binders(scope, text))

    def form_reduce(self) -> None:
        """An equation whose right side is a reduction."""
        dtypes = sorted({d for types in REDUCTIONS.values() for d in types})
        dtype = self.main if self.main in dtypes and self.choices.chance(60) else self.some_dtype(dtypes)
        shape = self.some_shape(0, 2)
        scope = self.scope_of(shape)
        text = self.reduction(dtype, scope, 2)
        self.let(text, dtype, shape, self.binders(scope, text))

    def form_reduce_whole(self) -> None:
        """A reduction in array notation."""
        dtypes = sorted({d for types in REDUCTIONS.values() for d in types})
        dtype, shape = self.some_dtype(dtypes), self.some_shape(0, 2)
        self.let(self.whole_reduction(dtype, shape, 2), dtype, shape)

    def form_argmax(self) -> None:
        """The place of the greatest or least, and what stands there."""
        dtype = self.num_dtype()
        table = self.some_array(dtype, 2)
        best = self.choices.pick(("argmax", "argmin"))
        place = self.let(f"{best}({table.name}, axis=1)", "i64", table.shape[:1], below=table.shape[1])
        self.let(f"{table.name}[i, {place.name}[i]]", dtype, table.shape[:1], "i")

    def form_cumulative(self) -> None:
        """A running value."""
        dtype = self.some_dtype((*FLOATS, "i64", "u64"))
        shape = self.some_shape(1)
        axis = self.axis(self.choices.number(0, len(shape) - 1), len(shape))
        which = self.choices.favour({f"move {c}": c for c in CUMULATIVE})
        of = self.reduced("sum", dtype) if which in ("cumsum", "cumprod") else dtype
        of = dtype if of == "bool" else of
        self.let(f"{which}({bare(self.whole(of, shape, 2))}, axis={axis})", dtype, shape)

    # -- chains that should become one kernel -------------------------------------------------------------------------

    def row_of(self, dtype: str) -> tuple[str, Shape]:
        """A matrix, often a product or another computed value."""
        array = self.some_array(dtype, 2)
        if self.choices.chance(40):
            return array.name, array.shape
        if self.choices.chance(50):
            inner = self.whole_leaf(dtype, (array.shape[1], self.dim()))
            if inner.isidentifier():
                found = next(a for a in self.arrays if a.name == inner)
                shape = (array.shape[0], found.shape[1])
                return self.let(f"{array.name} @ {inner}{self.damping(' * 0.1')}", dtype, shape).name, shape
        return self.let(self.whole(dtype, array.shape, 2), dtype, array.shape).name, array.shape

    def form_softmax(self) -> None:
        """Exponentials over their sum, the greatest taken off first."""
        dtype = self.float_dtype()
        x, shape = self.row_of(dtype)
        if self.choices.chance(50):
            axis = self.choices.pick((-1, 0))
            top = self.let(f"{x} - max({x}, axis={axis}, keepdims=true)", dtype, shape)
            power = self.let(f"exp({top.name})", dtype, shape)
            self.let(f"{power.name} / sum({power.name}, axis={axis}, keepdims=true)", dtype, shape)
            return
        rows = shape[:1]
        top = self.let(f"max({x}[i, j] for j)", dtype, rows, "i")
        power = self.let(f"exp({x}[i, j] - {top.name}[i])", dtype, shape, "i, j")
        total = self.let(f"sum({power.name}[i, j] for j)", dtype, rows, "i")
        if self.choices.chance(50):
            self.let(f"{power.name}[i, j] / {total.name}[i]", dtype, shape, "i, j")
        else:
            self.let(f"{top.name} + log({total.name})", dtype, rows)

    def form_layernorm(self) -> None:
        """Rows of mean 0 and variance 1, scaled."""
        dtype = self.float_dtype()
        x, shape = self.row_of(dtype)
        if self.choices.chance(50):
            centre = self.let(f"{x} - mean({x}, axis=-1, keepdims=true)", dtype, shape)
            spread = self.let(f"mean({centre.name} * {centre.name}, axis=-1, keepdims=true)", dtype, (shape[0], "1"))
            self.let(f"{centre.name} * rsqrt({spread.name} + 0.1)", dtype, shape)
            return
        mean = self.let(f"sum({x}[i, j] for j) / {shape[1]}", dtype, shape[:1], "i")
        spread = self.let(f"sum(({x}[i, j] - {mean.name}[i]) ** 2 for j) / {shape[1]}", dtype, shape[:1], "i")
        text = f"({x}[i, j] - {mean.name}[i]) / sqrt({spread.name}[i] + 0.1)"
        self.let(text, dtype, shape, "i, j")

    def form_library(self) -> None:
        """A function of the library."""
        dtype = self.float_dtype()
        x, shape = self.row_of(dtype)
        vector = self.whole_leaf(dtype, shape[1:])
        calls = {
            "softmax": f"nn.softmax({x})", "log_softmax": f"nn.log_softmax({x}, axis=0)", "gelu": f"nn.gelu({x})",
            "silu": f"nn.silu({x})", "rmsnorm": f"nn.rmsnorm({x}, {vector})", "softplus": f"nn.softplus({x})",
            "layernorm": f"nn.layernorm({x}, {vector}, {vector})", "relu": f"nn.relu({x})",
        }  # fmt: skip
        text = self.choices.favour({f"library {name}": call for name, call in calls.items()})
        if "import nn" not in self.inputs:
            self.inputs.insert(0, "import nn")
        self.let(text, dtype, shape)

    def form_product(self) -> None:
        """A matrix product and what follows it."""
        dtype = self.num_dtype()
        a = self.some_array(dtype, 2)
        inner = a.shape[1]
        b = next((x for x in self.arrays if x.dtype == dtype and x.shape[:1] == (inner,) and len(x.shape) == 2), None)
        if b is None or (self.room and self.choices.chance(30)):
            b = self.declare(dtype, (inner, self.dim()))
        shape = (a.shape[0], b.shape[1])
        way = self.choices.favour({f"product {k}": k for k in ("matmul", "equation", "einsum", "batched", "vector")})
        if way == "equation":
            wide = dtype if dtype in (*FLOATS, "i64", "u64") else ("i64" if DTYPES[dtype].kind == "int" else "u64")
            self.let(f"sum({a.name}[i, k] * {b.name}[k, j] for k)", wide, shape, "i, j")
        elif way == "vector":
            self.let(f"{a.name} @ {self.whole_leaf(dtype, (inner,))}", dtype, a.shape[:1])
        elif way == "batched":
            batch = self.some_array(dtype, 3)
            other = self.whole_leaf(dtype, (batch.shape[2], self.dim()))
            found = next((x for x in self.arrays if x.name == other), None)
            if found is None:
                return
            self.let(f"{batch.name} @ {other}", dtype, (*batch.shape[:2], found.shape[1]))
        else:
            text = f"{a.name} @ {b.name}" if way == "matmul" else f'einsum("ij,jk->ik", {a.name}, {b.name})'
            made = self.let(text, dtype, shape)
            if self.choices.chance(70):
                bias = self.whole_leaf(dtype, shape[1:])
                ends = (f"maximum({made.name} + {bias}, 0)", f"{made.name} * {bias} + {made.name}")
                self.let(self.choices.pick(ends), dtype, shape)

    # -- neighbours, rows by number -----------------------------------------------------------------------------------

    def form_stencil(self) -> None:
        """Neighbours of an element, by a boundary view or in a shorter range; often twice over."""
        dtype = self.num_dtype()
        array = self.some_array(dtype, self.choices.pick((1, 2)))
        for _ in range(self.choices.pick((1, 2))):
            index = INDICES[len(array.shape) - 1]
            lead = "".join(f"{k}, " for k in INDICES[: len(array.shape) - 1])
            extent = array.shape[-1]
            if self.choices.chance(40) and not extent.isdecimal():
                shape = (*array.shape[:-1], f"{extent} - 2")
                texts = [f"{array.name}[{lead}{index}{step}]" for step in ("", " + 1", " + 2")]
                array = self.let(" + ".join(texts), dtype, shape, f"{lead}{index} in 0..{extent} - 2")
                continue
            kind = self.choices.favour({f"view {v}": v for v in ("edge", "wrap", "reflect", "symmetric", "constant")})
            view = f"{kind}({array.name}{', ' + self.number(dtype, plain=False) if kind == 'constant' else ''})"
            if self.choices.chance(40):
                name = self.name()
                self.lines.append(f"let {name} = {view}")
                view = name
            steps = self.choices.pick(((" - 1", "", " + 1"), (" - 1", " + 1"), ("", " + 2"), (" - 3", " + 3")))
            text = " + ".join(f"{view}[{lead}{index}{step}]" for step in steps)
            array = self.let(text, dtype, array.shape, f"{lead}{index} in 0..{extent}")

    def form_gather(self) -> None:
        """Rows by number; the numbers have a domain, or what is read is checked."""
        dtype = self.dtype()
        table = self.some_array(dtype, self.choices.pick((1, 2)))
        rows = self.dim()
        checked = self.choices.chance(15)
        index = self.declare("i32", (rows,)) if checked else self.indices_below(table.shape[0], (rows,))
        if self.choices.chance(50):
            self.let(f"{table.name}[{index.name}]", dtype, (rows, *table.shape[1:]))
            return
        rest = INDICES[1 : len(table.shape)]
        text = f"{table.name}[{', '.join((f'{index.name}[i]', *rest))}]"
        if self.choices.chance(40) and dtype != "bool":
            text = f"{text} * {self.number(dtype)}"
        self.let(text, dtype, (rows, *table.shape[1:]), ", ".join(("i", *rest)))

    def form_ragged(self) -> None:
        """Reductions over ranges that are read from data, as of a sparse matrix."""
        dtype = self.some_dtype((*FLOATS, "i64", "u64"))
        values, rows = self.some_array(dtype, 1), self.dim()
        start = self.declare("i32", (f"{rows} + 1",), f"0 <= {{}} <= {values.shape[0]}")
        monoid = self.choices.pick(("sum", "max", "min"))
        bounds = f"{start.name}[i]..{start.name}[i + 1]"
        self.let(f"{monoid}({values.name}[k] for k in {bounds})", dtype, (rows,), f"i in 0..{rows}")

    # -- order and state ----------------------------------------------------------------------------------------------

    def updates(self) -> dict[str, tuple[str, str]]:
        """How a scatter may combine elements of which type, by the reductions that coverage counts."""
        found = {}
        for m in MONOIDS.values():
            for dtype in DTYPES.values():
                if m.update is not None and {dtype.kind} <= {*m.kinds} & {*OPS[m.op].kinds}:
                    accumulator = m.accumulator(dtype) if dtype.is_float else dtype
                    found[f"fold {m.name} {accumulator}"] = m.update, dtype.name
        return found

    def form_scatter(self) -> None:
        """An accumulation at places that are read from data."""
        update, dtype = self.choices.favour(self.updates())
        rows, bins = self.dim(), self.choices.pick((self.dim(), "4"))
        index = self.indices_below(bins, (rows,))
        scope: Scope = {"i": rows}
        inner: Shape = ()
        if self.choices.chance(30):
            inner = (self.dim(),)
            scope["j"] = inner[0]
        value = bare(self.element(dtype, scope, 2))
        kind = DTYPES[dtype].kind
        least = {"max=": "-inf", "min=": "inf"}.get(update, "0") if kind == "float" else UPDATES[update] or "1"
        start = UPDATES[update] or least
        if dtype == "bool":
            start = "true" if update == "&=" else "false"
        cond = ""
        if self.choices.chance(30):
            cond = f" if {bare(self.comparison(lambda d: self.leaf(d, scope), scope))}"
        name = self.name()
        extents = ", ".join((bins, *inner))
        target = ", ".join((f"{index.name}[i]", *(["j"] if inner else [])))
        ranges = ", ".join(f"{k} in 0..{e}" for k, e in scope.items())
        self.lines.append(
            f"accum {name}: {dtype}[{extents}] = {start} for {ranges}{cond} {{ {name}[{target}] {update} {value} }}"
        )
        self.defined(name, dtype, (bins, *inner))

    def form_scan(self) -> None:
        """A recurrence along the first axis of an array, with what it emits."""
        dtype = self.num_dtype()
        array = self.some_array(dtype, self.choices.pick((2, 1)))
        steps, rest = array.shape[0], array.shape[1:]
        state, carry, emitted = self.name(), self.name(), self.name()
        down = " by -1" if self.choices.chance(30) else ""
        start = f"zeros({dtype}, {', '.join(rest)})" if rest else f"{dtype}(0)"
        row = f"{array.name}[t]"
        new = self.choices.pick(
            (f"{carry} + {row}", f"maximum({carry}, {row})", f"{row} - {carry}", f"{carry} * 2 + {row}")
        )
        self.lines.append(
            f"scan t in 0..{steps}{down} carry ({carry} = {start}) {{\n  let {state} = {new}\n"
            f"  next {carry} = {state}\n  emit {emitted} = {self.choices.pick((state, carry))}\n}}"
        )
        self.defined(emitted, dtype, array.shape)
        self.defined(carry, dtype, rest)

    # -- functions and shapes -----------------------------------------------------------------------------------------

    def form_function(self) -> None:
        """A function of an element or array, and a call of it."""
        kind = self.choices.pick(("float", "num"))
        name = "fgh"[len(self.functions) % 3] + (str(len(self.functions) // 3) if len(self.functions) > 2 else "")
        bodies = ("z * 2 + z", "maximum(z, 0) - z", "abs(z) + 1", "minimum(z * z, 3)")
        floats = ("z / (1 + abs(z))", "exp(-z * z)", "0.5 * z * (1 + tanh(z))", "sqrt(abs(z)) * z", "fma(z, z, 1)")
        body = self.choices.pick((*bodies, *floats) if kind == "float" else bodies)
        dtype = self.float_dtype() if kind == "float" else self.num_dtype()
        shape = self.some_shape()
        if self.choices.chance(50):
            self.lines.append(f"fn {name}(z: {kind}[...]) = {body}")
        else:
            self.lines.append(f"fn {name}(z, s = 2) {{\n  let w = {body}\n  return w * s\n}}")
        argument = self.whole(dtype, shape, 2)  # before the function is known: it may not name an index of its own
        self.functions[name] = kind
        self.let(f"{name}({bare(argument)})", dtype, shape)

    def form_parts(self) -> None:
        """Parts of arrays, joined and taken apart."""
        dtype, shape = self.dtype(), self.some_shape(1, 2)
        a, b = self.whole_leaf(dtype, shape), self.whole_leaf(dtype, shape)
        lead, rest = shape[0], shape[1:]
        makers: dict[str, Callable[[], object]] = {
            "part concat": lambda: self.let(f"concat({a}, {b}, axis=0)", dtype, (product("2", lead), *rest)),
            "part stack": lambda: self.let(f"stack({a}, {b}, axis=0)", dtype, ("2", *shape)),
            "part slice": lambda: self.let(f"({a})[1:]" if "." in a else f"{a}[1:]", dtype, (f"{lead} - 1", *rest)),
            "part step": lambda: self.let(f"{a}[::2]", dtype, (f"({lead} + 1) // 2", *rest)),
            "part pad": lambda: self.padded(a, dtype, shape),
            "part repeat": lambda: self.let(f"repeat({a}, 3, axis=0)", dtype, (f"3 * {lead}", *rest)),
            "part tile": lambda: self.let(
                f"tile({a}, {', '.join('2' for _ in shape)})", dtype, tuple(product("2", e) for e in shape)
            ),
            "part split": lambda: self.split(dtype, shape),
            "part flat": lambda: self.let(f"reshape({a}, {product(*shape)})", dtype, (product(*shape),)),
            "part last": lambda: self.let(f"{a}[-1]", dtype, rest),
        }
        if len(shape) == 2:
            square = self.whole_leaf(dtype, (lead, lead))
            makers["part diagonal"] = lambda: self.let(f"diagonal({square})", dtype, (lead,))
        self.choices.favour(makers)()

    def padded(self, a: str, dtype: str, shape: Shape) -> None:
        """A wider array, by the mode of its border."""
        mode = self.choices.pick(("", "edge", "wrap", "reflect", "symmetric"))
        more = f', mode="{mode}"' if mode else ""
        self.let(f"pad({a}, 1{more})", dtype, tuple(f"{e} + 2" for e in shape))

    def split(self, dtype: str, shape: Shape) -> None:
        """Two halves."""
        whole = self.declare(dtype, (product("2", shape[0]), *shape[1:])) if self.room else None
        if whole is None:
            return
        first, second = self.name(), self.name()
        self.lines.append(f"let ({first}, {second}) = split({whole.name}, 2)")
        self.defined(first, dtype, shape)
        self.defined(second, dtype, shape)
