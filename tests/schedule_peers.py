"""The workloads whose best fused peer was timed on an H200, as finished kernels, with those times in milliseconds.

Each row: the measured time, and the kernels (a text and its sizes) that the whole workload takes when fused.
"""

from __future__ import annotations

from schedule_programs import TEXTS

SIGMOID = "1.0f32 / (1.0f32 + exp(-{}))"
GELU = "0.5f32 * {0} * (1.0f32 + tanh(0.7978846f32 * ({0} + 0.044715f32 * {0} * {0} * {0})))"

EW = f"""
program ew(N)
buf x: f32[N] in
buf y: f32[N] in
buf z: f32[N] in
buf o: f32[N] out
kernel k1
  par i < N
    a = x[i]
    b = y[i]
    c = z[i]
    o[i] = tanh(a * 1.5f32 + b) * ({SIGMOID.format("c")}) + exp(-a * a) * b
"""
GATE = f"""
program gate(M, N)
buf x: bf16[M, N] in
buf y: bf16[M, N] in
buf o: bf16[M, N] out
kernel k1
  par i < M, j < N
    a = f32(x[i, j])
    o[i, j] = bf16(({SIGMOID.format("a")}) * f32(y[i, j]))
"""
BIAS = f"""
program bias(M, N)
buf x: bf16[M, N] in
buf b: bf16[N] in
buf o: bf16[M, N] out
kernel k1
  par i < M, j < N
    z = f32(x[i, j]) + f32(b[j])
    o[i, j] = bf16({GELU.format("z")})
"""
GATES = f"""
program gates(M, U)
buf g: f32[M, 4*U] in
buf c: f32[M, U] in
buf h: f32[M, U] out
buf d: f32[M, U] out
kernel k1
  par i < M, u < U
    a = g[i, u]
    f = g[i, U + u]
    o = g[i, 3*U + u]
    e = ({SIGMOID.format("f")}) * c[i, u] + ({SIGMOID.format("a")}) * tanh(g[i, 2*U + u])
    d[i, u] = e
    h[i, u] = ({SIGMOID.format("o")}) * tanh(e)
"""
TRANSPOSE = """
program transpose(N)
buf x: f32[N, N] in
buf y: f32[N, N] in
buf o: f32[N, N] out
kernel k1
  par i < N, j < N
    o[i, j] = x[i, j] + y[j, i]
"""
_STEPS = "".join(
    f"    x{k + 1} = tanh(x{k} * 0.5f32 + y{k})\n    y{k + 1} = y{k} - x{k + 1} * 0.1f32\n" for k in range(10)
)
SMALL = f"""
program small(M, N)
buf x: f32[M, N] in
buf y: f32[M, N] in
buf o: f32[M, N] out
kernel k1
  par i < M, j < N
    x0 = x[i, j]
    y0 = y[i, j]
{_STEPS}    o[i, j] = x10 * y10
"""
LAYERNORM = """
program layernorm(M, D)
buf x: bf16[M, D] in
buf r: bf16[M, D] in
buf g: bf16[D] in
buf b: bf16[D] in
buf y: bf16[M, D] out
kernel k1
  par i < M
    fold j < D
      acc s: f32 sum
      s <- f32(x[i, j])
    mu = s / f32({D})
    fold j < D
      acc q: f32 sum
      d.1 = f32(x[i, j]) - mu
      q <- d.1 * d.1
    rs = rsqrt(q / f32({D}) + 1e-05f32)
    par j < D
      y[i, j] = bf16(f32(r[i, j]) + (f32(x[i, j]) - mu) * rs * f32(g[j]) + f32(b[j]))
"""
SOFTMAX = TEXTS["softmax"].replace("x: f32", "x: bf16").replace("y: f32", "y: bf16").replace(
    "x[i, j]", "f32(x[i, j])").replace("e[i, j] / l", "bf16(e[i, j] / l)")  # fmt: skip
MOMENTS_ROW = """
program moments(M, N)
buf x: f32[M, N] in
buf mu: f32[M] out
buf var: f32[M] out
kernel k1
  par i < M
    fold j < N
      acc s: f32 sum
      s <- x[i, j]
    m = s / f32({N})
    mu[i] = m
    fold j < N
      acc q: f32 sum
      d = x[i, j] - m
      q <- d * d
    var[i] = q / f32({N})
"""
MATMUL = """
program matmul(M, N, K)
buf A: bf16[M, K] in
buf B: bf16[K, N] in
buf y: bf16[M, N] out
kernel k1
  par i < M, j < N
    fold k < K
      acc a: f32 sum
      a <- f32(A[i, k]) * f32(B[k, j])
    y[i, j] = bf16(a)
"""
LINEAR = MATMUL.replace("buf y", "buf c: bf16[N] in\nbuf y").replace(
    "    y[i, j] = bf16(a)", f"    z = a + f32(c[j])\n    y[i, j] = bf16({GELU.format('z')})")  # fmt: skip
LINEAR_RESIDUAL = MATMUL.replace("buf y", "buf r: bf16[M, N] in\nbuf y").replace("bf16(a)", "bf16(a + f32(r[i, j]))")
LINEAR_F16 = LINEAR.replace("bf16", "f16")
LINEAR_F32 = LINEAR.replace("bf16(", "(").replace("bf16", "f32").replace("f32(A", "(A").replace("f32(B", "(B")
LINEAR_TF32 = LINEAR_F32.replace("program matmul(M, N, K)\n", "program matmul(M, N, K)\npragma tf32\n")
COLSUM = TEXTS["linear gelu colsum"].replace("f16", "bf16").replace("buf y: bf16[M, N] out\n", "").replace(
    "      y[i, j] = bf16(y.1)\n", "").replace(
    "      y.1 = 0.5f32 * z * (1.0f32 + erf(z * 0.70710677f32))\n", "      y.1 = z\n")  # fmt: skip
LINEAR_LN = TEXTS["linear layernorm"].replace("f16", "bf16").replace(
    "buf bias: f32[N] in\n", "buf bias: f32[N] in\nbuf r: bf16[M, N] in\n").replace(
    "h.1 = a + bias[j]", "h.1 = a + bias[j] + f32(r[i, j])")  # fmt: skip
GEMV = """
program gemv(N, K)
buf A: f16[K] in
buf B: f16[K, N] in
buf c: f16[N] in
buf y: f16[N] out
kernel k1
  par j < N
    fold k < K
      acc a: f32 sum
      a <- f32(A[k]) * f32(B[k, j])
    y[j] = f16(maximum(a + f32(c[j]), 0.0f32))
"""
CONV1 = """
program conv(B, H, W, C, K)
buf in: bf16[B, H, W, C] in
buf w: bf16[C, K] in
buf sc: bf16[K] in
buf out: bf16[B, H, W, K] out
kernel k1
  par n < B, y < H, x < W, o < K
    fold c < C
      acc a: f32 sum
      a <- f32(in[n, y, x, c]) * f32(w[c, o])
    out[n, y, x, o] = bf16(maximum(a * f32(sc[o]), 0.0f32))
"""
ATTENTION = TEXTS["attention"].replace("f16", "bf16").replace("S, D)", "S, D)")
FULL = ATTENTION.replace(" if {j} <= {i} else -inf:f32", "")
NORM = LAYERNORM.replace("buf r: bf16[M, D] in\n", "").replace("f32(r[i, j]) + ", "")

MiB = 1 << 20
Row = tuple[float, tuple[tuple[str, dict[str, int]], ...]]


def _mm(text: str, m: int, n: int, k: int) -> tuple[tuple[str, dict[str, int]], ...]:
    return ((text, {"M": m, "N": n, "K": k}),)


def _conv(text: str, hw: int, c: int, k: int) -> tuple[str, dict[str, int]]:
    return text, {"B": 128, "H": hw, "W": hw, "C": c, "K": k}


PEERS: dict[str, Row] = {
    "ew_chain_f32": (0.2474, ((EW, {"N": 64 * MiB}),)),
    "sigmoid_mul_bf16": (0.1881, ((GATE, {"M": 16384, "N": 8192}),)),
    "bias_gelu_bf16": (0.1806, ((BIAS, {"M": 16384, "N": 8192}),)),
    "lstm_gate_f32": (0.1126, ((GATES, {"M": 8192, "U": 2048}),)),
    "transpose_add_f32": (0.7486, ((TRANSPOSE, {"N": 16384}),)),
    "small_chain_f32": (0.00522, ((SMALL, {"M": 64, "N": 256}),)),
    "layernorm_residual_bf16_1024": (0.0972, ((LAYERNORM, {"M": 65536, "D": 1024}),)),
    "layernorm_residual_bf16_4096": (0.1111, ((LAYERNORM, {"M": 16384, "D": 4096}),)),
    "layernorm_residual_bf16_16384": (0.1027, ((LAYERNORM, {"M": 4096, "D": 16384}),)),
    "softmax_bf16_1024": (0.0673, ((SOFTMAX, {"M": 65536, "N": 1024}),)),
    "softmax_bf16_4096": (0.0793, ((SOFTMAX, {"M": 16384, "N": 4096}),)),
    "softmax_bf16_131072": (0.2864, ((SOFTMAX, {"M": 1024, "N": 131072}),)),
    "softmax_f32_4096": (0.142, ((TEXTS["softmax"], {"M": 16384, "N": 4096}),)),
    "mean_var_rows_f32": (0.1323, ((MOMENTS_ROW, {"M": 16384, "N": 8192}),)),
    "mean_var_cols_f32": (0.1487, ((TEXTS["moments"], {"N": 131072, "C": 1024}),)),
    "sumsq_f32": (0.2429, ((TEXTS["sumsq"], {"N": 1 << 28}),)),
    "cross_entropy_bf16": (1.1904, ((TEXTS["cross entropy"], {"M": 8192, "V": 128256}),)),
    "nearest_f32": (0.4116, ((TEXTS["nearest"], {"M": 32768, "N": 32768}),)),
    "blur_f32": (0.69965, ((TEXTS["blur"], {"H": 16384, "W": 16384}),)),
    "matmul_bf16_8192": (1.40173, _mm(MATMUL, 8192, 8192, 8192)),
    "matmul_bf16_4096": (0.18128, _mm(MATMUL, 4096, 4096, 4096)),
    "linear_gelu_bf16_8192": (1.41178, _mm(LINEAR, 8192, 8192, 8192)),
    "linear_gelu_bf16_4096x16384x4096": (0.72813, _mm(LINEAR, 4096, 16384, 4096)),
    "linear_gelu_bf16_k768": (0.26525, _mm(LINEAR, 32768, 3072, 768)),
    "linear_gelu_f16_8192": (1.46637, _mm(LINEAR_F16, 8192, 8192, 8192)),
    "linear_gelu_f32_4096": (2.71027, _mm(LINEAR_F32, 4096, 4096, 4096)),
    "linear_gelu_tf32_4096": (0.37962, _mm(LINEAR_TF32, 4096, 4096, 4096)),
    "matmul_colsum_bf16_8192": (1.43469, _mm(COLSUM, 8192, 8192, 8192)),
    "matmul_residual_ln_bf16": (0.07795, _mm(LINEAR_LN, 16384, 1024, 1024)),
    "gemv_f16_b1": (0.1351, ((GEMV, {"N": 16384, "K": 16384}),)),
    "conv_bn_relu_res_bf16_56x64": (0.11443, (_conv(TEXTS["conv"], 56, 64, 64),)),
    "conv_bn_relu_res_bf16_28x128": (0.07533, (_conv(TEXTS["conv"], 28, 128, 128),)),
    "conv_bn_relu_res_bf16_14x256": (0.05926, (_conv(TEXTS["conv"], 14, 256, 256),)),
    "attention_bf16_s4096_d128": (0.81779, ((FULL, {"B": 64, "S": 4096, "D": 128}),)),
    "attention_bf16_s4096_d64": (1.13533, ((FULL, {"B": 128, "S": 4096, "D": 64}),)),
    "attention_causal_bf16_s4096_d128": (0.48128, ((ATTENTION, {"B": 64, "S": 4096, "D": 128}),)),
    "ffn_block_bf16": (
        0.25837,
        ((NORM, {"M": 8192, "D": 1024}), *_mm(LINEAR, 8192, 4096, 1024), *_mm(LINEAR_RESIDUAL, 8192, 1024, 4096)),
    ),
}
