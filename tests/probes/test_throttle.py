"""What slowed a machine is said in words, from recorded outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from homesplit_probes import throttle


def test_a_cpu_that_was_slowed_by_heat_meanwhile_is_warned_of() -> None:
    assert throttle.warnings({"cpu": 3}, {"cpu": 3}) == []
    assert "heat slowed the CPU" in throttle.warnings({"cpu": 3}, {"cpu": 5})[0]


def test_reasons_that_a_gpu_names_are_told_and_unsupported_ones_are_not() -> None:
    quiet = throttle.parse_gpu("Not Active, Not Active, Not Active\n[N/A], [N/A], [N/A]\n")
    assert throttle.warnings({}, quiet) == []
    slowed = throttle.parse_gpu("Not Active, Active, Active\n")
    assert [w.split()[-1] for w in throttle.warnings({}, slowed)] == ["measured", "GPU"]


def test_a_mac_at_half_speed_is_warned_of() -> None:
    text = "CPU_Scheduler_Limit \t= 100\nCPU_Speed_Limit \t= 50\n"
    assert throttle.warnings({}, throttle.parse_mac(text))
    assert throttle.warnings({}, throttle.parse_mac("No thermal warning level recorded")) == []


@pytest.mark.parametrize("known", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_drivers_old_and_new_are_asked_by_the_names_that_they_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f'#!/bin/sh\ncase "$1" in *{known}*) echo "Active, Not Active, Not Active";;\n'
        '*) echo "Field \\"$1\\" is not a valid field to query."; exit 2;; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (throttle.counts()["gpu_heat"], throttle.counts()["gpu_power"]) == (1, 0)
    tool.write_text("#!/bin/sh\necho Unable to determine the device handle\n")
    assert "gpu_heat" not in throttle.counts()
