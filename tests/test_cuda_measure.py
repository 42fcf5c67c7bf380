"""Timing, measured figures and where they are kept, on a GPU that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDriver, cells

from loopfuse import devices
from loopfuse.cuda import nvml
from loopfuse.cuda.context import Device
from loopfuse.cuda.helpers import TEXTS, launch
from loopfuse.cuda.measure import FIELDS, calibration_file, load_calibration, measure, store_calibration, usable
from loopfuse.cuda.nvml import Meter
from loopfuse.cuda.timing import energy, time_call


def nothing(_: Any) -> None:
    """lf_nothing."""


def one(_: Any, a: int) -> None:
    """lf_spin."""


def two(_: Any, a: int, b: int) -> None:
    """lf_special."""


def three(_: Any, a: int, b: int, c: int) -> None:
    """lf_copy, lf_integer, lf_chain, lf_walk."""


def four(_: Any, a: int, b: int, c: int, d: int) -> None:
    """lf_fma, lf_fma64, lf_reread."""


HELPERS = {"lf_nothing": nothing, "lf_spin": one, "lf_special": two, "lf_copy": three, "lf_integer": three,
           "lf_chain": three, "lf_walk": three, "lf_fma": four, "lf_fma64": four, "lf_reread": four}  # fmt: skip


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(HELPERS, memory=1 << 26)


@pytest.fixture
def device(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Device:
    class Binary:
        cubin = b""

    monkeypatch.setattr("loopfuse.cuda.helpers.compile_kernel", lambda *_, **__: Binary())
    return Device(driver)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOPFUSE_CACHE_DIR", str(tmp_path / "there"))
    return tmp_path / "there"


def test_a_call_is_timed_behind_a_pause_and_a_flush(device: Device, driver: FakeDriver) -> None:
    calls: list[int] = []
    found = time_call(device, lambda: calls.append(1), stream=5, reps=4)
    assert found.samples == (1e-3,) * 4 and found.median == 1e-3 and found.spread == 0
    assert 0 <= found.submit <= found.host
    assert driver.names("launch") == ["lf_spin"] * 4
    assert len(driver.names("fill")) == 4
    device.trim()
    assert driver.used == 0
    driver.log.clear()
    time_call(device, lambda: None, reps=2, flush=False)
    assert driver.names("fill") == []


def test_every_figure_is_measured(device: Device, driver: FakeDriver) -> None:
    told: list[str] = []
    found = measure(device, told.append)
    assert tuple(found) == tuple(told) == FIELDS
    assert all(value > 0 for value in found.values())
    assert devices.device("h200", found).bandwidth == found["bandwidth"]
    assert driver.used == 0 and not driver.graphs


def test_numbers_reach_a_helper_as_they_are(device: Device, driver: FakeDriver) -> None:
    seen: list[tuple[int, ...]] = []

    def catch(_: Any, a: int, b: int, c: int) -> None:
        seen.append((a, b, c))

    driver.kernels["lf_copy"] = catch
    launch(driver, ("lf_copy", 0, 1), 3, 256, 0, 1 << 40, -1, 1.5)
    assert seen == [(1 << 40, (1 << 64) - 1, int(np.float32(1.5).view(np.uint32)))]
    assert cells(0, 0, np.uint8).size == 0


def test_helpers_are_kernels_of_their_name() -> None:
    for name, text in TEXTS.items():
        assert f"void {name}(" in text and "#include" not in text


def test_figures_are_kept_for_the_device(device: Device, folder: Path) -> None:
    assert load_calibration(device) == {}
    assert store_calibration(device, {"bandwidth": 4e12, "nonsense": 1.0}) == folder / "calibration.json"
    other = Device(FakeDriver(name="Another"))
    store_calibration(other, {"launch": 1e-6})
    assert load_calibration(device) == {"bandwidth": 4e12}
    assert load_calibration(other) == {"launch": 1e-6}
    assert [p.name for p in folder.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"NVIDIA H200 ' + "f" * 32 + '": 3}',
                                  '{"NVIDIA H200 ' + "f" * 32 + '": {"measured": {"bandwidth": "fast", "fp32": -1}}}'])  # fmt: skip
def test_a_damaged_file_says_nothing(device: Device, folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "calibration.json").write_text(text)
    assert load_calibration(device) == {}
    assert store_calibration(device, {"fp32": 1e13})
    assert load_calibration(device) == {"fp32": 1e13}


def test_a_folder_that_cannot_be_made_is_no_failure(device: Device, folder: Path) -> None:
    folder.write_text("a file")
    assert calibration_file() == folder / "calibration.json"
    assert store_calibration(device, {"fp32": 1e13}) is None
    assert load_calibration(device) == {}


def test_only_positive_numbers_of_known_names_are_used() -> None:
    assert usable({"bandwidth": 1, "units": 3, "fp32": float("nan"), "fp64": float("inf"), "launch": 0, 3: 4}) == {
        "bandwidth": 1.0
    }


class Library:
    """A management library that knows one GPU."""

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        return 0 if name == b"GPU-ffffffff-ffff-ffff-ffff-ffffffffffff" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, into: Any) -> int:
        into._obj.value = 5000
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, into: Any) -> int:
        into._obj.value = 1980
        return 3 if kind != 1 else 0


def test_meters(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", Library)
    meter = Meter(device.uuid)
    assert (meter.energy(), meter.power(), meter.clock()) == (5.0, None, 1.98e9)
    assert Meter("0" * 32).energy() is None
    assert energy(device, lambda: None, seconds=0.01) == 0
    monkeypatch.setattr(nvml, "_library", lambda: None)
    assert Meter(device.uuid).power() is None
    assert energy(device, lambda: None) is None
