"""What slowed a machine is said in words, from recorded outputs."""

from __future__ import annotations

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
