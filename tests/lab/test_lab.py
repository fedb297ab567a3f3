"""The lab does what it promises: real boxes, a link of the asked rate, and nothing left after."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab import cgroups
from tests.lab.api import RunningLab, running_lab
from tests.lab.cgroups import Cgroup
from tests.lab.files import get
from tests.lab.measure import memory_gib, seen_by_mdns
from tests.lab.processes import netns_path, start_time
from tests.lab.rates import goodput_bits_per_s
from tests.lab.store import CHECKOUT

pytestmark = pytest.mark.lab

TRIES = 10
PATIENCE_S = 30.0
"""For what ends as soon as it is there."""


def log_in(lab: RunningLab, box: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`hostname` by OpenSSH from the desk, with the host key known and no questions asked."""
    strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    patience = ["-o", f"ConnectTimeout={PATIENCE_S:.0f}"]
    words = ["ssh", "-F", str(lab.ssh_config), *options, *strict, *patience]
    return lab.desk([*words, box, "hostname"])


def carried(lab: RunningLab, asked_bits_per_s: float) -> float:
    """What iperf3 measures as a share of what was asked; the best of a few tries.

    A computer that is busy elsewhere can only make a link look slower than it is.
    """
    best = 0.0
    for _ in range(TRIES):
        got = lab.iperf_bits_per_s("atlas", "borea", seconds=2)
        best = max(best, got / goodput_bits_per_s(asked_bits_per_s))
        if best > 0.97:
            break
    return best


def test_both_boxes_answer_ssh_with_their_own_host_keys(lab: RunningLab) -> None:
    for box in ("atlas", "borea"):
        assert log_in(lab, box).stdout == f"{box}\n"
    keys = {lab.env["boxes"][box]["host_key"].split()[1] for box in lab.boxes}
    assert len(keys) == 2


def test_a_box_that_shows_anothers_host_key_is_refused(lab: RunningLab) -> None:
    alias = ("-o", "HostKeyAlias=borea")
    refused = log_in(lab, "atlas", *alias)
    assert refused.returncode == 255
    assert "IDENTIFICATION HAS CHANGED" in refused.stderr


def test_the_desk_sees_both_boxes_by_mdns(lab: RunningLab, python: str) -> None:
    services = seen_by_mdns(lab.lab, python, ["atlas", "borea"], PATIENCE_S)["services"]
    ssh = {each["name"]: each for each in services if each["type"] == "_ssh._tcp.local."}
    for box in ("atlas", "borea"):
        found = ssh[f"{box}._ssh._tcp.local."]
        assert found["addresses"] == [lab.address(box)]
        assert found["port"] == 22
        assert found["server"] == f"{box}.local."


@pytest.mark.parametrize(("rate", "bits_per_s"), [("1gbe", 1e9), ("50mbit", 50e6)])
def test_the_link_carries_the_asked_rate(lab: RunningLab, rate: str, bits_per_s: float) -> None:
    lab.set_rate(rate)
    try:
        assert carried(lab, bits_per_s) == pytest.approx(1.0, abs=0.10)
    finally:
        lab.set_rate("normal")


def test_a_box_sees_nothing_of_the_checkout(lab: RunningLab) -> None:
    for root in (False, True):
        listed = lab.box("atlas", ["ls", str(CHECKOUT / "pyproject.toml")], root=root)
        assert listed.returncode == 2
        assert "No such file" in listed.stderr


def test_the_desk_sees_the_checkout(lab: RunningLab) -> None:
    assert lab.desk(["ls", "pyproject.toml"]).stdout == "pyproject.toml\n"


def test_there_is_no_way_outside(lab: RunningLab) -> None:
    for command in (lab.box("atlas", _connect("192.0.2.1")), lab.desk(_connect("192.0.2.1"))):
        assert command.stdout == "Network is unreachable\n"


def _connect(address: str) -> list[str]:
    program = (
        "import os, socket; s = socket.socket(); s.settimeout(5); "
        f"print(os.strerror(s.connect_ex(('{address}', 80))))"
    )
    return ["/usr/bin/python3", "-c", program]


def test_a_boxs_owner_cannot_look_into_roots_home(lab: RunningLab) -> None:
    assert "Permission denied" in lab.box("atlas", ["ls", "/root"]).stderr
    assert lab.box("atlas", ["id", "-un"]).stdout == "owner\n"


def test_a_command_in_a_box_passes_on_its_exit_code_and_input(lab: RunningLab) -> None:
    done = lab.box("atlas", ["sh", "-c", "cat; exit 7"], text="hello")
    assert (done.returncode, done.stdout) == (7, "hello")


def test_a_fault_of_the_link_keeps_the_desk_out_until_it_is_mended(lab: RunningLab) -> None:
    lab.fault("atlas", "cut-link")
    try:
        assert log_in(lab, "atlas", "-o", "ConnectTimeout=3").returncode == 255
    finally:
        lab.fault("atlas", "clear")
    assert log_in(lab, "atlas").stdout == "atlas\n"


def test_kill_engine_spares_the_boxs_services(lab: RunningLab) -> None:
    program = (
        "setsid sleep 600 > /dev/null 2>&1 & "
        'until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.05; done; echo started'
    )
    started = lab.box("borea", ["sh", "-c", program])
    assert started.stdout == "started\n"
    killed = lab.fault("borea", "kill-engine")
    assert len(killed) == 1
    assert str(killed[0]["command"]).endswith("sleep 600")
    assert log_in(lab, "borea").stdout == "borea\n"


def test_a_box_has_its_files_after_a_reboot_and_an_empty_tmp(lab: RunningLab) -> None:
    lab.box("borea", ["sh", "-c", "echo kept > ~/file; echo lost > /tmp/file"])
    lab.fault("borea", "reboot", for_s=0)
    assert lab.box("borea", ["sh", "-c", "cat ~/file /tmp/file"]).stdout == "kept\n"
    assert log_in(lab, "borea").stdout == "borea\n"


def test_odd_machines_are_there_and_a_box_shows_its_memory_limit(python: str) -> None:
    with running_lab(1, memory=["atlas=2"], odd="all") as lab:
        assert memory_gib(lab.lab, "atlas") == pytest.approx(2.0, abs=0.01)
        refused = log_in(lab, "corvo")
        assert (refused.returncode, "Permission denied" in refused.stderr) == (255, True)
        services = seen_by_mdns(lab.lab, python, ["atlas", "corvo"], PATIENCE_S)["services"]
        names = {each["name"] for each in services}
        assert "port-zero._ssh._tcp.local." in names
        assert any(each["type"] == "_ipp._tcp.local." for each in services)


def test_added_latency_and_loss_are_set_and_cleared() -> None:
    with running_lab(2, latency=["20"]) as lab:
        ping = ["ping", "-U", "-q", "-i", "0.05", "-c", "10", "-W", "2", lab.address("borea")]
        told = lab.box("atlas", ping, root=True).stdout
        assert float(told.rsplit(" = ", 1)[1].split("/")[0]) >= 19.5
        lab.fault("borea", "loss", "100")
        assert "100% packet loss" in lab.box("atlas", ping, root=True).stdout
        lab.fault("borea", "clear")
        assert " 0% packet loss" in lab.box("atlas", ping, root=True).stdout


def test_two_labs_at_once_do_not_see_each_other() -> None:
    with running_lab(1) as first, running_lab(1) as second:
        assert first.address("atlas") == second.address("atlas")
        keys = {running.env["boxes"]["atlas"]["host_key"] for running in (first, second)}
        assert len(keys) == 2
        for running in (first, second):
            assert log_in(running, "atlas").stdout == "atlas\n"


def test_down_leaves_nothing() -> None:
    with running_lab(2, "wifi", odd="all") as lab:
        name, folder, nodes = lab.lab.name, lab.lab.folder, list(lab.lab.nodes.values())
        namespaces = list(lab.lab.state.namespaces)
        groups = [Cgroup(name, group) for group in cgroups.leftovers(name)]
        pids = {pid: start_time(pid) for group in groups for pid in group.pids()}
        assert len(pids) > len(nodes)
        assert all(netns_path(namespace).exists() for namespace in namespaces)
    assert [pid for pid, started in pids.items() if start_time(pid) == started] == []
    assert [namespace for namespace in namespaces if netns_path(namespace).exists()] == []
    assert cgroups.leftovers(name) == set()
    assert [path for path in Path("/etc/netns").glob(f"{name}-*")] == []
    assert str(folder) not in get("/proc/self/mountinfo")
    assert [entry for entry in os.listdir(folder.parent) if name in entry] == []
