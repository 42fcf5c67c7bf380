"""From what a caller gives to what a program runs on: all sizes, all params, every input of the declared type.

Everything that can be wrong with data is found here, before anything runs: names, element types, numbers of axes,
extents, requirements, domains, and memory that does not exist.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from loopfuse import contracts, fitting, requires
from loopfuse.diag import Collector, Diagnostic, Span, UserError, error
from loopfuse.dtypes import DType, of_numpy
from loopfuse.frontend.typed import Input, Param, TypedProgram
from loopfuse.generate import Array, Request, Spec, Supplier, fit, leaves_nothing
from loopfuse.ir import Buffer
from loopfuse.memory import default_limit, show_bytes
from loopfuse.sizes import ONE, Poly
from loopfuse.solve import Equation, solve

MOST_REDRAWS = 20  # of made-up data that breaks a domain


@dataclass(frozen=True, slots=True)
class Bound:
    """What a run starts from: the value of every size, and every input and param buffer by its id."""

    sizes: dict[str, int]
    inputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller supplies.

    `inputs`: arrays, Python numbers or suppliers by input name. `params`: numbers by param name. `dims`: sizes that
    the inputs do not settle. `seed` of the generated inputs. `limit`: bytes that may be allocated (None: most of what
    is free). `fill`: make up missing inputs and sizes.
    """

    inputs: Mapping[str, object]
    params: Mapping[str, object] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    limit: int | None = None
    fill: bool = False


def bind(typed: TypedProgram, given: Given) -> Bound:
    """Bind `given` to the program's declarations.

    Raises `UserError`: LF0501 missing, LF0502 unknown name, LF0503 element type, LF0504 axes, LF0517 extents that
    disagree, LF0506 extents that do not divide, LF0507 sizes that nothing settles, LF0508 params, LF0509 memory,
    LF0610 and LF0611 requirements, LF0612 domains.
    """
    collector = Collector()
    _check_names(typed, given, collector)
    params = {p.name: v for p in typed.params if (v := _param(p, given.params, collector)) is not None}
    data = {i.name: d for i in typed.inputs if (d := _accept(typed, i, given, collector)) is not None}
    collector.raise_errors()
    sizes = _sizes(typed, given, params, data)
    sizes = _emptied(typed, given, params, data, sizes) if given.fill else sizes
    check_memory(input_bytes(typed, sizes), given.limit, "the inputs")
    buffers = {b.id: b for b in typed.buffers}
    values = {p.name: params[p.name] for p in typed.params if p.name in buffers}
    requires.check_requires(typed, sizes, values)
    requires.check_sizes(typed, sizes)
    inputs = {**values, **_make(typed, given, sizes, values, data)}
    if given.fill:
        _redraw(typed, given, sizes, inputs)
    contracts.check_domains(typed, sizes, inputs)
    return Bound(sizes, inputs)


# -- names and values -------------------------------------------------------------------------------------------------


def _check_names(typed: TypedProgram, given: Given, collector: Collector) -> None:
    inputs = [i.name for i in typed.inputs]
    params = [p.name for p in typed.params]
    for name in given.inputs:
        if name not in inputs:
            help_ = f"it is a param: -p {name}=VALUE" if name in params else None
            collector.add(_unknown(name, "input", inputs, help_))
    for name in given.params:
        if name not in params:
            help_ = f"it is an input: {name}=FILE" if name in inputs else None
            collector.add(_unknown(name, "param", params, help_))
    shapes = [s.id for s in typed.sizes if s.origin == "shape"]
    for name, value in given.dims.items():
        fixed = next((s for s in typed.sizes if s.id == name and s.origin == "compile"), None)
        if fixed is not None:
            collector.add(error("LF0502", f"`{name}` is fixed by the script to {fixed.value}", fixed.span,
                                fix=f"-D {name}={value}"))  # fmt: skip
        elif name not in shapes:
            collector.add(_unknown(name, "dim", shapes, None))
        elif value < 0:
            collector.add(error("LF0506", f"the dim `{name}` cannot be {value}"))


def _unknown(name: str, what: str, names: list[str], help_: str | None) -> Diagnostic:
    near = difflib.get_close_matches(name, names, 1)
    has = f"its {what}s are {', '.join(names)}" if names else f"it has no {what}s"
    return error("LF0502", f"the program has no {what} `{name}`", notes=[has], helps=[help_] if help_ else [],
                 fix=f"did you mean `{near[0]}`?" if near and not help_ else None)  # fmt: skip


def _param(param: Param, values: Mapping[str, object], collector: Collector) -> Array | None:
    """The value of a param as a 0-d array of its type."""
    value = values.get(param.name, param.default)
    if value is None:
        collector.add(error("LF0508", f"the param `{param.name}` has no default and was not given", param.span,
                            f"{param.dtype}", fix=f"-p {param.name}=VALUE"))  # fmt: skip
        return None
    made = _number(value, param.dtype)
    if made is None:
        collector.add(error("LF0508", f"the param `{param.name}` is {param.dtype}, which cannot hold {value!r}",
                            param.span, f"{param.dtype}", notes=_limits(param.dtype)))  # fmt: skip
    return made


def _limits(dtype: DType) -> list[str]:
    if dtype.is_int:
        return [f"{dtype} holds integers from {dtype.least} to {dtype.greatest}"]
    return ["a bool is true or false"] if dtype.kind == "bool" else []


def _number(value: object, dtype: DType) -> Array | None:
    """A scalar in the type of the declaration, by the rules of a literal; None where it does not fit."""
    if isinstance(value, np.generic | np.ndarray) and value.shape == ():
        found = of_numpy(value.dtype)
        if found == dtype:
            return np.asarray(value)
        if found is None:
            return None
        value = bool(value) if found.kind == "bool" else int(value) if found.is_int else float(value)
    return fit(value, dtype) if isinstance(value, bool | int | float) else None


def _accept(typed: TypedProgram, entry: Input, given: Given, collector: Collector) -> Array | Supplier | None:
    """The data of an input, once its type and number of axes are right."""
    buffer = next(b for b in typed.buffers if b.id == entry.buffer)
    if entry.name not in given.inputs:
        if given.fill:
            return Spec("auto", (), "auto")
        declared = show_type(buffer)
        collector.add(error("LF0501", f"the input `{entry.name}` was not given", entry.span or buffer.span, declared,
                            fix=f"{entry.name}=FILE, or {entry.name}={_suggested(buffer)}"))  # fmt: skip
        return None
    value = given.inputs[entry.name]
    if _supplies(value):
        return value  # type: ignore[return-value]
    if isinstance(value, bool | int | float) and not buffer.shape:
        made = fit(value, buffer.dtype)
        if made is None:
            collector.add(error("LF0503", f"the input `{entry.name}` is {buffer.dtype}, which cannot hold {value!r}",
                                entry.span, f"{buffer.dtype}"))  # fmt: skip
        return made
    return _array(entry, buffer, value, collector)


def _supplies(value: object) -> bool:
    return callable(getattr(value, "make", None)) and callable(getattr(value, "elements", None))


def _suggested(buffer: Buffer) -> str:
    return "randn" if buffer.dtype.is_float else "randint(0, 2)" if buffer.dtype.kind == "bool" else "randint(0, 10)"


def _array(entry: Input, buffer: Buffer, value: object, collector: Collector) -> Array | None:
    """`value` as an array, if its type and number of axes are those declared."""
    try:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask")
        array = np.asarray(value)
    except Exception as why:  # whatever a foreign object's conversion raises is the caller's to know
        collector.add(error("LF0503", f"the input `{entry.name}` cannot be made an array: {why}", entry.span))
        return None
    found, declared = of_numpy(array.dtype) if array.dtype.kind not in "OSUMm" else None, show_type(buffer)
    if not array.dtype.isnative and found is not None:
        array = array.astype(found.numpy)
    if found != buffer.dtype:
        spelled = f"ml_dtypes.{buffer.dtype.numpy}" if buffer.dtype.name == "bf16" else f"np.{buffer.dtype.numpy}"
        spelled = "np.bool_" if buffer.dtype.kind == "bool" else spelled
        cast = [f"or declare `input {entry.name}: {found}{declared.removeprefix(str(buffer.dtype))}` and cast in the "
                f"script: {buffer.dtype}({entry.name})"] if found else []  # fmt: skip
        collector.add(error("LF0503", f"the input `{entry.name}` is {found or array.dtype} and must be {buffer.dtype}",
                            entry.span or buffer.span, declared, notes=["data is never converted in silence"],
                            helps=cast, fix=f"{entry.name}.astype({spelled})"))  # fmt: skip
        return None
    if array.ndim != len(buffer.shape):
        extents = ", ".join(map(str, array.shape))
        collector.add(error("LF0504", f"the input `{entry.name}` has {_axes(array.ndim)} [{extents}] and must have "
                                      f"{len(buffer.shape)}: {declared}", entry.span or buffer.span, declared,
                            notes=_grey(array, buffer)))  # fmt: skip
        return None
    return array


def _axes(count: int) -> str:
    return f"{count} ax{'i' if count == 1 else 'e'}s"


def _grey(array: Array, buffer: Buffer) -> list[str]:
    """Two axes where three are declared, in bytes: a grey picture."""
    if array.ndim == 2 and len(buffer.shape) == 3 and buffer.dtype.name == "u8":
        return ["a grey image has no axis of colours: declare [H, W]"]
    return []


def show_type(buffer: Buffer) -> str:
    """The declared type as the language writes it: `f32[N, 4*U]`."""
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]" if buffer.shape else str(buffer.dtype)


# -- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(typed: TypedProgram, given: Given, params: Mapping[str, Array], data: Mapping[str, Array | Supplier],
           ) -> dict[str, int]:  # fmt: skip
    """Every size of the program."""
    ask = _ask(typed, given, params, data)
    if not ask.missing:
        return dict(ask.known)
    if not given.fill:
        raise UserError(_undetermined(typed, data, ask.missing))
    filled = fitting.choose_sizes(ask)
    if filled is None:
        raise UserError(_unmet(ask) or _undetermined(typed, data, ask.missing))
    return filled


def _ask(typed: TypedProgram, given: Given, params: Mapping[str, Array], data: Mapping[str, Array | Supplier],
         ) -> fitting.Ask:  # fmt: skip
    """The sizes that are settled, those that are not, and what must hold of them."""
    known = {s.id: s.value for s in typed.sizes if s.value is not None and s.origin == "compile"}
    known |= {s.id: int(params[s.id]) for s in typed.sizes if s.origin == "param" and s.id in params}
    known |= given.dims
    equations = list(_equations(typed, data))
    solution = solve(equations, known)
    missing = [s.id for s in typed.sizes if s.id not in solution.sizes]
    values = {p.name: params[p.name] for p in typed.params if p.name not in known and p.name in params}
    return fitting.Ask(typed, solution.sizes, missing, values, [e for e in equations if e.poly.names & set(missing)])


def _emptied(typed: TypedProgram, given: Given, params: Mapping[str, Array], data: Mapping[str, Array | Supplier],
             sizes: dict[str, int]) -> dict[str, int]:  # fmt: skip
    """The sizes with an extent of 0, of those that are made up, for each made-up input of which a domain leaves no
    element at these sizes: `0 <= ids < N` with N = 0. As they are where the requirements allow none."""
    ask = _ask(typed, given, params, data)
    for entry in typed.inputs if ask.missing else ():
        if not _impossible(typed, entry, data[entry.name], sizes) or not contracts.named(typed, entry):
            continue
        for name in may_be_zero(typed, entry, sizes, params):
            found = fitting.nearest(ask, {**sizes, name: 0}) if name in ask.missing else None
            if found is not None and not _impossible(typed, entry, data[entry.name], found):
                sizes = found
                break
    return sizes


def _impossible(typed: TypedProgram, entry: Input, value: Array | Supplier, sizes: Mapping[str, int]) -> bool:
    """Whether an input is made up, has elements, and its domain leaves no value for them."""
    buffer = next(b for b in typed.buffers if b.id == entry.buffer)
    return (isinstance(value, Spec) and value.kind == "auto" and all(p.value(sizes) for p in buffer.shape)
            and leaves_nothing(contracts.bounds_of(typed, entry, sizes), buffer.dtype))  # fmt: skip


def may_be_zero(typed: TypedProgram, entry: Input, sizes: Mapping[str, int], params: Mapping[str, Array]) -> list[str]:
    """The sizes of which each could be 0 with the others as they are, so that an input has no elements."""
    buffer = next(b for b in typed.buffers if b.id == entry.buffer)
    extents = {p.name for p in buffer.shape}
    found: list[str] = []
    for size in typed.sizes:
        if size.id in extents and size.origin == "shape":
            with suppress(UserError):
                requires.check_requires(typed, {**sizes, size.id: 0}, params)
                requires.check_sizes(typed, {**sizes, size.id: 0})
                found.append(size.id)
    return found


def unsettled(typed: TypedProgram, given: Given) -> list[str]:
    """The sizes that neither the script nor what is given settles, which `fill` makes up."""
    return list(_filling(typed, given).missing)


def fitted(typed: TypedProgram, given: Given, wished: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes that nothing settles, as near to those wished for as the requirements allow; None where none were
    found."""
    ask = _filling(typed, given)
    found = fitting.nearest(ask, wished)
    return None if found is None else {name: found[name] for name in ask.missing}


def _filling(typed: TypedProgram, given: Given) -> fitting.Ask:
    quiet = Collector()
    params = {p.name: v for p in typed.params if (v := _param(p, given.params, quiet)) is not None}
    given = replace(given, fill=True)
    data = {i.name: d for i in typed.inputs if (d := _accept(typed, i, given, quiet)) is not None}
    return _ask(typed, given, params, data)


def _equations(typed: TypedProgram, data: Mapping[str, Array | Supplier]) -> Iterable[Equation]:
    buffers = {b.id: b for b in typed.buffers}
    for entry in typed.inputs:
        buffer, value = buffers[entry.buffer], data[entry.name]
        span = entry.span or buffer.span
        if isinstance(value, np.ndarray):
            for axis, (poly, extent) in enumerate(zip(buffer.shape, value.shape, strict=True)):
                yield Equation(poly, extent, f"axis {axis} of `{entry.name}`", span)
        elif (count := value.elements(buffer.dtype)) is not None:
            yield Equation(_product(buffer.shape), count, f"the whole of `{entry.name}`", span)


def _product(shape: Iterable[Poly]) -> Poly:
    total = ONE
    for extent in shape:
        total = total * extent
    return total


def _unmet(ask: fitting.Ask) -> Diagnostic | None:
    """What to say where sizes were looked for, and none met the requirements."""
    broken = fitting.unmet(ask)
    if not broken:
        return None
    texts = [f"`{requires.require_text(r)}`" for r in broken]
    named = f"{', '.join(texts[:-1])} and {texts[-1]} together" if len(texts) > 1 else texts[0]
    known = {n: ask.known[n] for r in broken for n in sorted(requires.names_of(r.cond)) if n in ask.known}
    with_ = f" with {', '.join(f'{n} = {v}' for n, v in known.items())}" if known else ""
    return error("LF0507", f"no sizes were found that meet {named}{with_}", broken[0].span,
                 notes=dict.fromkeys(r.message for r in broken if r.message),
                 fix=f"--dims {','.join(f'{n}=..' for n in ask.missing)}")  # fmt: skip


def _undetermined(typed: TypedProgram, data: Mapping[str, Array | Supplier], missing: Sequence[str]) -> Diagnostic:
    spans = {s.id: s.span for s in typed.sizes}
    buffers = {b.id: b for b in typed.buffers}
    made = [f"`{i.name}` = {v.text} is {show_type(buffers[i.buffer])}" for i in typed.inputs
            if not isinstance(v := data[i.name], np.ndarray) and not v.elements(buffers[i.buffer].dtype)]  # fmt: skip
    named = ", ".join(f"`{n}`" for n in missing)
    where: Span | None = spans[missing[0]]
    return error("LF0507", f"nothing says how large {named} {'is' if len(missing) == 1 else 'are'}", where,
                 notes=made[:2], fix=f"--dims {','.join(f'{n}=..' for n in missing)}")  # fmt: skip


# -- memory and data --------------------------------------------------------------------------------------------------


def _make(typed: TypedProgram, given: Given, sizes: Mapping[str, int], params: Mapping[str, Array],
          data: Mapping[str, Array | Supplier]) -> dict[str, Array]:  # fmt: skip
    """The input buffers by id, generated where a supplier was given."""
    buffers = {b.id: b for b in typed.buffers}
    made: dict[str, Array] = {}
    for entry in typed.inputs:
        value, buffer = data[entry.name], buffers[entry.buffer]
        if isinstance(value, np.ndarray):
            made[entry.buffer] = value
            continue
        shape = tuple(p.value(sizes) for p in buffer.shape)
        if any(extent < 0 for extent in shape):
            raise UserError(error("LF0506", f"`{entry.name}` would have the shape {list(shape)}", entry.span))
        bounds = contracts.bounds_of(typed, entry, sizes)
        request = Request(entry.name, shape, buffer.dtype, bounds, given.seed)
        if _impossible(typed, entry, value, sizes):
            raise UserError(contracts.without_data(typed, entry, sizes, may_be_zero(typed, entry, sizes, params)))
        made[entry.buffer] = value.make(request)
    return made


def _redraw(typed: TypedProgram, given: Given, sizes: Mapping[str, int], inputs: dict[str, Array]) -> None:
    """Replace the elements of made-up inputs that break a domain which is more than bounds on each element.

    Raises `UserError` LF0612 where that does not come to an end.
    """
    made = {i.name: i for i in typed.inputs if i.name not in given.inputs}
    for attempt in range(1, MOST_REDRAWS + 1):
        wrong = [(made[str(c.domain_of)], holds) for c, holds in contracts.domain_masks(typed, sizes, inputs)
                 if c.domain_of in made and not holds.all()]  # fmt: skip
        if not wrong:
            return
        if attempt == MOST_REDRAWS:
            raise UserError(contracts.without_data(typed, wrong[0][0], sizes, tries=attempt))
        for entry, holds in wrong:
            array = inputs[entry.buffer]
            dtype = next(b.dtype for b in typed.buffers if b.id == entry.buffer)
            bounds = contracts.bounds_of(typed, entry, sizes)
            fresh = Spec("auto", (), "auto").make(Request(entry.name, array.shape, dtype, bounds, given.seed + attempt))
            # A domain may be one condition on the whole, or on another array: then all is drawn again.
            inputs[entry.buffer] = np.where(holds, array, fresh) if holds.shape == array.shape else fresh


def input_bytes(typed: TypedProgram, sizes: Mapping[str, int]) -> int:
    """The bytes of all inputs."""
    inputs = {i.buffer for i in typed.inputs}
    return sum(buffer_bytes(b, sizes) for b in typed.buffers if b.id in inputs)


def buffer_bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """The bytes that a buffer needs at these sizes; of a windowed axis only the window, where its width is fixed."""
    extents = [max(0, int(p.value(sizes))) for p in buffer.shape]
    for axis, (lows, highs) in enumerate(buffer.window or ()):
        widths = [(high - low) for low in lows for high in highs]
        fixed = [int(w.value(sizes)) for w in widths if w.names <= sizes.keys()]
        extents[axis] = min([extents[axis], *(max(0, w) for w in fixed)])
    return math.prod(extents) * buffer.dtype.itemsize


def check_memory(needed: int, limit: int | None, what: str, largest: str = "") -> None:
    """Raise LF0509 where `needed` bytes are more than `limit` (None: most of what is free)."""
    allowed = default_limit() if limit is None else limit
    if needed > allowed:
        notes = [largest] if largest else []
        raise UserError(error("LF0509", f"{what} need {show_bytes(needed)} of memory, and {show_bytes(allowed)} may be "
                                        "used", notes=notes, fix="smaller sizes, or --limit"))  # fmt: skip
