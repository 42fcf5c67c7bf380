"""The subscripts of the sample programs as obligations for the prover, by hand.

A case: program, facts, and lines `subscript < extent` with the verdict that the language's law gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """Facts at one place of a program and the subscripts there; verdicts are proved unless stated."""

    program: str
    subs: tuple[str, ...]
    sizes: str = ""
    require: str = ""
    loops: str = ""
    where: str = ""
    arrays: dict[str, str] = field(default_factory=dict)
    reftypes: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[str, str]] = field(default_factory=dict)
    defs: dict[str, tuple[str, str]] = field(default_factory=dict)
    refs: dict[str, tuple[str, str]] = field(default_factory=dict)
    lets: dict[str, str] = field(default_factory=dict)
    verdict: str = "proved"


_CONV = "n in 0..N; o in 0..O; i in 0..H - R + 1; j in 0..W - S + 1; c in 0..C; r in 0..R; s in 0..S"
_GROUPED = "(H + 2*pad - dil*(R - 1) - 1) // st + 1"

CASES = [
    # -- the thirteen
    Case("04_conv_bn_relu", ("n < N", "c < C", "o < C", "r < R", "s < S", "i < H", "j < W"), "N C H W R S",
         "R % 2 == 1 and S % 2 == 1", "n in 0..N; o in 0..C; i in 0..H; j in 0..W; c in 0..C; r in 0..R; s in 0..S"),
    Case("05_layernorm", ("b < B", "t < T", "d < D"), "B T D", "", "b in 0..B; t in 0..T; d in 0..D"),
    Case("07_attention", ("i < T", "j < T"), "T", "", "i in 0..T; j in 0..T", "j <= i"),
    Case("09_lstm", ("u < 4*U", "U + u < 4*U", "2*U + u < 4*U", "3*U + u < 4*U", "t < T"), "T U", "",
         "t in 0..T; u in 0..U"),
    Case("09_lstm gates", ("u < 4*U", "t + 1 < T + 1", "t < T + 1"), "T U", "", "t in 0..T; u in 0..4*U"),
    Case("10_blur", ("k < 2*R + 1", "y < H", "x < W", "c < 3"), "H W R=4", "",
         "y in 0..H; x in 0..W; c in 0..3; k in 0..2*R + 1"),
    Case("11_histeq", ("img[y, x] < 256",), "H W", "", "y in 0..H; x in 0..W", arrays={"img": "u8"}),
    Case("12_kmeans", ("label[n] < K", "d < D"), "N D K", "", "n in 0..N; d in 0..D", arrays={"label": "i64"},
         ranges={"label": ("0", "K - 1")}),
    Case("12_kmeans by its fold", ("label[n] < K",), "N D K", "", "n in 0..N; d in 0..D", arrays={"label": "i64"},
         reftypes={"best": "i64"}, defs={"label": ("n", "best")}, refs={"best": ("0", "K - 1")}),
    Case("13_nbody", ("j < N", "i < N", "a < 3"), "N", "", "i in 0..N; j in 0..N; a in 0..3"),
    # -- convolutions, pools, groups
    Case("conv_groupnorm_maxpool", ("i + r < H", "j + s < W", "c < C", "o < O"), "N C H W O R S",
         "H >= R and W >= S; O % 16 == 0", _CONV),
    Case("conv_groupnorm_maxpool pool", ("P*i + r < H - R + 1", "P*j + s < W - S + 1"), "H W R S P=4", "",
         "i in 0..(H - R + 1) // P; j in 0..(W - S + 1) // P; r in 0..P; s in 0..P"),
    Case("pool of symbolic width", ("P*i + r < HO",), "HO P", "", "i in 0..HO // P; r in 0..P"),
    Case("conv_groupnorm_residual_lse", ("i + r < H", "j + s < W"), "N C H W O", "",
         "i in 0..H - 2; j in 0..W - 2; r in 0..3; s in 0..3"),
    Case("convtranspose_clamp", ("(i + PAD - r) // ST < H", "(j + PAD - s) // ST < W", "c < C", "o < O"),
         "N C H W O R S ST=2 PAD=1 OP=1", "",
         "n in 0..N; o in 0..O; i in 0..(H - 1)*ST - 2*PAD + R + OP; j in 0..(W - 1)*ST - 2*PAD + S + OP;"
         "c in 0..C; r in 0..R; s in 0..S",
         "(i + PAD - r) % ST == 0 and 0 <= (i + PAD - r) // ST < H and (j + PAD - s) % ST == 0"
         " and 0 <= (j + PAD - s) // ST < W"),
    Case("convtranspose with symbolic stride", ("(i + PAD - r) // ST < H",), "H R ST PAD", "",
         "i in 0..(H - 1)*ST - 2*PAD + R; r in 0..R", "(i + PAD - r) % ST == 0 and 0 <= (i + PAD - r) // ST < H"),
    Case("depthwise_conv", ("ST*i + r < H", "ST*j + s < W"), "N C H W ST=2", "H >= 3 and W >= 3",
         "i in 0..(H - 3) // ST + 1; j in 0..(W - 3) // ST + 1; r in 0..3; s in 0..3"),
    Case("depthwise_conv symbolic stride", ("ST*i + r < H",), "H ST", "H >= 3",
         "i in 0..(H - 3) // ST + 1; r in 0..3"),
    Case("grouped_strided_conv", ("g < G", "c < CG", "o < OG", "g*CG + c < G*CG", "g*OG + o < G*OG"),
         "N CG OG H W R S G=4", "R >= 1 and S >= 1", "g in 0..G; o in 0..OG; c in 0..CG"),
    Case("nn.conv2d groups", ("g*(C // groups) + c < C", "g*(O // groups) + o < O"), "C CG O groups",
         "C == groups*CG; O % groups == 0", "g in 0..groups; o in 0..O // groups; c in 0..CG"),
    Case("nn.conv2d without padding", ("stride*i + dil*r < H",), "H R stride dil", "H >= dil*(R - 1) + 1",
         "i in 0..(H - dil*(R - 1) - 1) // stride + 1; r in 0..R"),
    Case("nn.group_norm reshape", ("g*(C // groups) + k // (H*W) < C", "k // W % H < H", "k % W < W"),
         "N C H W groups", "C % groups == 0", "n in 0..N; g in 0..groups; k in 0..(C // groups)*H*W"),
    Case("gemm_groupnorm_min_bias", ("g*K + k < G*K", "o // K < G", "o % K < K"), "B K G=512", "",
         "g in 0..G; k in 0..K; o in 0..G*K"),
    Case("reshape of symbolic groups", ("g*K + k < G*K", "o // K < G", "o % K < K"), "G K", "",
         "g in 0..G; k in 0..K; o in 0..G*K"),
    Case("batchnorm_train", ("c < C",), "N C H W", "N*H*W >= 2", "n in 0..N; c in 0..C; h in 0..H; w in 0..W"),
    Case("derived_size", ("i + r < H",), "H R", "", "i in 0..H - R + 1; r in 0..R"),
    Case("features pool", ("2*i < H", "2*i + 1 < H"), "H", "H >= 2", "i in 0..H // 2"),
    Case("features parity", ("codes[m] & 15 < 16",), "M", "", "m in 0..M",
         arrays={"codes": "u32"}),
    Case("int8_group_gemm", ("k // GS < K // GS", "k < K"), "N K GS=128", "K % GS == 0", "n in 0..N; k in 0..K"),
    Case("int8_group_gemm symbolic", ("k // GS < K // GS",), "K GS", "K % GS == 0", "k in 0..K"),
    # -- stencils, scans, guards
    Case("dtw", ("j - 1 < M",), "N M", "", "i in 0..N; j in 0..M", "j > 0"),
    Case("dtw last", ("M - 1 < M",), "N M", "N >= 1 and M >= 1"),
    Case("fdtd_2d", ("i - 1 < NX",), "NX NY", "", "i in 0..NX; j in 0..NY", "else i == 0"),
    Case("fdtd_2d columns", ("j - 1 < NY",), "NX NY", "", "i in 0..NX; j in 0..NY", "else j == 0"),
    Case("fdtd_2d hz", ("i + 1 < NX", "j + 1 < NY"), "NX NY", "", "i in 0..NX; j in 0..NY",
         "i < NX - 1 and j < NY - 1"),
    Case("jacobi_2d", ("i - 1 < N", "i + 1 < N", "j - 1 < N", "j + 1 < N"), "N", "", "i in 0..N; j in 0..N",
         "0 < i < N - 1 and 0 < j < N - 1"),
    Case("trisolv", ("k < N", "i < N"), "N", "", "i in 0..N; k in 0..i"),
    Case("cholesky", ("j < N", "i < N", "k < N"), "N", "", "k in 0..N; i in 0..N; j in 0..N", "i > k and j > k"),
    Case("nussinov pair", ("i + d < N",), "N", "N >= 1", "d in 1..N; i in 0..N", "i + d < N and d > 1"),
    Case("nussinov best", ("i + d - 1 < N", "i + 1 < N", "i + d < N"), "N", "N >= 1", "d in 1..N; i in 0..N",
         "i + d < N"),
    Case("nussinov inner", ("k < N", "k + 1 < N", "i + d < N"), "N", "N >= 1", "d in 1..N; i in 0..N; k in i + 1..i + d",
         "i + d < N; d > 1"),
    Case("nussinov update", ("i < N",), "N", "N >= 1", "d in 1..N; i in 0..N; j in 0..N", "j == i + d"),
    Case("first of a slice with a step", ("0 < M",), "M", "", "", "(M + 1) // 2 > 0"),
    Case("first of a slice that begins at 1", ("1 < M",), "M", "", "j in 0..(M + 1) // 3"),
    Case("third of a slice with a step", ("6 < M",), "M", "", "", "(M + 2) // 3 >= 3"),
    Case("first of a slice of a slice", ("0 < M",), "M", "", "i in 0..((M + 1) // 2 + 1) // 2"),
    Case("first of slices of two axes", ("0 < M", "0 < K"), "M K", "", "", "((M + 1) // 2) * ((K + 2) // 3) > 0"),
    # -- library
    Case("nn.attention", ("h // (HQ // HK) < HK", "j < S"), "HQ HK T S", "HQ % HK == 0",
         "h in 0..HQ; i in 0..T; j in 0..S"),
    Case("nn.rope low", ("d + D // 2 < D", "d % (D // 2) < D // 2"), "T D", "D % 2 == 0", "t in 0..T; d in 0..D",
         "d < D // 2"),
    Case("nn.rope high", ("d - D // 2 < D", "d % (D // 2) < D // 2"), "T D", "D % 2 == 0", "t in 0..T; d in 0..D",
         "else d < D // 2"),
    Case("rope_gqa_window", ("p - start < T",), "T S start?", "0 <= start <= S - T", "p in 0..S",
         "start <= p < start + T"),
    Case("a run-time start", ("start + t < S",), "T S start?", "0 <= start <= S - T", "t in 0..T"),
    # -- gathers and scatters
    Case("embedding_lm_head", ("ids[b, t] < V",), "V B T", "V >= 1", "b in 0..B; t in 0..T", arrays={"ids": "i32"},
         ranges={"ids": ("0", "V - 1")}),
    Case("knn", ("n < N", "near[t, q] < N", "lab[near[t, q]] < C"), "N D Q K=5 C=10", "N >= K",
         "q in 0..Q; t in 0..K; n in 0..N", arrays={"near": "i64", "lab": "i32"},
         ranges={"near": ("0", "N - 1"), "lab": ("0", "C - 1")}),
    Case("moe_dispatch", ("e[n] < E", "e[n] < 8"), "N D E=8 CAP=64", "", "n in 0..N", arrays={"e": "i32"},
         ranges={"e": ("0", "E - 1")}),
    Case("moe_dispatch slot", ("slot[n] < CAP",), "N D E=8 CAP=64", "", "n in 0..N", "slot[n] < CAP",
         arrays={"e": "i32", "pos": "i64", "slot": "i64"}, ranges={"e": ("0", "E - 1")},
         defs={"slot": ("n", "pos[n, e[n]] - 1")}, verdict="checked"),
    Case("compaction", ("pos[i] - 1 < N",), "N", "", "i in 0..N", arrays={"pos": "i64"}, verdict="checked"),
    Case("cross_entropy", ("lab[n] < V",), "N V IGNORE=-100", "", "n in 0..N", "lab[n] != IGNORE",
         arrays={"lab": "i64"}, verdict="checked"),
    Case("embedding_bag", ("ids[b, j] < V",), "B L V PADDING=-1", "", "b in 0..B; j in 0..L", "ids[b, j] != PADDING",
         arrays={"ids": "i32"}, verdict="checked"),
    Case("rank_sort", ("rank[b, i] < N",), "B N", "", "b in 0..B; i in 0..N", arrays={"rank": "i64"},
         verdict="checked"),
    Case("bilinear_resize", ("i < HO", "j < WO", "y0[i] < H", "x0[j] < W"), "H W HO=224 WO=224",
         "H >= 1 and W >= 1; H <= 65536; W <= 65536", "i in 0..HO; j in 0..WO",
         arrays={"sy": "f32", "sx": "f32", "y0": "i32", "x0": "i32"},
         defs={"sy": ("i", "clip((f32(i) + 0.5) * f32(H) / f32(HO) - 0.5, 0.0, f32(H - 1))"),
               "sx": ("j", "clip((f32(j) + 0.5) * f32(W) / f32(WO) - 0.5, 0.0, f32(W - 1))"),
               "y0": ("i", "i32(floor(sy[i]))"), "x0": ("j", "i32(floor(sx[j]))")}),
    Case("a named mask", ("i - 1 < N",), "N", "", "i in 0..N", "inner[i]", arrays={"inner": "bool"},
         defs={"inner": ("i", "i > 0 and i < N - 1")}),
    Case("fft butterfly", ("i ^ (1 << s) < N",),
         "N=1024 L=10", "", "s in 0..L; i in 0..N"),
]  # fmt: skip
