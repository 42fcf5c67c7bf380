"""The same targets guided by coverage, where atheris is installed: `python -m malformed.guided --save FOLDER`, from tests/.

Every target runs for some seconds in a process of its own, forked from one that has imported the package with what counts its
branches. A case is a byte that chooses (a type, a file of the cache) and what is read. Inputs that reached something new stay in
FOLDER/corpus-TARGET for the next run; what went wrong is told once a place and kept as FOLDER/TARGET-…: `--targets TARGET
--replay FILE` runs such a file again, without atheris.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from malformed.worker import PATIENCE, ROOM, problem_of, room

if TYPE_CHECKING:
    from malformed.targets import Target

SLOW = 15.0  # seconds of processor time for a case: counting branches makes the code some three times as slow
SEEDS = 24  # at least so many files to start from: a small valid file comes with several choices
MOST_TOLD = 20  # places at which a target went wrong


class Chosen(random.Random):
    """Choices that are read from bytes: what is guided then is which words a command line has."""

    def __init__(self, data: bytes) -> None:
        self.rest = data
        super().__init__(0)

    def getrandbits(self, k: int, /) -> int:
        count = (k + 7) // 8
        taken, self.rest = self.rest[:count], self.rest[count:]
        return int.from_bytes(taken.ljust(count, b"\0")) >> (8 * count - k)

    def random(self) -> float:
        return self.getrandbits(8) / 256


def main() -> int:
    """Run what the command line says; the exit code is 1 where something was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default="", help="names with commas; all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--save", type=Path, default=Path("."), help="where cases stay")
    parser.add_argument("--replay", type=Path, help="run this file again")
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="malformed-") as place:
        os.environ["LOOPFUSE_CACHE_DIR"] = f"{place}/kept"
        tempfile.tempdir = place  # where reports of bugs go
        if options.replay:
            from malformed.targets import targets

            problem = case(targets(Path(place))[options.targets], options.replay.read_bytes())
            print(problem or "nothing is wrong")
            return int(bool(problem))
        return int(_all(options, Path(place)))


def _all(options: argparse.Namespace, place: Path) -> bool:
    """Every target in turn, and a table of what came of it; whether something was found."""
    try:
        import atheris
    except ImportError:
        print("not guided by coverage: there is no atheris")
        return False
    options.save.mkdir(parents=True, exist_ok=True)
    save = options.save.resolve()
    failed = False
    with atheris.instrument_imports(include=["loopfuse"]):
        with contextlib.redirect_stderr(io.StringIO()):  # a line a module
            from malformed.targets import targets

            made = targets(place)
        print(
            f"{'target':<12} {'cases':>8} {'seconds':>8} {'seeds':>6} {'new':>6}  {'branches':<15} findings", flush=True
        )
        for name in options.targets.split(",") if options.targets else made:
            log, told, start = save / f"{name}.log", save / f"{name}.told", time.monotonic()
            told.write_text("")
            child = os.fork()
            if not child:
                _one(atheris, made[name], name, save, options.seconds)
            _, status = os.waitpid(child, 0)
            found = told.read_text().splitlines()
            if code := os.waitstatus_to_exitcode(status):
                found.append(f"ended by {code}, see {log.name}")
            text = log.read_text(errors="replace")
            kept = [int(n) for n in re.findall(r"\bcorp: (\d+)", text)] or [0]  # one for each path, the shortest
            new = kept[-1] - kept[0]
            covered = re.findall(r"\bcov: (\d+)", text) or ["0"]
            print(f"{name:<12} {_stat(text, 'number_of_executed_units'):>8} {time.monotonic() - start:>8.0f} "
                  f"{len(_seeds(made[name])):>6} {new:>6}  "
                  f"{f'{covered[0]} to {covered[-1]}':<15} {len(found)}", flush=True)  # fmt: skip
            for line in found:
                print(f"    {line}")
            failed = failed or bool(found)
    return failed


def _stat(text: str, name: str) -> str:
    """A figure that libFuzzer told at its end, "?" where it was ended before."""
    found = re.search(rf"stat::{name}:\s*(\d+)", text)
    return found[1] if found else "?"


def _seeds(target: Target) -> list[bytes]:
    """What is started from: the small valid files, each with some choices before it."""
    if not target.ways:  # choices alone
        return [random.Random(n).randbytes(40) for n in range(SEEDS)]
    return [bytes([n]) + seed for seed in target.seeds for n in range(-(-SEEDS // len(target.seeds)))]


def case(target: Target, data: bytes) -> str:
    """What is wrong with how a case went, or ""."""
    if not target.ways:
        return problem_of(target, b"", Chosen(data), SLOW)
    return problem_of(target, data[1:], random.Random(data[0] if data else 0), SLOW)


def _one(atheris: Any, target: Target, name: str, save: Path, seconds: int) -> None:
    """One target, in a process that ends with it."""
    corpus, log = save / f"corpus-{name}", os.open(save / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(_seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    os.dup2(log, 1)
    os.dup2(log, 2)
    size = room()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    places: set[str] = set()

    def read(data: bytes) -> None:
        problem = case(target, data)
        if not problem:
            return
        at = re.findall(r'File "[^"]*?([^/"]+)", line (\d+)', problem)[-1:]
        kind = f"{at} {problem.splitlines()[-1].partition(':')[0]}"
        if kind in places or len(places) >= MOST_TOLD:
            return
        places.add(kind)
        kept = save / f"{name}-{zlib.crc32(data):08x}"
        kept.write_bytes(data)
        print(problem, flush=True)
        with (save / f"{name}.told").open("a") as told:
            told.write(f"{kept.name}: {problem.splitlines()[-1][:200]}\n")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """libFuzzer's changes of bytes, or the damage that knows what a text or a header is."""
        rng = random.Random(seed)
        if not target.ways or not data[1:] or rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        body = bytearray(data[1:])
        for _ in range(rng.choice((1, 1, 2))):
            if body:
                rng.choice(target.ways)(body, rng)
        return (data[:1] + bytes(body))[:most]

    code = 1
    try:
        atheris.Setup(
            [sys.argv[0], str(corpus), f"-max_total_time={seconds}", f"-timeout={PATIENCE}", "-rss_limit_mb=2048",
             "-max_len=65536", "-len_control=0", f"-artifact_prefix={save}/{name}-", "-print_final_stats=1"],
            read, custom_mutator=mutate,
        )  # fmt: skip
        atheris.Fuzz()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what is behind is the parent's


if __name__ == "__main__":
    sys.exit(main())
