"""One compiled program in many threads and processes, on the reference back end; tests/test_gpu_concurrency.py is for GPUs."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import loopfuse as lf
from loopfuse.dtypes import U8
from loopfuse.files import Place, load
from loopfuse.keeping import keep_few

Array = np.ndarray[Any, np.dtype[Any]]
SCRIPT = """\
import softmax
input x: f32[M, N]
let m[i] = max(x[i, j] for j)
let e[i, j] = exp(x[i, j] - m[i])
output y[i, j] = e[i, j] / sum(e[i, k] for k)
output s = sum(x)
"""
PROGRAM = lf.compile(SCRIPT.replace("import softmax\n", ""))


def data(number: int) -> Array:
    """Different values, and mostly different extents."""
    shape = (3 + number % 5, 7 + 4 * (number % 3))
    return np.random.default_rng(number).standard_normal(shape).astype(np.float32)


def right(number: int, found: Any) -> bool:
    x = data(number).astype(np.float64)
    e = np.exp(x - x.max(1, keepdims=True))
    return bool(
        np.allclose(found.y, e / e.sum(1, keepdims=True), rtol=1e-6) and np.allclose(found.s, x.sum(), atol=1e-4)
    )


def in_process(number: int) -> bool:
    """For a process: the program as it was compiled in the parent (fork), or in this one (spawn)."""
    return right(number, PROGRAM(data(number), backend="reference"))


def together(count: int, action: Callable[[int], Any]) -> list[Any]:
    """An action in so many threads that start at once, which Python switches often."""
    start, before = threading.Barrier(count), sys.getswitchinterval()

    def run(number: int) -> Any:
        start.wait()
        return action(number)

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))
    finally:
        sys.setswitchinterval(before)


def test_threads_call_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(PROGRAM), "MOST", 2)  # what was optimised leaves while others look for it
    assert all(together(8, lambda n: all(in_process(n + k) for k in range(4))))


def test_threads_compile() -> None:
    def action(number: int) -> float:
        text = f"input x: f32[N]\nlet a = x * {number}.0 + 1\noutput y = sum(a * a)\n"
        return float(lf.compile(text)(np.ones(4, np.float32), backend="reference"))

    assert together(6, action) == [4.0 * (n + 1) ** 2 for n in range(6)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_call_one_program(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    with warnings.catch_warnings(), ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
        assert all(pool.map(in_process, range(6)))


def test_threads_keep_a_mapping_small() -> None:
    held: dict[int, int] = {}
    together(8, lambda n: [keep_few(held, 1000 * n + k, k, 3) for k in range(300)])
    assert len(held) == 3


def test_threads_read_files_and_leave_the_warnings_alone(tmp_path: Path) -> None:
    """The filters of warnings belong to the whole process."""
    picture = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(picture).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", picture)
    before = list(warnings.filters)

    def action(number: int) -> bool:
        names = ("x.png", "x.npy")
        return all(
            np.array_equal(load(Place(names[(number + k) % 2], tmp_path), U8, 2, "x"), picture) for k in range(20)
        )

    assert all(together(8, action))
    assert list(warnings.filters) == before
