"""Several at once on a GPU: threads that call, threads and processes that compile the same kernels; and what is left after."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopfuse as lf
from loopfuse.cuda import engine
from loopfuse.cuda.cache import Cache
from loopfuse.cuda.store import TEMPORARY

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[1]
SOFTMAX = "input x: f32[M, N]\nlet e = exp(x - max(x, axis=-1, keepdims=true))\noutput y = e / sum(e, axis=-1, keepdims=true)\n"
CHILD = """
import sys
import numpy as np
import loopfuse as lf
x = np.random.default_rng(7).standard_normal((257, 1031)).astype(np.float32)
print("ready", flush=True)
sys.stdin.readline()
y = lf.compile(sys.argv[1])(x, backend="cuda")
np.save(sys.argv[2], y)
"""


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    """Skips every test where there is no GPU, and says why."""
    if why := engine.usable():
        pytest.skip(why)


@pytest.fixture
def fresh(tmp_path: Path) -> Any:
    """A cache that holds nothing yet, in place of this process's own."""
    made = engine.open_engine()
    was, made.cache = made.cache, Cache(tmp_path / "cache")
    yield tmp_path / "cache"
    made.cache = was


def matrix(rows: int, columns: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def together(count: int, action: Callable[[int], object]) -> list[Any]:
    """The results of an action in so many threads that start at once."""
    start = threading.Barrier(count)

    def run(number: int) -> object:
        start.wait()
        return action(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_call_one_program_with_data_of_their_own(fresh: Path) -> None:
    f = lf.compile(SOFTMAX)
    data = [matrix(33 + 17 * (k % 4), 257 + 64 * (k % 3), k) for k in range(12)]

    def action(number: int) -> list[Any]:
        return [np.asarray(f(data[number], backend="cuda")) for _ in range(20)]

    for x, results in zip(data, together(len(data), action), strict=True):
        np.testing.assert_allclose(results[0], softmax(x), rtol=2e-6, atol=1e-9)
        assert all(r.tobytes() == results[0].tobytes() for r in results)


def test_threads_compile_the_same_program_at_once(fresh: Path) -> None:
    x = matrix(65, 1031, 3)
    results = together(8, lambda _: np.asarray(lf.compile(SOFTMAX)(x, backend="cuda")))
    assert len({r.tobytes() for r in results}) == 1
    np.testing.assert_allclose(results[0], softmax(x), rtol=2e-6, atol=1e-9)


def test_threads_compile_several_programs_at_once(fresh: Path) -> None:
    x = matrix(5, 4099, 4)

    def action(number: int) -> np.ndarray[Any, Any]:
        return np.asarray(lf.compile(f"input x: f32[M, N]\noutput y = x * {number}.5 + {number}\n")(x, backend="cuda"))

    for number, found in enumerate(together(8, action)):
        np.testing.assert_allclose(found, x * np.float32(number + 0.5) + np.float32(number), rtol=1e-6, atol=1e-6)


def test_bound_calls_in_threads_keep_to_their_own_arrays(fresh: Path) -> None:
    f = lf.compile("input x: f32[M, N]\nlet s = sum(x, axis=1)\noutput t = sum(s * s)\n")
    data = [matrix(129, 515, k) for k in range(6)]
    calls = [f.bind(x) for x in data]

    def action(number: int) -> set[bytes]:
        found = set()
        for _ in range(30):
            (result,) = calls[number]().values()
            found.add(np.asarray(result.numpy() if hasattr(result, "numpy") else result).tobytes())
        return found

    for x, found in zip(data, together(len(data), action), strict=True):
        assert len(found) == 1
        want = (x.astype(np.float64).sum(1) ** 2).sum()
        np.testing.assert_allclose(np.frombuffer(found.pop(), np.float32)[0], want, rtol=1e-4)


def test_two_processes_compile_the_same_kernel_at_once(tmp_path: Path) -> None:
    found = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "LOOPFUSE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": found}
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, SOFTMAX, str(tmp_path / f"{k}.npy")], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
        for k in range(2)
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    told = [child.communicate("go\n", timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], told
    first, second = (np.load(tmp_path / f"{k}.npy") for k in range(2))
    assert first.tobytes() == second.tobytes()
    np.testing.assert_allclose(first, softmax(matrix(257, 1031, 7)), rtol=2e-6, atol=1e-9)
    kept = Cache(tmp_path / "cache")
    assert {e.kind for e in kept.entries()} == {"kernel", "program"}
    left = [p.name for p in (tmp_path / "cache").rglob("*") if p.name.startswith(TEMPORARY)]
    assert not left, "a temporary file was left behind"


def test_nothing_is_leaked_by_calls_and_programs(fresh: Path) -> None:
    """Memory of the device before and after many programs, calls and bound calls."""
    device = engine.open_engine().device
    x = matrix(1031, 1031, 5)

    def once(number: int) -> None:
        f = lf.compile(f"input x: f32[M, N]\nlet y = x @ x.T\noutput z = y * {number + 1}.0\n")
        f(x, backend="cuda")
        call = f.bind(x)
        call()
        call.close()

    def held() -> int:
        gc.collect()
        device.synchronize()
        device.trim()
        return device.free_memory()

    once(0)
    before = held()
    for number in range(12):
        once(number % 3)
    assert before - held() < 1 << 24
