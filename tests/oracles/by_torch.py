"""PyTorch's answers for scripts that have formulas in `library` and `networks`, in float64 on the processor.

Nothing here imports torch: a function is given the module and the inputs as tensors, by name as in `Values`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracles.core import Array, Case, Values
from tests.oracles.networks import SETTINGS

Answer = Callable[[Any, Values], dict[str, Any]]


def activations(torch: Any, v: Values) -> dict[str, Any]:
    F, x = torch.nn.functional, v.x
    return {"r": F.relu(x), "s": torch.sigmoid(x), "u": F.silu(x), "p": F.softplus(x, threshold=50), "g": F.gelu(x),
            "t": F.gelu(x, approximate="tanh"), "n": F.relu(v.k)}  # fmt: skip


def softmaxes(torch: Any, v: Values) -> dict[str, Any]:
    x = v.x
    return {"s": torch.softmax(x, -1), "m": torch.softmax(x, 1), "l": torch.logsumexp(x, -1),
            "z": torch.logsumexp(x, 0), "p": torch.log_softmax(x, -1), "q": torch.log_softmax(x, 1)}  # fmt: skip


def norms(torch: Any, v: Values) -> dict[str, Any]:
    F, dims = torch.nn.functional, (v.D,)
    return {"l": F.layer_norm(v.x, dims, v.g, v.b), "r": F.rms_norm(v.x, dims, v.g, eps=1e-6),
            "v": F.layer_norm(v.x[0, 0], dims, v.g, v.b, eps=1e-2)}  # fmt: skip


def batchnorms(torch: Any, v: Values) -> dict[str, Any]:
    F, m, s = torch.nn.functional, v.m.clone(), v.s.clone()
    trained = F.batch_norm(v.x, m, s, v.g, v.b, training=True, momentum=0.25)
    var, mean = torch.var_mean(v.x, (0, 2, 3), correction=0)
    return {"y": F.batch_norm(v.x, v.m, v.s, v.g, v.b), "t": trained, "mu": mean, "va": var, "m1": m, "s1": s,
            "gn": F.group_norm(v.x, 2, v.g, v.b)}  # fmt: skip


def linears(torch: Any, v: Values) -> dict[str, Any]:
    F = torch.nn.functional
    return {"y": F.linear(v.x, v.w.T, v.b), "z": F.linear(v.x[0, 0], v.w.T, v.b)}


def convs(torch: Any, v: Values) -> dict[str, Any]:
    F, x, w, wg = torch.nn.functional, v.x, v.w, v.wg
    return {"p": F.conv2d(x, w), "q": F.conv2d(x, w, stride=2, padding=2, dilation=2),
            "g": F.conv2d(x, wg, padding=1, groups=2), "l": F.conv1d(x[:, :, 0], w[:, :, 0]),
            "m": F.conv1d(x[:, :, 0], wg[:, :, 0], stride=3, padding=2, groups=2)}  # fmt: skip


def pools(torch: Any, v: Values) -> dict[str, Any]:
    F, x = torch.nn.functional, v.x
    return {"a": F.max_pool2d(x, 2), "b": F.max_pool2d(x, 3, 2, 1), "c": F.avg_pool2d(x, 2),
            "d": F.avg_pool2d(x, 3, 1, 1)}  # fmt: skip


def attentions(torch: Any, v: Values) -> dict[str, Any]:
    attend = torch.nn.functional.scaled_dot_product_attention
    k, value = (a.repeat_interleave(v.HQ // v.HK, 1) for a in (v.k, v.v))
    seen = torch.ones(v.T, v.S, dtype=torch.bool).tril()
    first, second = v.q.chunk(2, -1)
    angle = torch.cat([v.angle, v.angle], -1)
    turned = v.q * torch.cos(angle) + torch.cat([-second, first], -1) * torch.sin(angle)
    return {"a": attend(v.q, k, value), "c": attend(v.q, k, value, attn_mask=seen),
            "s": attend(v.q, k, value, scale=0.5), "r": turned}  # fmt: skip


def losses(torch: Any, v: Values) -> dict[str, Any]:
    F = torch.nn.functional
    return {"e": F.embedding(v.ids, v.z), "loss": F.cross_entropy(v.z, v.y, ignore_index=-100)}


def _cell(cell: Any, torch: Any, weights: tuple[Any, Any, Any, Any]) -> Any:
    """A cell with weights as the scripts have them: [in, out], biases for input and state."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    with torch.no_grad():
        for name, tensor in zip(names, weights, strict=True):
            getattr(cell, name).copy_(tensor.T if tensor.ndim == 2 else tensor)
    return cell


def cells(torch: Any, v: Values) -> dict[str, Any]:
    forget = torch.zeros_like(v.b4)
    forget[v.U : 2 * v.U] = 1
    lstm = _cell(torch.nn.LSTMCell(v.I, v.U, dtype=torch.float64), torch, (v.w4, v.u4, v.b4, forget))
    gru = _cell(torch.nn.GRUCell(v.I, v.U, dtype=torch.float64), torch, (v.w3, v.u3, v.b3, v.d3))
    h, c = lstm(v.x, (v.h, v.c))
    return {"ho": h, "co": c, "go": gru(v.x, v.h)}


def conv(setting: tuple[int, int, int, int]) -> Answer:
    """A convolution with stride, padding, dilation and groups."""
    return lambda torch, v: {"y": torch.nn.functional.conv2d(v.x, v.w, None, *setting)}


def lstm(torch: Any, v: Values) -> dict[str, Any]:
    model = torch.nn.LSTM(v.I, v.U, 2, dtype=torch.float64)
    with torch.no_grad():
        for k in (0, 1):
            for name, tensor in (("weight_ih", v[f"w{k}"].T), ("weight_hh", v[f"u{k}"].T), ("bias_ih", v[f"b{k}"])):
                getattr(model, f"{name}_l{k}").copy_(tensor)
            getattr(model, f"bias_hh_l{k}").zero_()
    y, (h, c) = model(v.x)
    return {"y": y, "h0": h[0], "c0": c[0], "c1": c[1]}


def gru(torch: Any, v: Values) -> dict[str, Any]:
    model = torch.nn.GRU(v.I, v.U, dtype=torch.float64)
    with torch.no_grad():
        for name, tensor in (("weight_ih", v.w.T), ("weight_hh", v.u.T), ("bias_ih", v.b), ("bias_hh", v.d)):
            getattr(model, f"{name}_l0").copy_(tensor)
    return {"y": model(v.x)[0]}


# By the script's name, without the element type.
ANSWERS: dict[str, Answer] = {
    **{f"lib/{f.__name__}": f for f in (activations, softmaxes, norms, batchnorms, linears, convs, pools, attentions,
                                        losses, cells)},
    **{"net/conv_" + "_".join(map(str, s)): conv(s) for s in SETTINGS}, "net/lstm": lstm, "net/gru": gru,
}  # fmt: skip


def key(case: Case) -> str:
    """The name under which `ANSWERS` has a case."""
    stem = Path(case.script).with_suffix("").as_posix()
    return stem[:-4] if stem.endswith(("_f16", "_f32", "_f64")) else stem


def answer(torch: Any, case: Case, inputs: dict[str, Array]) -> dict[str, Array]:
    """PyTorch's outputs for the inputs of a case, widened to float64; integers stay."""
    values = Values(case.settings())
    for name, array in inputs.items():
        wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
        values[name] = torch.from_numpy(np.ascontiguousarray(wide))
    with torch.no_grad():
        return {name: np.asarray(t.detach().numpy()) for name, t in ANSWERS[key(case)](torch, values).items()}
