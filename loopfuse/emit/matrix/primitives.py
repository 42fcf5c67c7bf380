"""What contraction kernels call: barriers in shared memory, copies of tiles, and the instructions of the matrix units.

Source: PTX ISA 8.8 (wgmma, mbarrier, st.async, cp.async.bulk.tensor, stmatrix, ldmatrix, mma). All pointers are generic
ones; `bar` is a barrier in shared memory. A tile in shared memory has rows of 128 bytes, whose 16-byte chunks are permuted within
groups of eight rows (the 128-byte swizzle), and starts at a multiple of 1024 bytes.
"""

from __future__ import annotations

import re

_I = "__device__ __forceinline__ "
RANKS = (2, 3, 4, 5)  # axes of a tile map
COLUMNS = tuple(range(8, 257, 8))  # of a product of a warpgroup
WARPGROUP = {"bf16": ("float", "f32.bf16.bf16", 16), "f16": ("float", "f32.f16.f16", 16),
             "tf32": ("float", "f32.tf32.tf32", 8), "i8": ("int", "s32.s8.s8", 32)}  # fmt: skip
WARP = {"bf16": ("float", "m16n8k16.row.col.f32.bf16.bf16.f32"), "f16": ("float", "m16n8k16.row.col.f32.f16.f16.f32"),
        "tf32": ("float", "m16n8k8.row.col.f32.tf32.tf32.f32"), "i8": ("int", "m16n8k32.row.col.s32.s8.s8.s32")}  # fmt: skip


def _tile_load(rank: int) -> str:
    names = [f"c{n}" for n in range(rank)]
    slots = ", ".join(f"%{n + 3}" for n in range(rank))
    values = ", ".join(f'"r"({n})' for n in names)
    return (
        f"{_I}void lf_tile_load{rank}(void* to, const lf_map* map, unsigned long long* bar, "
        f"{', '.join(f'int {n}' for n in names)}) {{\n"
        f'  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes '
        f'[%0], [%1, {{{slots}}}], [%2];"\n'
        f'    :: "r"(lf_shared_at(to)), "l"(map), "r"(lf_shared_at(bar)), {values} : "memory");\n}}'
    )


def _tile_store(rank: int) -> str:
    names = [f"c{n}" for n in range(rank)]
    slots = ", ".join(f"%{n + 2}" for n in range(rank))
    values = ", ".join(f'"r"({n})' for n in names)
    return (
        f"{_I}void lf_tile_store{rank}(const lf_map* map, const void* from, {', '.join(f'int {n}' for n in names)}) {{\n"
        f'  asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%0, {{{slots}}}], [%1];"\n'
        f'    :: "l"(map), "r"(lf_shared_at(from)), {values} : "memory");\n}}'
    )


def warpgroup(name: str) -> str | None:
    """The definition of a product of a warpgroup by its name, `lf_mma_64x256_bf16_00`; None for any other name."""
    found = re.fullmatch(r"lf_mma_64x(\d+)_(\w+?)_([01r])([01])", name)
    if found is None or int(found[1]) not in COLUMNS or found[2] not in WARPGROUP:
        return None
    count, (kind, types, depth) = int(found[1]) // 2, WARPGROUP[found[2]]
    letter = "f" if kind == "float" else "r"
    slots = ", ".join(f"%{n}" for n in range(count))
    values = ", ".join(f'"+{letter}"(d[{n}])' for n in range(count))
    scales = ", 1, 1" if kind == "float" else ""
    layout = f", {found[3]}, {found[4]}" if depth == 16 else ""
    if found[3] == "r":  # the left operand comes from registers
        fours = ", ".join(f"%{count + k}" for k in range(4))
        lefts = ", ".join(f'"r"(a[{k}])' for k in range(4))
        layout = f", {found[4]}" if depth == 16 else ""
        return (
            f"{_I}void {name}({kind} (&d)[{count}], const unsigned int (&a)[4], unsigned long long b, bool keep) {{\n"
            f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0;\\n"\n'
            f'    "wgmma.mma_async.sync.aligned.m64n{count * 2}k{depth}.{types} {{{slots}}}, "\n'
            f'    "{{{fours}}}, %{count + 4}, p{scales}{layout}; }}"\n'
            f'    : {values} : {lefts}, "l"(b), "r"((int)keep));\n}}'
        )
    return (
        f"{_I}void {name}({kind} (&d)[{count}], unsigned long long a, unsigned long long b, bool keep) {{\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{count * 2}k{depth}.{types} {{{slots}}}, "\n'
        f'    "%{count}, %{count + 1}, p{scales}{layout}; }}"\n'
        f'    : {values} : "l"(a), "l"(b), "r"((int)keep));\n}}'
    )


def _warp(kind: str) -> str:
    result, shape = WARP[kind]
    letter = "f" if result == "float" else "r"
    values = ", ".join(f'"+{letter}"(d[{n}])' for n in range(4))
    return (
        f"{_I}void lf_mma_16x8_{kind}({result} (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {{\n"
        f'  asm volatile("mma.sync.aligned.{shape} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"\n'
        f'    : {values} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));\n}}'
    )


def _matrix(which: str, name: str) -> str:
    return (
        f"{_I}void {name}(const void* p, unsigned int& a, unsigned int& b, unsigned int& c, unsigned int& d) {{\n"
        f'  asm volatile("ldmatrix.sync.aligned.m8n8.x4{which}.shared.b16 {{%0, %1, %2, %3}}, [%4];"\n'
        '    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(lf_shared_at(p)) : "memory");\n}'
    )


def _stage(width: int) -> str:
    how = "cg" if width == 16 else "ca"
    return (
        f"{_I}void lf_stage{width}_if(void* to, const void* from, bool inside) {{\n"
        f'  asm volatile("cp.async.{how}.shared.global [%0], [%1], {width}, %2;"\n'
        f'    :: "r"(lf_shared_at(to)), "l"(from), "r"(inside ? {width} : 0) : "memory");\n}}'
    )


def _send(width: int, kind: str, letter: str) -> str:
    return (
        f"{_I}void lf_send{width}(void* to, {kind} value, unsigned long long* bar, unsigned int rank) {{\n"
        '  asm volatile("{ .reg .b32 t, b; mapa.shared::cluster.u32 t, %0, %3; mapa.shared::cluster.u32 b, %2, %3;\\n"\n'
        f'    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b{width * 8} [t], %1, [b]; }}"\n'
        f'    :: "r"(lf_shared_at(to)), "{letter}"(value), "r"(lf_shared_at(bar)), "r"(rank) : "memory");\n}}'
    )


PRIMITIVES: dict[str, str] = {
    "lf_map": "struct __align__(64) lf_map { unsigned long long w[16]; };",
    # By the built-in function, not by PTX: the compiler then does the arithmetic of such addresses in 32 bits.
    "lf_shared_at": _I + """unsigned int lf_shared_at(const void* p) {
  return (unsigned int)__cvta_generic_to_shared(p);
}""",
    # Barriers in shared memory: a phase ends once all have arrived and all expected bytes have come.
    "lf_bar_init": _I + """void lf_bar_init(unsigned long long* bar, unsigned int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(lf_shared_at(bar)), "r"(count) : "memory");
}""",
    "lf_bar_ready": _I + """void lf_bar_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }""",
    "lf_bar_expect": _I + """void lf_bar_expect(unsigned long long* bar, unsigned int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(lf_shared_at(bar)), "r"(bytes) : "memory");
}""",
    "lf_bar_arrive": _I + """void lf_bar_arrive(unsigned long long* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(lf_shared_at(bar)) : "memory");
}""",
    "lf_bar_wait": _I + """void lf_bar_wait(unsigned long long* bar, unsigned int parity) {
  unsigned int done, at = lf_shared_at(bar);
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(at), "r"(parity) : "memory");
  } while (!done);
}""",
    # A value to a place in the shared memory of block `rank` of the cluster, whose barrier counts its bytes; both are
    # given as this block's.
    "lf_send4": _send(4, "unsigned int", "r"),
    "lf_send8": _send(8, "unsigned long long", "l"),
    "lf_send": """template <class T>
__device__ __forceinline__ void lf_send(T* to, T value, unsigned long long* bar, unsigned int rank) {
  if constexpr (sizeof(T) == 4) {
    union { T v; unsigned int w; } u;
    u.v = value;
    lf_send4(to, u.w, bar, rank);
  } else {
    union { T v; unsigned long long w[sizeof(T) / 8]; } u;
    u.v = value;
#pragma unroll
    for (int k = 0; k < (int)sizeof(T) / 8; ++k) lf_send8((unsigned long long*)to + k, u.w[k], bar, rank);
  }
}""",
    **{f"lf_tile_load{r}": _tile_load(r) for r in RANKS},
    **{f"lf_tile_store{r}": _tile_store(r) for r in RANKS},
    "lf_tile_store_end": _I + """void lf_tile_store_end() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }""",
    "lf_tile_store_read": """template <int N> __device__ __forceinline__ void lf_tile_store_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}""",
    # What threads wrote to shared memory becomes visible to copies of tiles and to the matrix units.
    "lf_async_fence": _I + """void lf_async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }""",
    "lf_tile_prefetch": _I + """void lf_tile_prefetch(const lf_map* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}""",
    "lf_registers_up": """template <int N> __device__ __forceinline__ void lf_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}""",
    "lf_registers_down": """template <int N> __device__ __forceinline__ void lf_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}""",
    # Barriers of some threads of a block, by number: 0 is the one of all threads.
    "lf_group_sync": _I + """void lf_group_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}""",
    "lf_group_arrive": _I + """void lf_group_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}""",
    # Products of a warpgroup run beside it, in groups: a thread leaves their results alone until it has waited for them.
    "lf_mma_fence": _I + """void lf_mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }""",
    "lf_mma_end": _I + """void lf_mma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }""",
    "lf_mma_wait": """template <int N> __device__ __forceinline__ void lf_mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}""",
    # The compiler forgets how values came about: else it keeps all that was made with them, which is less than to make it
    # again. Each lane exchanges them with itself: the assembler sees through anything that is not between lanes.
    "lf_renew": """template <int N> __device__ __forceinline__ void lf_renew(float (&x)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) asm volatile("shfl.sync.bfly.b32 %0, %0, 0, 31, 0xffffffff;" : "+f"(x[k]));
}""",
    "lf_mma_desc": _I + """unsigned long long lf_mma_desc(const void* p, unsigned int lead, unsigned int stride) {
  return (unsigned long long)((lf_shared_at(p) & 0x3ffff) >> 4) | (unsigned long long)(lead >> 4) << 16 |
    (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}""",
    # To the nearest number of 11 bits; of what is not rounded the matrix units drop the other bits.
    "lf_tf32": _I + """unsigned int lf_tf32(float x) {
  unsigned int r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}""",
    # Four 8 x 8 matrices of 16-bit elements: lane l holds elements 2 (l % 4) and the next of row l / 4 of each, and gives
    # the address of row l % 8 of matrix l / 8.
    "lf_store_matrix4": _I + """void lf_store_matrix4(void* p, unsigned int a, unsigned int b, unsigned int c, unsigned int d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
    :: "r"(lf_shared_at(p)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}""",
    "lf_load_matrix4": _matrix("", "lf_load_matrix4"),
    "lf_load_matrix4_t": _matrix(".trans", "lf_load_matrix4_t"),
    **{f"lf_mma_16x8_{kind}": _warp(kind) for kind in WARP},
    # Products of doubles, 4 of the sum: each product is added with one rounding. 16 rows at once from sm_90 on.
    "lf_mma_8x8_f64": _I + """void lf_mma_8x8_f64(double& d0, double& d1, double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
    : "+d"(d0), "+d"(d1) : "d"(a), "d"(b));
}""",
    "lf_mma_16x8_f64": _I + """void lf_mma_16x8_f64(double (&d)[4], const double (&a)[2], double b) {
  asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
    : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3]) : "d"(a[0]), "d"(a[1]), "d"(b));
}""",
    **{f"lf_stage{width}_if": _stage(width) for width in (16, 8, 4)},
}  # fmt: skip
