"""Failures as files: the script, its data, and what else it takes to see the failure again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from loopfuse.diag import UserError, error
from loopfuse.dtypes import DTYPES, of_numpy
from loopfuse.files import Place, load, save_all
from loopfuse.generate import Array
from loopfuse.outside import read_json, read_whole, unwritable
from loopfuse.testing.trial import Case, Failure

SCHEMA = 1
MOST = 1e300  # of a number in a record


def check_folder(folder: Path) -> None:
    """Raise `UserError` LF0515 where `save` could not write to a folder, which need not exist; nothing is made."""
    if why := unwritable(folder, folder=True):
        raise UserError(error("LF0515", f"cannot write to the folder `{folder}`: {why}"))


def save(failure: Failure, folder: Path, setting: str = "default") -> Path:
    """Write `NAME.lf`, `NAME.safetensors` and `NAME.json` to a folder; the path of the last, which `load_case` reads.

    Raises `UserError` LF0515 where that cannot be written.
    """
    case = failure.case
    digest = hashlib.sha256(f"{case.text}{sorted(case.sizes.items())}{failure.about}".encode()).hexdigest()[:8]
    name = "-".join(part for part in (failure.what, failure.where, digest) if part)
    path = folder / f"{name}.json"
    record: dict[str, Any] = {
        "schema": SCHEMA, "what": failure.what, "where": failure.where, "problem": failure.problem,
        "about": failure.about, "script": f"{name}.lf", "inputs": {n: str(of_numpy(a.dtype)) for n, a in case.arrays.items()},
        "ranks": {n: a.ndim for n, a in case.arrays.items()}, "params": dict(case.params), "sizes": dict(case.sizes),
        "compiled": dict(case.compiled), "costed": None if case.costed is None else dict(case.costed),
        "passes": setting, "data": case.kind,
    }  # fmt: skip
    head = f"# {failure.title.splitlines()[0][:110]}\n# loopfuse fuzz --replay {name}.json\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.lf").write_text(head + case.text, encoding="utf-8")
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    except OSError as why:
        raise UserError(error("LF0515", f"cannot write to `{folder}`: {why.strerror}")) from why
    data = folder / f"{name}.safetensors"
    save_all([(Place(f"{data}:{n}", Path()), n, a) for n, a in case.arrays.items()])
    return path


def load_case(path: Path) -> tuple[Failure, str]:
    """A saved failure, and the passes that ran.

    Raises `UserError` LF0510 or LF0511 where the file is absent, or not one that `save` wrote.
    """
    try:
        record = read_json(read_whole(path))
        if Path(record["script"]).name != record["script"]:
            raise ValueError("the script stands beside the record")
        text = read_whole(path.parent / record["script"]).decode("utf-8")
        data = path.with_suffix(".safetensors")
        arrays: dict[str, Array] = {}
        for n, d in record["inputs"].items():
            array = load(Place(f"{data}:{n}", Path()), DTYPES[d], record["ranks"][n], n)
            assert isinstance(array, np.ndarray)
            arrays[n] = array
        params = _numbers(record["params"], int | float | bool)
        sizes, compiled = _numbers(record["sizes"], int), _numbers(record["compiled"], int)
        costed = None if record["costed"] is None else _numbers(record["costed"], int)
        case = Case(text, record["script"], path.parent, arrays, params, sizes, compiled, costed, str(record["data"]))
        what, where, problem = str(record["what"]), str(record["where"]), str(record["problem"])
        return Failure(what, where, problem, case, str(record.get("about", ""))), str(record["passes"])
    except OSError as why:
        raise UserError(error("LF0510", f"cannot read `{why.filename}`: {why.strerror}")) from why
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        raise UserError(error("LF0511", f"`{path}` is not a failure that `loopfuse fuzz` saved")) from why


def _numbers(found: Any, kind: Any) -> dict[str, Any]:
    """Numbers by name, as they stand in a record. Raises ValueError for what is none."""
    if not isinstance(found, dict) or not all(isinstance(v, kind) and abs(v) < MOST for v in found.values()):
        raise ValueError("these are no numbers by name")
    return found
