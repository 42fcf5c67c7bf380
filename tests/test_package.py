"""The wheel: built, installed into an empty environment, used from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the tree, so that building leaves nothing behind."""
    copy = tmp_path_factory.mktemp("copy") / "loopfuse"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        if (
            name
            and (ROOT / name).is_file()
            and name.split("/")[0] in ("loopfuse", "grammar", "pyproject.toml", "README.md")
        ):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(out), str(copy)],
                          capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    listed = subprocess.run(["git", "ls-files", "-z", "loopfuse"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if name.endswith((".py", ".lf", ".md", ".rules", "py.typed")):
            assert name in names, f"{name} is missing from the wheel: list it in pyproject.toml"
    assert "loopfuse/grammar/loopfuse.lark" in names
    assert not [n for n in names if n.startswith(("tests", "examples"))]


def test_packages_are_listed() -> None:
    """setuptools takes an explicit list, since the grammar stands outside the package."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "loopfuse").rglob("*.py")}
    assert there <= listed, f"pyproject.toml lacks {', '.join(sorted(there - listed))}"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that holds the wheel and, by a path file, the libraries of this one.

    Its dependencies are not downloaded again: only this package must be found in the new place.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check",
                           "--no-index", str(wheel)], capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return python


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the installed package; the libraries come from this environment, behind its own."""
    libraries = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))
    code = f"import sys; sys.path += {libraries.split(os.pathsep)!r}; from loopfuse.cli import main; sys.exit(main())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([str(python), "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False,
                          env=environment | {"LOOPFUSE_CACHE_DIR": str(folder / "cache")}, timeout=120)  # fmt: skip


def test_the_installed_package_works_from_another_folder(installed: Path, tmp_path: Path) -> None:
    doctor = run(installed, tmp_path, "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert str(installed.parent.parent) in doctor.stdout.splitlines()[0], "the package of the new environment"
    (tmp_path / "s.lf").write_text("import nn\ninput x: f32[N, D]\noutput y = nn.softmax(x)\n")
    done = run(installed, tmp_path, "run", "s.lf", "x=randn", "--dims", "N=3,D=4")
    assert done.returncode == 0, done.stderr
    assert "f32[3, 4]" in done.stdout
    assert list((tmp_path / "cache").iterdir()), "the parse tables are kept"
    assert run(installed, tmp_path, "explain", "LF0503").returncode == 0
    script = subprocess.run([str(installed.parent / "loopfuse"), "--version"], capture_output=True, text=True,
                            check=True, cwd=tmp_path)  # fmt: skip
    assert script.stdout.startswith("loopfuse ")
