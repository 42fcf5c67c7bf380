"""The host's definitions of barriers, copies of tiles and matrix units (`loopfuse.emit.matrix.primitives`)."""

from __future__ import annotations

import re

from loopfuse.emit.matrix.primitives import RANKS, WARP, WARPGROUP, warpgroup

_KINDS = {"bf16": 0, "f16": 1, "tf32": 2, "i8": 3}  # as products.hpp counts them
_BAR = "unsigned long long* bar"
_WORD = "unsigned int"


def _inline(head: str, body: str, template: str = "") -> str:
    return f"{template}inline {head} {{ {body} }}"


def _tile(name: str, rank: int) -> str:
    coordinates = ", ".join(f"int c{n}" for n in range(rank))
    at = f"const int at[] = {{{', '.join(f'c{n}' for n in range(rank))}}};"
    if "load" in name:
        head = f"void {name}(void* to, const lf_map* map, {_BAR}, {coordinates})"
        return _inline(head, f'{at} emu_tile_load("{name}", to, map, bar, at, {rank});')
    head = f"void {name}(const lf_map* map, const void* from, {coordinates})"
    return _inline(head, f'{at} emu_tile_store("{name}", map, from, at, {rank});')


def _load(name: str, how: int) -> str:
    outs = ", ".join(f"{_WORD}& {n}" for n in "abcd")
    take = " ".join(f"{n} = r[{k}];" for k, n in enumerate("abcd"))
    return _inline(
        f"void {name}(const void* p, {outs})", f'{_WORD} r[4]; emu_matrix_move("{name}", p, r, {how}); {take}'
    )


def _warp(kind: str) -> str:
    name = f"lf_mma_16x8_{kind}"
    head = f"void {name}({WARP[kind][0]} (&d)[4], const {_WORD} (&a)[4], const {_WORD} (&b)[2])"
    return _inline(head, f'emu_mma_warp("{name}", {_KINDS[kind]}, d, a, b);')


def product(name: str) -> str | None:
    """The definition of a product of a warpgroup by its name; None for any other name."""
    found = re.fullmatch(r"lf_mma_64x(\d+)_(\w+?)_([01r])([01])", name)
    if found is None or warpgroup(name) is None:
        return None
    columns, kind = int(found[1]), found[2]
    own = found[3] == "r"  # the left operand comes from registers
    left = f"const {_WORD} (&a)[4]" if own else "unsigned long long a"
    head = f"void {name}({WARPGROUP[kind][0]} (&d)[{columns // 2}], {left}, unsigned long long b, bool keep)"
    transposed = 2 * (found[3] == "1") + int(found[4])
    given = "0, b, keep, a" if own else "a, b, keep, nullptr"
    return _inline(head, f'emu_mma_group("{name}", {_KINDS[kind]}, {columns}, {transposed}, d, {given});')


MATRIX: dict[str, str] = {
    "lf_shared_at": _inline(f"{_WORD} lf_shared_at(const void* p)", "return emu_shared_at(p);"),
    "lf_bar_init": _inline(f"void lf_bar_init({_BAR}, {_WORD} count)", "emu_bar_init(bar, count);"),
    "lf_bar_ready": _inline("void lf_bar_ready()", "emu_bar_ready();"),
    "lf_bar_expect": _inline(f"void lf_bar_expect({_BAR}, {_WORD} bytes)", "emu_bar_expect(bar, bytes);"),
    "lf_bar_arrive": _inline(f"void lf_bar_arrive({_BAR})", "emu_bar_arrive(bar);"),
    "lf_bar_wait": _inline(f"void lf_bar_wait({_BAR}, {_WORD} parity)", "emu_bar_wait(bar, parity);"),
    **{
        f"lf_send{width}": _inline(
            f"void lf_send{width}(void* to, {kind} value, {_BAR}, {_WORD} rank)",
            f"emu_send(to, value, {width}, bar, rank);",
        )
        for width, kind in ((4, _WORD), (8, "unsigned long long"))
    },
    **{name: _tile(name, r) for r in RANKS for name in (f"lf_tile_load{r}", f"lf_tile_store{r}")},
    "lf_tile_store_end": _inline("void lf_tile_store_end()", "emu_tile_store_end();"),
    "lf_tile_store_read": _inline("void lf_tile_store_read()", "emu_tile_store_wait(N);", "template <int N> "),
    "lf_async_fence": _inline("void lf_async_fence()", "emu_async_fence();"),
    "lf_tile_prefetch": _inline("void lf_tile_prefetch(const lf_map* map)", "emu_tile_prefetch(map);"),
    **{
        name: _inline(f"void {name}()", "emu_registers_set(N);", "template <int N> ")
        for name in ("lf_registers_up", "lf_registers_down")
    },
    "lf_group_sync": _inline("void lf_group_sync(int id, int threads)", "emu_group_barrier(id, threads, true);"),
    "lf_group_arrive": _inline("void lf_group_arrive(int id, int threads)", "emu_group_barrier(id, threads, false);"),
    "lf_mma_fence": _inline("void lf_mma_fence()", "emu_mma_fence();"),
    "lf_mma_end": _inline("void lf_mma_end()", "emu_mma_end();"),
    "lf_renew": _inline("void lf_renew(float (&x)[N])", "", "template <int N> "),
    "lf_mma_wait": _inline("void lf_mma_wait()", "emu_mma_wait(N);", "template <int N> "),
    "lf_tf32": _inline(
        f"{_WORD} lf_tf32(float x)",
        f"{_WORD} r = __float_as_uint(x); "
        "return x != x ? 0x7fffffffu : (r & 0x7f800000u) == 0x7f800000u ? r : r + 0x1000u & 0xffffe000u;",
    ),
    "lf_store_matrix4": _inline(
        f"void lf_store_matrix4(void* p, {', '.join(f'{_WORD} {n}' for n in 'abcd')})",
        f'{_WORD} r[4] = {{a, b, c, d}}; emu_matrix_move("lf_store_matrix4", p, r, 2);',
    ),
    "lf_load_matrix4": _load("lf_load_matrix4", 0),
    "lf_load_matrix4_t": _load("lf_load_matrix4_t", 1),
    **{f"lf_mma_16x8_{kind}": _warp(kind) for kind in WARP},
    "lf_mma_8x8_f64": _inline(
        "void lf_mma_8x8_f64(double& d0, double& d1, double a, double b)",
        'double d[2] = {d0, d1}; emu_mma_double("lf_mma_8x8_f64", d, &a, b, 1); d0 = d[0]; d1 = d[1];',
    ),
    "lf_mma_16x8_f64": _inline(
        "void lf_mma_16x8_f64(double (&d)[4], const double (&a)[2], double b)",
        'emu_mma_double("lf_mma_16x8_f64", d, a, b, 2);',
    ),
    **{
        f"lf_stage{width}_if": _inline(
            f"void lf_stage{width}_if(void* to, const void* from, bool inside)",
            f"emu_stage(to, from, {width}, inside);",
        )
        for width in (16, 8, 4)
    },
}
