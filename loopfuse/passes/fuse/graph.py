"""The kernels of a program as a graph: who needs whom, who shares an input, and keys that depend on structure alone.

A kernel's key is a digest of its statements in which a buffer counts as the digest of what computes it, so that it
covers all that the kernel depends on; neither ids nor the order of statements have part in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from loopfuse.analysis.env import Env
from loopfuse.analysis.hashing import Key, kernel_key, mix
from loopfuse.ir import Affine, Buffer, Expr, Kernel, Loop, Store
from loopfuse.passes.fuse.search import Graph
from loopfuse.rewrite import free_names, own, walk

MOST_LINKS = 12  # readers of one input that are all linked with one another; of more, each with the next few, and with
LINKED = 3  # some further on, ever farther apart: what is left when a group is full still hangs together


@dataclass(frozen=True)
class Node:
    """A kernel to be fused with others: a nest of the program, or several that were put together before.

    `members` are the positions of its nests in the program.
    """

    kernel: Kernel
    members: tuple[int, ...]
    key: Key

    @cached_property
    def reads(self) -> frozenset[str]:
        """The buffers that it loads from, its own too."""
        return free_names(self.kernel.body).loads

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it stores to, in order."""
        return stored(self.kernel)

    @cached_property
    def pure(self) -> bool:
        """Whether it is one parallel nest without folds, conditions or inner loops: an elementwise computation."""
        loop = self.kernel.body[0]
        return (
            len(self.kernel.body) == 1 and isinstance(loop, Loop) and loop.order == "par" and not loop.accs
            and loop.where is None and not any(isinstance(s, Loop) for s in loop.body)
        )  # fmt: skip

    @cached_property
    def ordered(self) -> bool:
        """Whether it has a loop whose steps follow one another."""
        return any(isinstance(s, Loop) and s.order == "seq" for s in walk(self.kernel.body))


def windowed(nodes: Sequence[Node], kept: frozenset[str]) -> frozenset[int]:
    """The nodes that write an array which its readers take apart: at an offset, or in steps (`h[:, F:]`, `h[:, 1::2]`)."""
    writers = {name: n for n, node in enumerate(nodes) for name in node.writes if name not in kept}
    found: set[int] = set()
    for node in nodes:
        if node.reads.isdisjoint(writers):
            continue
        loops = {d.id for s in walk(node.kernel.body) if isinstance(s, Loop) for d in s.dims}
        for stmt in walk(node.kernel.body):
            for load in own(stmt).loads:
                if load.buffer in writers and not any(load.modes) and any(_shifted(sub, loops) for sub in load.subs):
                    found.add(writers[load.buffer])
    return frozenset(found)


def _shifted(sub: Expr, loops: set[str]) -> bool:
    """Whether a subscript is one index, but not that alone."""
    return isinstance(sub, Affine) and sub.poly.name is None and len(sub.poly.names & loops) == 1


def stored(kernel: Kernel) -> tuple[str, ...]:
    """The buffers that a kernel stores to, in textual order."""
    return tuple(dict.fromkeys(s.buffer for s in walk(kernel.body) if isinstance(s, Store) and not s.absorb))


def kernel_keys(kernels: Sequence[Kernel], env: Env) -> list[Key]:
    """A key for each of the kernels, which must stand in an order in which they can run."""
    sizes = {s.id: f"size {k} {s.origin}" for k, s in enumerate(env.program.sizes)}
    names = dict(sizes)
    for k, buffer in enumerate(b for b in env.program.buffers if b.role not in ("temp", "out")):
        names[buffer.id] = f"input {k}"
    waiting: dict[str, list[Key]] = defaultdict(list)
    writers: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        for name in stored(kernel):
            writers[name] += 1
    found = []
    for kernel in kernels:
        own = stored(kernel)
        local = dict(names)
        for k, name in enumerate(own):
            local[name] = f"own {k} {_declared(env.buffers.get(name), sizes)}"
        key = kernel_key(kernel, local)
        found.append(key)
        for k, name in enumerate(own):
            waiting[name].append(mix(f"result {k}", key))
            if len(waiting[name]) == writers[name]:
                names[name] = mix("buffer", *sorted(waiting[name])).hex()
    return found


def _declared(buffer: Buffer | None, sizes: Mapping[str, str]) -> str:
    """What the declaration of a result says, ids left out."""
    if buffer is None:
        return ""
    shape = [" ".join(sorted(f"{c} {sorted(sizes.get(str(a), str(a)) for a in m)}" for m, c in p.terms))
             for p in buffer.shape]  # fmt: skip
    return f"{buffer.role} {buffer.dtype} {shape}"


def search_graph(nodes: Sequence[Node], env: Env) -> Graph:
    """The graph of the search: an edge from each writer of a buffer to its readers, a link between kernels that read one
    array."""
    writers: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    for n, node in enumerate(nodes):
        for name in node.writes:
            writers[name].append(n)
        for name in sorted(node.reads):
            readers[name].append(n)
    after: list[set[int]] = [set() for _ in nodes]
    for name, sources in writers.items():
        for n in sources:
            after[n].update(m for m in readers[name] if m != n)
    links: set[tuple[int, int]] = set()
    for name, found in readers.items():
        if name in env.buffers and env.buffers[name].shape:
            links.update(_links(sorted(found, key=lambda n: (nodes[n].key, n))))
    return Graph(tuple(map(frozenset, after)), frozenset(links), tuple(int.from_bytes(n.key[:8], "big") for n in nodes))


def _links(found: Sequence[int]) -> Iterable[tuple[int, int]]:
    count = len(found)
    near = range(1, count) if count <= MOST_LINKS else range(1, LINKED + 1)
    far = () if count <= MOST_LINKS else (1 << k for k in range(LINKED.bit_length(), count.bit_length()))
    steps = (*near, *far)
    for k, a in enumerate(found):
        for b in (found[k + step] for step in steps if k + step < count):
            yield min(a, b), max(a, b)


def rank(kernel: Kernel) -> int:
    """How many indices the outermost loop has."""
    loop = kernel.body[0] if kernel.body else None
    return len(loop.dims) if isinstance(loop, Loop) else 0
