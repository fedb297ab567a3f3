"""From what the probes told to a profile, and what it warns of."""

from __future__ import annotations

from typing import Any

import pytest

from homesplit.core.link import LinkProfile
from homesplit.core.probed import box_profile, link_profile
from homesplit.core.ways import link_addresses


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
        "ways": [{"local": "10.0.0.1", "peer": "10.0.0.2"}],
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
    assert [(way.used, way.bytes_per_s) for way in link.ways] == [(True, rate)]


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
    assert link_addresses(listener, driver, "fd00::5") == (
        "fd00::5",
        "192.168.1.5",
        # A cable between two boxes may have only what both gave themselves.
        "169.254.1.1",
    )


def cabled(name: str, *addresses: str, kind: str = "wired", state: str = "up") -> dict[str, Any]:
    """A box with an interface of these addresses."""
    told = {"label_bytes_per_s": None, "mtu": 1500, "kind": kind, "state": state}
    return {
        "addresses": [{"interface": name, "address": address} for address in addresses],
        "interfaces": {name: told},
    }


@pytest.mark.parametrize(
    ("far", "told"),
    [
        (cabled("eth1", "fe80::2"), ["eth1"]),
        (cabled("eth1", "fe80::2", "192.168.1.5"), []),
        (cabled("eth1", "fe80::2", kind="virtual"), []),
        (cabled("eth1", "fe80::2", state="down"), []),
    ],
)
def test_a_cable_with_nothing_but_link_local_ipv6_is_shown_with_what_it_needs(
    far: dict[str, Any], told: list[str]
) -> None:
    answer = {"why": "no address of the other box answers"}
    for near, expected in ((cabled("enp1s0", "fe80::1"), told), (cabled("enp1s0", "10.0.0.1"), [])):
        ways = link_profile("a", "b", near, far, answer, at="").ways
        assert [way.interface_b for way in ways] == expected
        assert all("IPv4" in (way.why or "") for way in ways)


def test_of_a_gpu_cut_into_instances_a_program_gets_the_first() -> None:
    gpu = {"name": "A100", "memory_bytes": 40 << 30, "free_bytes": 39 << 30, "driver": "580"}
    told = {**facts(), "nvidia": [gpu], "mig": {"0": "3g.20gb"}}
    box = box_profile("a", None, told, None, at="")
    assert (box.device, box.memory_bytes.value) == ("cuda", 20e9)
    assert (box.accelerators[0].name, box.accelerators[0].memory_bytes.value) == (
        "A100 MIG 3g.20gb",
        20e9,
    )


def test_of_several_gpus_the_memory_is_that_of_the_one_that_cuda_gives() -> None:
    gpus = [
        {"name": name, "memory_bytes": size << 30, "free_bytes": size << 30, "driver": "580"}
        for name, size in (("GTX 1050", 2), ("RTX 3090", 24))
    ]
    for used, gigabytes in (("RTX 3090", 24), ("GTX 1050", 2), (None, 2)):
        measured = {"device": "cuda", "gpu": used}
        box = box_profile("a", None, {**facts(), "nvidia": gpus}, measured, at="")
        assert box.memory_bytes.value == gigabytes << 30
        assert any("one of its 2 NVIDIA GPUs" in word for word in box.warnings)


@pytest.mark.parametrize(
    ("driver", "says"),
    [("nvidia", "nvidia-smi"), ("nouveau", "driver does not run it"), (None, "install that")],
)
def test_an_nvidia_gpu_whose_driver_does_not_answer_is_named_with_what_to_try(
    driver: str | None, says: str
) -> None:
    silent = {"maker": "NVIDIA", "name": "AD102", "driver": driver, "memory_bytes": None}
    box = box_profile("a", None, {**facts(), "graphics": [silent]}, None, at="")
    assert box.device == "cpu"
    (told,) = [word for word in box.warnings if "GPU is not used" in word]
    assert says in told and ("nvidia-smi" in told) == (driver == "nvidia")


def test_a_macs_gpu_gets_no_more_of_its_memory_than_macos_lends() -> None:
    system = {"kernel": "Darwin", "machine": "arm64"}
    for available, value in ((14 << 30, 10 << 30), (6 << 30, 6 << 30)):
        memory = {"total_bytes": 16 << 30, "available_bytes": available, "gpu_bytes": 10 << 30}
        box = box_profile("m", None, {"system": system, "memory": memory}, None, at="")
        assert (box.device, box.unified, box.memory_bytes.value) == ("mps", True, value)


def test_a_limit_on_memory_is_told() -> None:
    memory = {"total_bytes": 64 << 30, "available_bytes": 1 << 30, "limit_bytes": 4_000_000_000}
    box = box_profile("c", None, {"memory": memory}, None, at="")
    assert "a limit lets it use 4 GB of the machine's memory" in box.warnings
