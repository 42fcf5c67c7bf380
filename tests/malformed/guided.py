"""The same targets guided by coverage, where atheris is installed: `python -m malformed.guided FOLDER [TARGET] [SECONDS]`.

Each target runs for some seconds in a process of its own; what it found of interest stays in the folder for the next run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 60


def main() -> int:
    """Every target in turn, or the one that is named; the exit code is 1 where something was found."""
    folder, *rest = sys.argv[1:]
    if len(rest) == 2:
        return one(Path(folder), rest[0], int(rest[1]))
    from malformed.targets import NAMES

    code = 0
    for name in rest or (n for n in NAMES if n != "command"):
        code |= subprocess.run([sys.executable, "-m", "malformed.guided", folder, name, str(SECONDS)]).returncode
    return int(bool(code))


def one(folder: Path, name: str, seconds: int) -> int:
    """One target, from its small valid files on."""
    import atheris

    with atheris.instrument_imports(include=["loopfuse"]):
        from malformed.targets import targets

    corpus = folder / f"corpus-{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="malformed-") as place:
        os.environ["LOOPFUSE_CACHE_DIR"] = f"{place}/kept"
        tempfile.tempdir = place
        target = targets(Path(place))[name]
        for number, seed in enumerate(target.seeds):
            (corpus / f"seed-{number}").write_bytes(seed)
        atheris.Setup(
            [sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=2048",
             f"-artifact_prefix={folder}/{name}-", "-verbosity=0", "-print_final_stats=1"],
            lambda data: target.read(data, random.Random(len(data))) and None,
        )  # fmt: skip
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
