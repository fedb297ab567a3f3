"""Power from counters as Linux and NVIDIA's library tell them; recorded, there is no meter here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from homesplit_engine import power
from homesplit_engine.power import PowerMeter


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(power, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two processors' counters, and a sub-domain whose energy is a part of the first one's."""
    monkeypatch.setattr(power, "_POWERCAP", tmp_path)
    names = ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("5000000\n")
    return [tmp_path / name / "energy_uj" for name in names[:2]]


def test_power_is_what_all_processors_counted_over_the_time_between_two_readings(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, meter = Clock(monkeypatch), PowerMeter("cpu")
    assert meter.read() == (None, "no reading yet")
    clock.now_s += 2.0
    packages[0].write_text("45000000\n")
    packages[1].write_text("25000000\n")
    # 40 J and 20 J in 2 s; the sub-domain is in the first one already.
    assert meter.read() == (30.0, None)


def test_readings_too_close_to_each_other_and_a_counter_that_began_anew_keep_the_last_figure(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, meter = Clock(monkeypatch), PowerMeter("cpu")
    meter.read()
    clock.now_s += 1.0
    packages[0].write_text("15000000\n")
    assert meter.read() == (10.0, None)
    clock.now_s += 0.1
    packages[0].write_text("95000000\n")
    assert meter.read() == (10.0, None)
    clock.now_s += 1.0
    packages[0].write_text("0\n")
    assert meter.read() == (10.0, None)
    clock.now_s += 2.0
    packages[0].write_text("8000000\n")
    assert meter.read() == (4.0, None)


def test_what_can_not_be_read_is_no_zero_and_says_why(
    tmp_path: Path, packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> str:
        raise PermissionError

    packages[0].write_text("what?\n")
    value, why = PowerMeter("cpu").read()
    assert value is None and why is not None and "can't be read" in why
    monkeypatch.setattr(Path, "read_text", refused)
    assert PowerMeter("cpu").read() == (
        *(None, "reading the RAPL counters needs root on this machine"),
    )
    monkeypatch.setattr(power, "_POWERCAP", tmp_path / "none")
    value, why = PowerMeter("cpu").read()
    assert value is None and why is not None and "offers no RAPL counters" in why


def test_a_graphics_card_tells_its_own_milliwatts(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> int:
        return index

    def milliwatts(of: int) -> int:
        return 71_500 if of == 0 else 0

    card = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetPowerUsage=milliwatts
    )
    monkeypatch.setitem(sys.modules, "pynvml", card)
    assert PowerMeter("cuda:0").read() == (71.5, None)

    def lost(of: int) -> int:
        raise RuntimeError("GPU is lost")

    card.nvmlDeviceGetPowerUsage = lost
    assert PowerMeter("cuda:0").read() == (None, "NVML gives no power figure: GPU is lost")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert PowerMeter("cuda:0").read() == (
        *(None, "nvidia-ml-py is not installed on this machine"),
    )
