"""What a probe prints: each figure with its method, each missing one with its reason."""

from __future__ import annotations

from homesplit.cli.probe_text import box_lines, link_lines
from homesplit.core.link import LatencyReading, LinkProfile, Way
from homesplit.core.machine import Accelerator, BoxProfile
from homesplit.core.reading import measured, unknown


def test_a_box_tells_figures_with_method_repetitions_and_spread_and_reasons() -> None:
    box = BoxProfile(
        name="atlas",
        source="probe",
        cpu="EPYC",
        cores=4,
        cores_allowed=0.5,
        os="Debian",
        memory_bytes_per_s=measured([9e9, 10e9, 11e9], unit="B/s", method="memchr"),
        flops_per_s={"fp16": unknown("numpy has none")},
        accelerators=(Accelerator(name="GB10", memory_bytes=unknown("it names none")),),
        idle_w=unknown("power is not measured: amd-smi does not tell it"),
        warnings=("the box was busy",),
    )
    lines = box_lines(box)
    assert lines[0] == "atlas: EPYC, 4 cores (0.5 allowed), Debian"
    assert "  GPU           GB10, unknown: it names none" in lines
    assert "  reading it    10.0 GB/s (memchr, 3 times, ±10%)" in lines
    assert "  fp16          unknown: numpy has none" in lines
    assert "  power, idle   unknown: power is not measured: amd-smi does not tell it" in lines
    assert lines[-1] == "  ! the box was busy"


def test_a_link_shows_each_way_to_the_box_with_its_rate_and_which_was_taken() -> None:
    link = LinkProfile(
        a="atlas",
        b="borea",
        source="probe",
        a_to_b=measured([1e9], unit="B/s", method="TCP"),
        latency_s=LatencyReading(
            p50=measured([2e-4], unit="s", method="echo"),
            p99=measured([9e-4], unit="s", method="echo"),
        ),
        label_bytes_per_s=1.25e9,
        mtu_a=9000,
        interface_a="fast0",
        interface_b="fast1",
        address_b="10.5.5.2",
        ways=(
            Way(address_a="10.5.5.1", address_b="10.5.5.2", bytes_per_s=1e9, used=True),
            Way(
                address_a="10.0.0.1",
                address_b="10.0.0.2",
                interface_a="eth0",
                interface_b="eth1",
                bytes_per_s=1.25e8,
            ),
            Way(address_a=None, address_b="10.8.0.3", why="timed out"),
        ),
    )
    lines = link_lines(link)
    assert lines[0] == "atlas to borea (fast0 to fast1, 10.5.5.2)"
    assert "  there         8.00 Gbit/s (TCP)" in lines
    assert "  back          unknown: not measured yet" in lines
    assert "  slow ones     900 µs (echo)" in lines
    assert "  label         10.0 Gbit/s; MTU 9000 and ?" in lines
    assert [line for line in lines if line.startswith("  way ")] == [
        "  way           10.5.5.2 (? to ?): 8.00 Gbit/s, taken",
        "  way           10.0.0.2 (eth0 to eth1): 1.00 Gbit/s",
        "  way           10.8.0.3 (? to ?): timed out",
    ]


def test_the_only_way_and_an_unknown_label_are_not_dressed_up() -> None:
    only = Way(address_a="10.0.0.1", address_b="10.0.0.2", used=True)
    lines = link_lines(LinkProfile(a="a", b="b", source="probe", ways=(only,)))
    assert not any(line.startswith("  way ") for line in lines)
    assert "  label         not told; MTU ? and ?" in lines
