"""C identifiers for the names of a program: readable, unique, and none that CUDA C or the prelude already uses."""

from __future__ import annotations

import re
from functools import cache

from loopfuse.emit.prelude import FUNCTIONS
from loopfuse.ops import OPS

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const consteval constexpr
constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum
explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof static
static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union
unsigned using virtual void volatile wchar_t while xor xor_eq concept main linux unix errno NULL INFINITY NAN
threadIdx blockIdx blockDim gridDim warpSize clock clock64 printf malloc free memset memcpy min max abs
int1 int2 int3 int4 uint uint1 uint2 uint3 uint4 float1 float2 float3 float4 double2 char4 uchar4 short2 dim3 half
"""


@cache
def taken() -> frozenset[str]:
    """Words that no name of a program may be in CUDA C."""
    texts = [*FUNCTIONS.values(), *(s.text for row in OPS.values() for s in row.cuda)]
    plain = (re.sub(r'"[^"\n]*"', "", text) for text in texts)  # instructions in strings are no names
    used = {word for text in plain for word in re.findall(r"[A-Za-z_]\w*", text)}
    return frozenset(used - _LOCALS) | frozenset(_WORDS.split())


# Names of parameters and variables in the prelude: they hide nothing.
_LOCALS = frozenset(
    [
        "a",
        "b",
        "c",
        "d",
        "e",
        "i",
        "k",
        "n",
        "p",
        "q",
        "r",
        "s",
        "u",
        "v",
        "w",
        "x",
        "y",
        "z",
        "at",
        "bits",
        "power",
        "square",
        "result",
        "exact",
        "value",
        "better",
        "equal",
        "to",
        "from",
        "map",
        "bar",
        "count",
        "bytes",
        "parity",
        "done",
        "id",
        "threads",
        "lead",
        "stride",
        "inside",
        "keep",
        "c0",
        "c1",
        "c2",
        "c3",
        "c4",
    ]
)


def identifier(name: str) -> str:
    """A name of a program as a C identifier, not yet unique."""
    text = re.sub(r"[^0-9A-Za-z_]", lambda m: "_" if m[0] in ".-$ " else f"u{ord(m[0]):x}", name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    if text in taken() or text.startswith(("lf_", "__")):
        text += "_"
    return text


class Names:
    """The identifiers of one kernel: the same one for the same name, each used once."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._used: set[str] = set()
        self._ever: set[str] = set()  # those that were given, free again or not

    def __call__(self, name: str) -> str:
        """The identifier of a name of the program."""
        found = self._of.get(name)
        if found is None:
            found = self._of[name] = self.lasting(name)
        return found

    def fresh(self, stem: str) -> str:
        """An identifier that nothing else has."""
        return self._take(stem, self._used)

    def lasting(self, stem: str) -> str:
        """An identifier for the whole kernel, as of an argument: also none that a local variable had and gave back, in
        whose scope it may be mentioned."""
        return self._take(stem, self._ever)

    def keep(self, *words: str) -> None:
        """Variables that are written as they are: nothing else is called so."""
        self._used.update(words)
        self._ever.update(words)

    def free(self, text: str) -> None:
        """Let an identifier from `fresh` be given again: its scope in C is over."""
        self._used.discard(text)

    def _take(self, stem: str, taken: set[str]) -> str:
        base = identifier(stem)
        text, number = base, 1
        while text in taken:
            number += 1
            text = f"{base}_{number}"
        self._used.add(text)
        self._ever.add(text)
        return text
