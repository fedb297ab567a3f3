"""From what the probes told to a profile, and what it warns of."""

from __future__ import annotations

from typing import Any

import pytest

from homesplit.core.link import LinkProfile
from homesplit.core.probed import box_profile, link_addresses, link_profile


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "unit": "B/s", "method": "TCP, one stream, timed by the receiver"}


def facts(
    *, speed: float | None = 125e6, kind: str = "wired", rdma: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A box whose bytes take eth0; eth1 is there with another label."""
    return {
        "addresses": [
            {"interface": "eth0", "address": "10.0.0.1"},
            {"interface": "eth1", "address": "10.9.0.1"},
        ],
        "interfaces": {
            "eth0": {"label_bytes_per_s": speed, "kind": kind, "mtu": 1500},
            "eth1": {"label_bytes_per_s": 1.25e9, "kind": "wired", "mtu": 9000},
        },
        "rdma": list(rdma),
    }


def profile(near: dict[str, Any], far: dict[str, Any], rate: float) -> LinkProfile:
    """The link as measured at `rate` both ways over eth0."""
    answer = {
        "interface": "eth0",
        "peer_interface": "eth0",
        "local": "10.0.0.1",
        "peer": "10.0.0.2",
        **{
            name: figure(rate) for name in ("out_1", "in_1", "out_4", "in_4", "out_busy", "in_busy")
        },
        "round_trip": {"p50": {"value": 1e-4, "unit": "s", "method": "ZeroMQ"}},
    }
    return link_profile("a", "b", near, far, answer, at="2026-01-01")


@pytest.mark.parametrize(
    ("rate", "warned"),
    [(117e6, False), (90e6, False), (80e6, True), (6e6, True)],
)
def test_a_link_below_the_label_of_the_interface_that_the_bytes_took_is_warned_of(
    rate: float, warned: bool
) -> None:
    link = profile(facts(), facts(), rate)
    assert (link.interface_a, link.label_bytes_per_s) == ("eth0", 125e6)
    said = [w for w in link.warnings if "of what its interface's label says" in w]
    assert bool(said) == warned
    if warned:
        assert f"carries {100 * rate / 125e6:.0f} %" in said[0]
    assert link.a_to_b.value == rate


def test_the_slower_of_two_labels_counts_and_one_without_a_word_does_not() -> None:
    assert profile(facts(speed=312.5e6), facts(), 1e8).label_bytes_per_s == 125e6
    assert profile(facts(speed=None), facts(), 1e8).label_bytes_per_s == 125e6
    assert profile(facts(speed=None), facts(speed=None), 1e8).label_bytes_per_s is None


@pytest.mark.parametrize("rdma", [(), ("/sys/class/infiniband/mlx5_0/ports/1 4: ACTIVE",)])
def test_the_transport_that_was_really_used_is_named_with_and_without_rdma_devices(
    rdma: tuple[str, ...],
) -> None:
    link = profile(facts(rdma=rdma), facts(), 1e8)
    assert link.a_to_b.method.startswith("TCP")
    assert link.latency_s.p50.value == 1e-4
    assert any("RDMA" in warning for warning in link.warnings) == bool(rdma)


def test_rdma_devices_of_a_box_are_named_in_its_profile() -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1 4: ACTIVE 100 Gb/sec"
    assert box_profile("a", None, facts(rdma=(port,)), None, at="").rdma_devices == (port,)
    assert box_profile("a", None, facts(), None, at="").rdma_devices == ()


def test_wi_fi_is_warned_of() -> None:
    assert any("Wi-Fi" in w for w in profile(facts(kind="wifi"), facts(), 1e8).warnings)


def test_addresses_that_lead_a_box_to_itself_or_need_a_zone_are_not_tried() -> None:
    def having(*addresses: str) -> dict[str, Any]:
        return {"addresses": [{"interface": "x", "address": a} for a in addresses]}

    listener = having("172.17.0.1", "fe80::2", "169.254.1.1", "192.168.1.5", "fd00::5")
    driver = having("172.17.0.1", "192.168.1.4")
    assert link_addresses(listener, driver, "fd00::5") == ("fd00::5", "192.168.1.5")
