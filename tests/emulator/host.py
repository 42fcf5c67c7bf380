"""CUDA text as a C++ compiler takes it: prelude functions with inline PTX replaced, shared memory found elsewhere.

A prelude function that holds `asm` needs a definition in `HOST`, by its name. `shim.hpp` has what CUDA itself gives,
and `emu_f16`, `emu_from_f16`, `emu_bf16`, `emu_from_bf16`, `emu_coarse(x, bits)` beside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from emulator.matrix import MATRIX, product

_F = "inline float "


def _nan_aware(name: str, pick: str) -> str:
    return f"{_F}{name}(float a, float b) {{ return a != a || b != b ? __int_as_float(0x7fffffff) : {pick}(a, b); }}"


# The same functions without PTX. Of a name with several definitions, only those with PTX are replaced, all by one text.
HOST: dict[str, str] = {
    "lf_fmin": _nan_aware("lf_fmin", "fminf"),
    "lf_fmax": _nan_aware("lf_fmax", "fmaxf"),
    # Approximations err here too, about as much as there.
    "lf_tanh_approx": _F + "lf_tanh_approx(float x) { return emu_coarse(tanhf(x), 12); }",
    "lf_exp2_approx": _F + "lf_exp2_approx(float x) { return emu_coarse(exp2f(x), 23); }",
    "lf_near_exp2": _F + "lf_near_exp2(float x) { return emu_coarse(exp2f(x), 23); }",
    "lf_rcp_approx": _F + "lf_rcp_approx(float x) { return emu_coarse(1.0f / x, 23); }",
    "lf_sqrt_approx": _F + "lf_sqrt_approx(float x) { return emu_coarse(sqrtf(x), 23); }",
    "lf_div_approx": _F + "lf_div_approx(float a, float b) { return a / b; }",
    "lf_f16_bits": "inline unsigned short lf_f16_bits(float x) "
    "{ return x != x ? (unsigned short)0x7e00 : emu_f16(x); }",
    "lf_bf16_bits": "inline unsigned short lf_bf16_bits(float x) "
    "{ return x != x ? (unsigned short)0x7fc0 : emu_bf16(x); }",
    "lf_f16_value": _F + "lf_f16_value(unsigned short x) { return emu_from_f16(x); }",
    "lf_f16x2": "inline unsigned int lf_f16x2(float low, float high) "
    "{ return emu_f16(low) | (unsigned int)emu_f16(high) << 16; }",
    "lf_bf16x2": "inline unsigned int lf_bf16x2(float low, float high) "
    "{ return emu_bf16(low) | (unsigned int)emu_bf16(high) << 16; }",
    **{
        f"lf_{which}_{kind}x2": f"inline unsigned int lf_{which}_{kind}x2(unsigned int a, unsigned int b) "
        f"{{ auto pick = [](unsigned int p, unsigned int q) {{ float x = emu_from_{kind}((unsigned short)p), "
        f"y = emu_from_{kind}((unsigned short)q); return (unsigned int)emu_{kind}(x != x ? x : y != y ? y : "
        f"emu_f{which}(x, y)); }}; return pick(a, b) | pick(a >> 16, b >> 16) << 16; }}"
        for which in ("max", "min")
        for kind in ("f16", "bf16")
    },
    "lf_wrap16": "inline short lf_wrap16(unsigned int a) { return (short)a; }",
    "lf_stage16": "inline void lf_stage16(void* to, const void* from) { emu_stage(to, from); }",
    "lf_again": "template <class V, int N> inline void lf_again(V (&x)[N]) {}",
    "lf_stage_end": "inline void lf_stage_end() { emu_stage_end(); }",
    "lf_stage_wait": "template <int N> inline void lf_stage_wait() { emu_stage_wait(N); }",
    "lf_load16": "inline uint4 lf_load16(const void* p) { return *(const uint4*)p; }",
    "lf_load8": "inline uint2 lf_load8(const void* p) { return *(const uint2*)p; }",
    "lf_load4": "inline unsigned int lf_load4(const void* p) { return *(const unsigned int*)p; }",
    "lf_store16": "inline void lf_store16(void* p, uint4 r) { *(uint4*)p = r; }",
    "lf_store8": "inline void lf_store8(void* p, uint2 r) { *(uint2*)p = r; }",
    "lf_store4": "inline void lf_store4(void* p, unsigned int r) { *(unsigned int*)p = r; }",
    "lf_cluster_rank": "inline unsigned int lf_cluster_rank() { return emu_cluster_rank(); }",
    "lf_cluster_sync": "inline void lf_cluster_sync() { emu_cluster_sync(); }",
    "lf_cluster_meet": "inline void lf_cluster_meet() { emu_cluster_sync(); }",
    "lf_cluster_at": "template <class T> inline T* lf_cluster_at(T* p, unsigned int rank) "
    "{ return (T*)emu_cluster_at((void*)p, rank); }",
    **MATRIX,
}

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*|[{};]', re.S | re.M
)
_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*(?P<alignment>\d+)\s*\)\s*)?(?P<type>[\w\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;"
)
_WAITS = re.compile(
    r"\b(?:__syncthreads\w*|__syncwarp|__\w+_sync|__activemask|emu_\w*(?:sync|barrier|exchange|at|send)|emu_(?:bar|tile|mma|matrix|registers|async)_\w+)\b"
)


@dataclass(frozen=True, slots=True)
class Item:
    """A definition or directive at the outermost level of a text."""

    text: str
    is_directive: bool = False

    @property
    def name(self) -> str:
        """The name of a function `lf_...`, or "" of anything else."""
        found = re.search(r"\b(lf_\w+)\s*\(", self.text)
        return found[1] if found else ""


def items(text: str) -> Iterator[Item]:
    """The outermost items of CUDA text, in order; joined, they are the text."""
    start = depth = 0
    for token in _TOKEN.finditer(text):
        kind = token[0].lstrip()[0]
        if kind == "#" and depth == 0:
            if text[start : token.start()]:
                yield Item(text[start : token.start()])
            yield Item(token[0], True)
            start = token.end()
        elif kind == "{":
            depth += 1
        elif kind == "}" or (kind == ";" and depth == 0):
            depth -= kind == "}"
            if depth == 0:
                yield Item(text[start : token.end()])
                start = token.end()
    if text[start:]:
        yield Item(text[start:])


def has_ptx(text: str) -> bool:
    """Whether there is inline PTX (or a built-in function about address spaces), comments and strings aside."""
    return (
        re.search(r"\basm\b|\b__cvta_", re.sub(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', "", text, flags=re.S))
        is not None
    )


def to_host(text: str) -> str:
    """CUDA text as C++.

    Raises:
        ValueError: PTX in a function that `HOST` does not have, or static shared memory.
    """
    parts: list[str] = []
    given: set[str] = set()
    for item in items(text):
        if item.is_directive and re.match(r"\s*#\s*(line\b|\d)", item.text):
            continue
        if item.is_directive or not has_ptx(item.text):
            parts.append(item.text)
            continue
        host = HOST.get(item.name) or product(item.name)
        if host is None or "__global__" in item.text:
            place = " ".join(item.text.split())[:100]
            raise ValueError(f"inline PTX that tests/emulator/host.py has no HOST definition for: {place}")
        parts.append("\n" if item.name in given else "\n" + host + "\n")
        given.add(item.name)
    found = _SHARED.sub(r"\n#undef \g<name>\n#define \g<name> ((\g<type>*)emu_shared)\n", "".join(parts))
    if "__shared__" in found:
        raise ValueError("shared memory must be dynamic: `extern __shared__ ... name[];`")
    return re.sub(r'extern\s+"C"\s+(?=__global__)', "", found)


def alignment(text: str) -> int:
    """Of what the address of a kernel's shared memory is a multiple, by its CUDA text: 1024 for kernels with tiles."""
    stated = [int(found["alignment"] or 16) for found in _SHARED.finditer(text)]
    return max([16, *stated, *([1024] if re.search(r"\blf_(?:map\b|mma_64x)", text) else [])])


def waits(text: str, prelude: str) -> bool:
    """Whether host text calls anything at which threads wait for each other, through functions of the prelude too."""
    bodies: dict[str, str] = {}
    for item in items(prelude):
        if item.name:
            bodies[item.name] = bodies.get(item.name, "") + item.text
    pending, seen = [text], set[str]()
    while pending:
        here = pending.pop()
        if _WAITS.search(here):
            return True
        called = (set(re.findall(r"\blf_\w+", here)) & bodies.keys()) - seen
        seen |= called
        pending += [bodies[name] for name in called]
    return False
