"""What machine code may hold of fences, waits and spills: derived from its kernel, and counted.

Two steps, each a rule and no number of a kernel's own. `beyond`: the text has no fence that its skeleton has no use for: a
copy of a tile out needs one, a sum that a cluster shares needs one release of its parts, and nothing else needs any. `faults`: what
stands in the text, or in a function called there, is in the machine code as often at most. More are the assembler's, which
adds them where it cannot prove that none is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from loopfuse.emit.code import KernelCode

# What orders memory or waits for products, as PTX or CUDA C, and what each becomes at most. `test_what_a_fence_becomes` asks
# the assembler for each.
FENCES: dict[str, tuple[str, ...]] = {
    r"fence\.proxy\.async": ("MEMBAR.ALL.CTA",),
    r"fence\.mbarrier_init\.release\.cluster": (),
    r"barrier\.cluster\.arrive\.release": ("MEMBAR.ALL.CTA", "MEMBAR.ALL.GPU", "ERRBAR", "CGAERRBAR"),
    r"barrier\.cluster\.arrive\.relaxed": (),
    r"barrier\.cluster\.wait\.acquire": ("CCTL.IVALL",),
    r"__threadfence\(\)": ("MEMBAR.ALL.CTA", "MEMBAR.SC.GPU", "ERRBAR", "CGAERRBAR", "CCTL.IVALL"),
    r"wgmma\.fence": ("WARPGROUP.ARRIVE",),
    r"wgmma\.commit_group": ("a group of products",),
    r"wgmma\.wait_group": ("WARPGROUP.DEPBAR",),
}
GROUP = "a group of products"
_ANY_ORDER = re.compile(r"\bfence\b|\bmembar\b|\.(?:release|acquire|acq_rel|sc)\b|__threadfence\w*")
_COUNTED = re.compile(r"MEMBAR(?:\.\w+)*|(?:CGA)?ERRBAR|CCTL\.IVALL|WARPGROUP\.(?:ARRIVE|DEPBAR)")
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{ *)?(?:@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)(?P<rest>[^;]*);", re.MULTILINE
)
_ATTRIBUTES = ("__launch_bounds__", "__cluster_dims__", "__align__", "alignas")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a disassembly, without what guards it."""

    op: str
    rest: str

    @property
    def product(self) -> bool:
        """Whether it is a product of a warpgroup."""
        return re.match(r"[HIQ]GMMA", self.op) is not None

    @property
    def ends(self) -> bool:
        """Whether it is the last one of a group of those."""
        return self.product and "gsb" in self.rest

    @property
    def local(self) -> bool:
        """Whether it reads or writes memory of a thread's own: what a spill is."""
        return self.op.startswith(("LDL", "STL"))


def instructions(sass: str) -> list[Instruction]:
    """Those of a disassembly, in its order."""
    found = [Instruction(m["op"], m["rest"].strip()) for m in _INSTRUCTION.finditer(sass)]
    assert any(i.op == "EXIT" for i in found), "this is not read as a disassembly"
    return found


def counted(code: list[Instruction]) -> Counter[str]:
    """How many there are of what orders memory or waits for products."""
    found = Counter(m[0] for i in code if (m := _COUNTED.match(i.op)))
    return found + Counter({GROUP: sum(i.ends for i in code)})


# -- what the text has ------------------------------------------------------------------------------------------------


def functions(source: str) -> dict[str, list[str]]:
    """The bodies of the functions of a translation unit by their names, several of one name each."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    depth = start = 0
    for at in (m.start() for m in re.finditer(r"[{};]", text)):
        if text[at] == "{":
            if depth == 0:
                head, body = text[start:at], at + 1
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0 and ("__device__" in head or "__global__" in head):
                names = [n for n in re.findall(r"(\w+)\s*\(", head) if n not in _ATTRIBUTES]
                found.setdefault(names[0] if names else "operator", []).append(text[body:at])
        if depth == 0:
            start = at + 1
    return found


def calls(body: str) -> Counter[str]:
    """How often a body names each function to call it."""
    return Counter(re.findall(r"\b(\w+)\s*(?:<[^<>;(){}]*>)?\(", body))


def needed(source: str, name: str) -> Counter[str]:
    """How many a kernel's text has of what `counted` counts: each place in it once, with those of the functions called there.

    Raises `AssertionError` where the text orders memory in a way that `FENCES` does not know.
    """
    known = functions(source)
    memo: dict[str, Counter[str]] = {}

    def of(function: str) -> Counter[str]:
        if function not in memo:
            memo[function] = Counter()  # none is recursive
            for body in known[function]:
                memo[function] |= of_body(body)
        return memo[function]

    def of_body(body: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for pattern, becomes in FENCES.items():
            body, count = re.subn(pattern, "", body)
            total.update({op: count * becomes.count(op) for op in becomes})
        other = _ANY_ORDER.search(body)
        assert other is None, f"what `{other and other[0]}` becomes does not stand in FENCES"
        for called, count in calls(body).items():
            if called in known:
                total.update({op: n * count for op, n in of(called).items()})
        return +total

    return of(name)


# -- what is wrong ----------------------------------------------------------------------------------------------------


def beyond(source: str, kernel: KernelCode) -> list[str]:
    """What orders memory in the text of a contraction, and its skeleton has no use for, a line each."""
    (body,) = functions(source)[kernel.name]
    sites, has = calls(body), needed(source, kernel.name)
    shared = kernel.cluster > 1 and kernel.tiling is not None and kernel.tiling.split > 1
    # What threads wrote is made visible to the copy out; of a shared sum the parts are written, met for, read, met for, by
    # those that copy as by those that multiply. Other clusters meet once, before the first barrier in another block is used.
    copies = sum(count for name, count in sites.items() if name.startswith("lf_tile_store") and name[-1].isdigit())
    meetings, releases = (4, 1) if shared else (0, 0)
    most = {"MEMBAR.ALL.CTA": copies + releases, "MEMBAR.ALL.GPU": releases, "MEMBAR.SC.GPU": 0, "ERRBAR": releases,
            "CCTL.IVALL": meetings or int(kernel.cluster > 1)}  # fmt: skip
    return [f"{has[op]} {op} in the text, and its skeleton needs {n}" for op, n in most.items() if has[op] > n]


def stages(code: list[Instruction]) -> Iterator[list[Instruction]]:
    """What stands from each `WARPGROUP.ARRIVE` to the end of its group of products."""
    stage: list[Instruction] | None = None
    for i in code:
        if i.op == "WARPGROUP.ARRIVE" and stage is None:
            stage = []
        elif stage is not None:
            stage.append(i)
            if i.ends:
                yield stage
                stage = None
    if stage is not None:
        yield stage


def faults(source: str, name: str, sass: str) -> list[str]:
    """What the machine code of a kernel has that its text does not ask for, a line each.

    `source` is its translation unit. How many bytes spill is told by the compiler; here they are a fault within a stage of
    products, where they would cost in every stage.
    """
    code = instructions(sass)
    has, needs = counted(code), needed(source, name)
    found = [
        f"{count} {op}, and the text asks for {needs[op]}" for op, count in sorted(has.items()) if count > needs[op]
    ]
    inside = 0
    for stage in stages(code):
        inside += (products := sum(i.product for i in stage))
        if not products or not stage[-1].ends:
            found.append("a stage of products without an end")
        for i in stage:
            if i.local or re.match(r"MEMBAR|(?:CGA)?ERRBAR|WARPGROUP|WARPSYNC\.COLLECTIVE|BAR\b", i.op):
                found.append(f"{i.op} {i.rest} between the products of a stage")
    if outside := sum(i.product for i in code) - inside:
        found.append(f"{outside} products outside of a stage")
    if needs[GROUP] and not inside:
        found.append("the text has products of warpgroups, the machine code none")
    return found
