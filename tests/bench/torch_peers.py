"""The workloads in PyTorch: what eager PyTorch and torch.compile run, and the same in f64 as what is right; and the calls of
the vendor's libraries that somebody who knows them would make."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def small_chain(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(10):
        x = torch.tanh(x * 0.5 + y)
        y = y - x * 0.1
    return x * y


def ew_chain(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.tanh(x * 1.5 + y) * torch.sigmoid(z) + torch.exp(-x * x) * y


def sigmoid_mul(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x) * y


def bias_gelu(x: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b, approximate="tanh")


def lstm_gate(g: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, z, o = g.chunk(4, dim=1)
    new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(new), new


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def sumsq(x: Tensor) -> Tensor:
    return (x * x).sum()


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def layernorm_residual(x: Tensor, res: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return res + F.layer_norm(x, (x.shape[1],), w, b)


def mean_var_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim=1)


def mean_var_cols(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim=0)


def cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return torch.logsumexp(wide(x), dim=-1) - wide(x.gather(1, t[:, None]).squeeze(1))


def gemv(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.relu(a @ b + c)


def blur(x: Tensor) -> Tensor:
    h = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3
    return (h[:-2] + h[1:-1] + h[2:]) / 3


def nearest(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1).min(1).values


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def linear_gelu(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.gelu(a @ b + c, approximate="tanh")


def linear_gelu_kmajor(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.gelu(a @ b.t() + c, approximate="tanh")


def linear_residual(a: Tensor, b: Tensor, c: Tensor, r: Tensor) -> Tensor:
    return a @ b + c + r


def linear_i8(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ b.to(a.dtype)) * c


def swiglu(a: Tensor, b: Tensor) -> Tensor:
    gate, up = (a @ b).chunk(2, dim=1)
    return F.silu(gate) * up


def matmul_colsum(a: Tensor, b: Tensor) -> Tensor:
    return wide(a @ b).sum(0)


def matmul_residual_ln(a: Tensor, b: Tensor, c: Tensor, r: Tensor, w: Tensor, bb: Tensor) -> Tensor:
    return F.layer_norm(a @ b + c + r, (b.shape[1],), w, bb)


def ffn_block(x: Tensor, g: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return x + (F.gelu(F.layer_norm(x, (x.shape[1],), g, b) @ w1 + b1, approximate="tanh") @ w2 + b2)


def qkv_gqa(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, bq: Tensor, bk: Tensor, bv: Tensor) -> tuple[Tensor, ...]:
    return torch.addmm(bq, x, wq), torch.addmm(bk, x, wk), torch.addmm(bv, x, wv)


def wide(x: Tensor) -> Tensor:
    """Half types in f32; the rest as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


PEERS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (
    small_chain, ew_chain, sigmoid_mul, bias_gelu, lstm_gate, transpose_add, sumsq, softmax, layernorm_residual,
    mean_var_rows, mean_var_cols, cross_entropy, gemv, blur, nearest, matmul, linear_gelu, linear_gelu_kmajor,
    linear_residual, linear_i8, swiglu, matmul_colsum, matmul_residual_ln, ffn_block, qkv_gqa,
)}  # fmt: skip


def exact(peer: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What is right, in f64. Slices of rows go one by one where the whole would not fit."""
    wide64 = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    if peer == "nearest":
        distance = torch.cdist(wide64["x"], wide64["y"], compute_mode="donot_use_mm_for_euclid_dist")
        return [distance.min(1).values.square()]
    found = PEERS[peer](**wide64)
    return list(found) if isinstance(found, tuple) else [found]


def activated(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A linear layer and its activation in one call of cuBLASLt: the fused epilogue."""
    return torch._addmm_activation(bias, a, b, use_gelu=True)


def library(peer: str, inputs: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Calls of the vendor's library, by name. What is stored otherwise than it is given is stored so beforehand."""
    t = SimpleNamespace(**inputs)
    if peer == "matmul":
        turned = t.b.t().contiguous()
        return {"cublas": lambda: torch.mm(t.a, t.b), "cublas-kmajor": lambda: torch.mm(t.a, turned.t())}
    calls: dict[str, dict[str, Callable[[], Tensor]]] = {
        "linear_gelu": {"cublaslt": lambda: activated(t.c, t.a, t.b)},
        "linear_gelu_kmajor": {"cublaslt": lambda: activated(t.c, t.a, t.b.t())},
        "linear_residual": {"addmm+add": lambda: torch.addmm(t.c, t.a, t.b).add_(t.r)},
        "matmul_colsum": {"mm+sum": lambda: torch.mm(t.a, t.b).sum(0, dtype=torch.float32)},
        "matmul_residual_ln": {
            "addmm+add+ln": lambda: F.layer_norm(torch.addmm(t.c, t.a, t.b).add_(t.r), t.w.shape, t.w, t.bb)
        },
        "ffn_block": {
            "ln+cublaslt+addmm": lambda: torch.addmm(
                t.b2, activated(t.b1, F.layer_norm(t.x, t.g.shape, t.g, t.b), t.w1), t.w2
            ).add_(t.x)
        },
    }
    return calls.get(peer, {})
