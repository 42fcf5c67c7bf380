"""The GPU tests under compute-sanitizer: `python tests/sanitize.py`, or `make sanitize`.

Each tool runs the tests in several processes, a share each; a kernel under a tool is slower by tens, and initcheck and
racecheck by more. Exit code 1 where a tool found something or a test failed; what was found is shown with the test that was
running. Left out are tests that are about time, memory of the process, child processes, or more than 2^31 elements.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).resolve().parent
TOOLS = ("memcheck", "racecheck", "initcheck")
FILES = (
    "test_gpu_programs.py", "test_gpu_contractions.py", "test_gpu_reports.py", "test_gpu_reductions.py", "test_gpu_tilemaps.py",
    "test_gpu_api.py", "test_device_ops.py",
)  # fmt: skip
LEFT_OUT = (
    "not 2_31 and not over_2 and not two_to_the_31 and not s46 and not costs_the_host and not pytorch and not elsewhere"
)
FOUND = re.compile(r"^========= +(?!COMPUTE|Saved|Host Frame|and is|ERROR SUMMARY|RACECHECK SUMMARY)(?P<what>\S.*)$")
HEADS = re.compile(r"Invalid|Misaligned|Uninitialized|hazard|Error|Barrier|Program hit|Stack|leaked", re.IGNORECASE)


@dataclass
class Share:
    """What one process said: tests that passed, that failed, that did not begin, and what the tool found in which."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    found: list[tuple[str, str]] = field(default_factory=list)
    summary: str = ""

    def read(self, lines: Iterator[str]) -> Share:
        """Take in the output."""
        test = "before the first test"
        for line in lines:
            if line.startswith("@@ "):
                words = line[3:].strip().split(" ", 1)
                if words[0] in ("passed", "FAILED"):
                    (self.passed if words[0] == "passed" else self.failed).add(words[1])
                else:
                    test = line[3:].strip()
                    self.begun.add(test)
            elif "SUMMARY" in line and line.startswith("========="):
                self.summary = line.strip("= \n")
            elif (m := FOUND.match(line)) and HEADS.search(m["what"]):
                self.found.append((test, m["what"]))
            elif m and self.found and m["what"].startswith("at ") and " at " not in self.found[-1][1]:
                self.found[-1] = self.found[-1][0], f"{self.found[-1][1]} {m['what']}"
        return self


def main() -> int:
    """All tools, one after another or side by side as there are processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default=",".join(TOOLS), help="of " + ", ".join(TOOLS))
    parser.add_argument(
        "--jobs", type=int, default=max(1, min(15, (os.cpu_count() or 1) - 1)), help="processes, of all tools"
    )
    parser.add_argument("--time", type=float, default=1e9, help="seconds after which no test begins")
    parser.add_argument("--only", default="", help="an expression of pytest's -k")
    options = parser.parse_args()
    tools = options.tools.split(",")
    if not set(tools) <= set(TOOLS):
        parser.error(f"the tools are {', '.join(TOOLS)}")
    program = shutil.which("compute-sanitizer")
    if program is None:
        parser.error("compute-sanitizer is not on PATH; the CUDA toolkit has it")
    each = max(1, options.jobs // len(tools))
    with TemporaryDirectory() as folder:
        running = [
            (tool, start(program, tool, shard, each, options, Path(folder))) for tool in tools for shard in range(each)
        ]
        shares: dict[str, list[Share]] = {tool: [] for tool in tools}
        for tool, (process, output) in running:
            process.wait()
            with output.open(errors="replace") as lines:
                shares[tool].append(Share().read(lines))
    return max(told(tool, found) for tool, found in shares.items())


def start(program: str, tool: str, shard: int, of: int, options: argparse.Namespace,
          folder: Path) -> tuple[subprocess.Popen[bytes], Path]:  # fmt: skip
    """A process with a share of the tests under a tool, and where its output goes."""
    output = folder / f"{tool}-{shard}.txt"
    which = f"({LEFT_OUT}) and ({options.only})" if options.only else LEFT_OUT
    command = [
        program,
        "--tool",
        tool,
        "--print-limit",
        "20",
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
    ]
    command += ["-p", "sanitized", "-p", "no:cacheprovider", "-s", "-q", "--tb=short", "-k", which]
    environment = os.environ | {
        "LF_SHARD": f"{shard}/{of}", "LF_SECONDS": str(options.time), "LF_PRESET": "1" if tool == "initcheck" else "",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with output.open("wb") as file:
        process = subprocess.Popen([*command, *(str(TESTS / name) for name in FILES)], stdout=file, stderr=subprocess.STDOUT,
                                   env=environment, cwd=TESTS.parent)  # fmt: skip
    return process, output


def told(tool: str, shares: list[Share]) -> int:
    """Say what a tool found; 1 where anything was."""
    passed, failed, begun = ({t for s in shares for t in getattr(s, name)} for name in ("passed", "failed", "begun"))
    found = [f for s in shares for f in s.found]
    lost = begun - passed - failed
    print(f"{tool}: {len(passed)} tests passed, {len(failed)} failed, {len(found)} reports")
    for test in sorted(failed):
        print(f"  failed: {test}")
    for test in sorted(lost):
        print(f"  did not end, or was skipped: {test}")
    for test, what in dict.fromkeys(found[:40]):
        print(f"  {what}\n    in {test}")
    for share in shares:
        if not share.summary:
            print("  a process ended without a summary")
    return int(bool(failed or found or not passed or not all(s.summary for s in shares)))


if __name__ == "__main__":
    sys.exit(main())
