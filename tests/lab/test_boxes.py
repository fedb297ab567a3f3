"""Finding, trusting and measuring boxes in networks that are not simple."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lab_needs
from tests.lab.api import RunningLab, running_lab
from tests.lab.desks import Broken, settle
from tests.lab.inside import exec_command
from tests.lab.measure import seen_by_mdns
from tests.lab.processes import run_tool
from tests.lab.records import DESK
from tests.lab.road import Road, discovered, files_of, processes_of
from tests.lab.store import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

PAIR = ("atlas", "borea")
SSH = "_ssh._tcp.local."
TRIES = 5
FASTER_BYTES_PER_S = 1.5 * 1e9 / 8
"""More than the link that has a default route can carry."""


@pytest.fixture(scope="module")
def pair() -> Generator[RunningLab]:
    """Two boxes on 1 Gbit/s that a test may rewire, if it puts things back."""
    assert not lab_needs()
    with running_lab(2, "1gbe") as lab:
        yield lab


@pytest.fixture
def road(pair: RunningLab, tmp_path: Path) -> Road:
    return Road(pair, tmp_path / "home")


def ip(lab: RunningLab, box: str, *commands: str) -> None:
    """Change a box's network as its root would."""
    text = "\n".join(commands) + "\n"
    run_tool(["ip", "-n", lab.lab.node(box).netns, "-batch", "-"], text=text)


def link_of(road: Road, least_bytes_per_s: float = 0.0) -> dict[str, Any]:
    """The link as probed; where this computer was too busy for its figures, once more."""
    link: dict[str, Any] = {}
    for _ in range(TRIES):
        link = road.json("probe", *PAIR, "--link")["link"]
        if min(link[way]["value"] or 0.0 for way in ("a_to_b", "b_to_a")) > least_bytes_per_s:
            break
    return link


def announced(lab: RunningLab, box: str) -> list[str]:
    """The addresses under which a box's SSH server is announced now."""
    services = seen_by_mdns(lab.lab, sys.executable, [box])["services"]
    seen = (each["addresses"] for each in services if each["name"] == f"{box}.{SSH}")
    return next(seen, [])


def no_config(folder: Path) -> Path:
    """An ssh configuration that knows no host and another user than the boxes."""
    path = folder / "no_hosts"
    path.write_text("Host *\n  User stranger\n")
    return path


def test_the_fast_link_without_a_default_route_carries_probe_and_hand_off(
    road: Road, tmp_path: Path
) -> None:
    lab = road.lab
    model = tmp_path / "any"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    far = lab.lab.node("borea").netns
    ip(lab, "atlas", f"link add fast0 type veth peer name fast0 netns {far}")
    for number, box in enumerate(PAIR, start=1):
        ip(lab, box, f"addr add 10.5.5.{number}/24 dev fast0", "link set fast0 up")
    try:
        link = link_of(road, FASTER_BYTES_PER_S)
        words = ("up", "--boxes", ",".join(PAIR), "--model", str(model), "--dry-run")
        opened = [each["what"] for each in road.json(*words)["changes"] if each["kind"] == "port"]
    finally:
        ip(lab, "atlas", "link del fast0")
    ends = [what for what in opened if what.endswith("(hand-off)")]
    assert [end.split(":")[0] for end in ends] == ["10.5.5.1", "10.5.5.2"]
    assert (link["interface_a"], link["interface_b"]) == ("fast0", "fast0")
    assert (link["address_a"], link["address_b"]) == ("10.5.5.1", "10.5.5.2")
    rates = {way["address_b"]: way["bytes_per_s"] for way in link["ways"]}
    assert rates["10.5.5.2"] > 1.5 * rates[lab.address("borea")]
    assert link["a_to_b"]["value"] > FASTER_BYTES_PER_S


def test_container_bridges_and_a_tunnel_are_tried_and_never_chosen(road: Road) -> None:
    lab = road.lab
    for box in PAIR:
        ip(
            lab,
            box,
            "link add docker0 type bridge",
            "addr add 172.17.0.1/16 dev docker0",
            "link set docker0 up",
            *(f"link add v{n} type veth peer name c{n}" for n in range(2)),
            *(f"link set v{n} master docker0 up" for n in range(2)),
            *(f"link set c{n} up" for n in range(2)),
            "link add tun0 type veth peer name tunend",
            "link set tunend up",
            "link set tun0 up",
            f"addr add 10.8.0.{PAIR.index(box) + 2}/24 dev tun0",
            "route replace default dev tun0",
        )
    try:
        boxes = discovered(road, usable=PAIR)
        link = link_of(road)
    finally:
        for box in PAIR:
            ip(lab, box, "link del tun0", "link del docker0", "link del v0", "link del v1")
            ip(lab, box, f"route add default via {lab.lab.state.router}")
    for box in PAIR:
        usable = [a["address"] for a in boxes[box]["addresses"] if a["usable"]]
        assert usable == [lab.address(box)]
        assert all(a["why"] for a in boxes[box]["addresses"] if not a["usable"])
    assert link["interface_a"] == "eth0"
    tunnel = next(way for way in link["ways"] if way["address_b"] == "10.8.0.3")
    assert tunnel["why"]


AVAHI = """[server]
host-name=desk
allow-interfaces=eth0
use-ipv6=no
enable-dbus=no
[publish]
publish-workstation=yes
"""


def test_printers_and_odd_announcements_beside_avahi_neither_litter_nor_double_the_list(
    tmp_path: Path,
) -> None:
    with running_lab(1, "loopback", odd="all") as lab:
        road = Road(lab, tmp_path / "home")
        settings = tmp_path / "avahi.conf"
        settings.write_text(AVAHI)
        both = (
            f"mkdir -p /run/avahi-daemon; avahi-daemon --no-rlimits --no-chroot --no-drop-root "
            f"-f {settings} & avahi=$!; sleep 2; "
            f"{sys.executable} -m homesplit discover --seconds 6 --json; code=$?; "
            "kill -0 $avahi || exit 77; kill $avahi; wait $avahi; exit $code"
        )
        environment = {
            "HOMESPLIT_HOME": str(road.home),
            "HOMESPLIT_SSH_CONFIG": str(no_config(tmp_path)),
        }
        boxes: list[dict[str, Any]] = []
        # On a busy computer an SSH server may answer later than discovery waits for it.
        for _ in range(TRIES):
            done = lab.desk(["sh", "-c", both], environment=environment)
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            # avahi names a machine anew ("desk-2") when another responder claims its name.
            assert "Host name conflict" not in done.stderr, done.stderr
            boxes = json.loads(done.stdout)["boxes"]
            if {"atlas", "malin"} <= {box["name"] for box in boxes if box["usable"]}:
                break
    names = [box["name"] for box in boxes]
    assert len(names) == len(set(names))
    keys = [box["host_key"] for box in boxes if box["host_key"]]
    assert len(keys) == len(set(keys))
    assert sum(box["this_machine"] for box in boxes) == 1
    assert not [name for name in names if "inkwell" in name.lower() or not name.isprintable()]
    usable = {box["name"] for box in boxes if box["usable"] and not box["this_machine"]}
    assert {"atlas", "malin"} <= usable, names
    for box in boxes:
        assert box["usable"] or box["why"]
        for address in box["addresses"]:
            assert address["usable"] or address["why"]


def test_a_home_network_in_the_range_of_container_bridges_is_a_network(tmp_path: Path) -> None:
    with running_lab(2, "1gbe", subnet="172.17.0.0/24") as lab:
        road = Road(lab, tmp_path / "home")
        boxes = discovered(road, usable=PAIR)
        assert {box for box in PAIR if boxes[box]["usable"]} == set(PAIR)
        link = link_of(road)
        assert link["address_b"].startswith("172.17.0.")
        assert link["a_to_b"]["value"] > 0


def test_when_one_direction_is_blocked_the_other_end_begins(road: Road) -> None:
    lab = road.lab
    closed = ["-p", "tcp", "--syn", "-s", lab.address("atlas"), "-j", "REJECT"]
    lab.box("borea", ["iptables", "-A", "INPUT", *closed], root=True)
    try:
        link = link_of(road)
    finally:
        lab.box("borea", ["iptables", "-D", "INPUT", *closed], root=True)
    assert (link["a"], link["b"]) == PAIR
    assert link["a_to_b"]["value"] > 0
    assert link["b_to_a"]["value"] > 0
    assert link["address_a"] == lab.address("atlas")


def test_a_box_that_only_announces_itself_is_used_by_its_name_and_a_named_user(
    road: Road, tmp_path: Path
) -> None:
    config = no_config(tmp_path)
    discovered(road, usable=PAIR, ssh_config=config)
    refused = road.run("probe", "atlas", ssh_config=config)
    assert (refused.returncode, "USER@atlas" in refused.stderr) == (1, True), refused.stderr
    done = road.run("probe", "owner@atlas", "owner@borea", "--link", "--json", ssh_config=config)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["link"]["a"] == "atlas"


def test_a_box_whose_address_changed_is_found_again_by_its_host_key(
    road: Road, tmp_path: Path
) -> None:
    lab, config = road.lab, no_config(tmp_path)
    discovered(road, usable=PAIR, ssh_config=config)
    old = lab.address("atlas")
    new = old.rsplit(".", 1)[0] + ".77"
    ip(lab, "atlas", f"addr del {old}/24 dev eth0", f"addr add {new}/24 dev eth0")
    ip(lab, "atlas", f"route replace default via {lab.lab.state.router}")
    try:
        assert settle(lambda: new in announced(lab, "atlas"), within_s=60)
        done = road.run(
            "probe", "owner@atlas", "owner@borea", "--link", "--json", ssh_config=config
        )
        assert done.returncode == 0, done.stderr
        link = json.loads(done.stdout)["link"]
    finally:
        # The kernel takes away every address of the network with its first one.
        ip(lab, "atlas", f"addr del {new}/24 dev eth0", f"addr add {old}/24 dev eth0")
        ip(lab, "atlas", f"route replace default via {lab.lab.state.router}")
    assert link["address_a"] == new


def test_a_stopped_ssh_server_on_the_middle_hop_is_named(road: Road, tmp_path: Path) -> None:
    lab = road.lab
    config = tmp_path / "jump"
    config.write_text(
        f"Include {lab.ssh_config}\n"
        f"Host far\n  HostName {lab.address('borea')}\n  User owner\n  ProxyJump atlas\n"
    )
    lab.fault("atlas", "pause")
    try:
        done = road.run("probe", "far", ssh_config=config)
    finally:
        lab.fault("atlas", "resume")
    assert done.returncode == 1
    assert "far: its jump host atlas does not let us through: no answer from" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("answer", "says"),
    [("", "no Python 3.9 or newer"), ("3.8.18", "no Python 3.9 or newer")],
    ids=["no Python", "Python 3.8"],
)
def test_a_box_without_a_fit_python_gets_its_facts_and_is_told_what_brings_the_rest(
    road: Road, answer: str, says: str
) -> None:
    script = f"#!/bin/sh\necho '{answer}|'\n" if answer else "#!/bin/sh\nexit 127\n"
    hide = (
        "set -e; cat > /tmp/fake-python; chmod 755 /tmp/fake-python; "
        "mount --bind /tmp/fake-python $(readlink -f /usr/bin/python3)"
    )
    lab = road.lab
    done = lab.box("borea", ["sh", "-c", hide], root=True, text=script)
    assert done.returncode == 0, done.stderr
    try:
        box = road.json("probe", "borea")["boxes"][0]
        link = road.json("probe", *PAIR, "--link")["link"]
    finally:
        lab.box(
            "borea",
            ["sh", "-c", "umount $(readlink -f /usr/bin/python3); rm /tmp/fake-python"],
            root=True,
        )
    assert box["memory_bytes"] > 0
    assert box["cores"] > 0
    for reading in (box["memory_bytes_per_s"], *box["flops_per_s"].values()):
        assert reading["value"] is None
        assert says in reading["why"]
        assert "deployment brings one" in reading["why"]
    assert says in link["a_to_b"]["why"]


@pytest.mark.parametrize("at_work_on", ["reading and copying", "by one stream"])
def test_a_probe_that_is_broken_off_leaves_nothing_on_the_boxes(
    road: Road, at_work_on: str
) -> None:
    def there() -> set[tuple[str, str]]:
        lab = road.lab
        return {(box, each) for box in PAIR for each in files_of(lab, box) + processes_of(lab, box)}

    before = there()
    broken = Broken(road, "probe", *PAIR)
    broken.until(at_work_on)
    assert broken.interrupt() == 1
    settle(lambda: there() <= before, within_s=60)
    assert there() - before == set()


WATCH = """
import asyncio
from homesplit.core.events import BoxFound, BoxGone
from homesplit.stages.context import Context
from homesplit.stages.discover import watch

def tell(event):
    if isinstance(event, BoxFound):
        print("found", event.box.name, event.box.usable, flush=True)
    elif isinstance(event, BoxGone):
        print("gone", event.name, flush=True)

asyncio.run(watch(Context(emit=tell)))
"""


@contextlib.contextmanager
def looking(road: Road, config: Path) -> Generator[Callable[..., None]]:
    """Somebody on the desk looks; the function returns once one of these lines was told."""
    settings = {"HOMESPLIT_HOME": str(road.home), "HOMESPLIT_SSH_CONFIG": str(config)}
    process = subprocess.Popen(
        [*exec_command(road.lab.lab, DESK), sys.executable, "-c", WATCH],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, **settings},
    )
    told: list[str] = []

    def until(*wanted: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.strip())
            if told[-1] in wanted:
                return
        raise AssertionError(f"none of {wanted} was told: {told}")

    try:
        yield until
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_a_box_appears_goes_and_comes_back_while_one_looks(road: Road, tmp_path: Path) -> None:
    with looking(road, no_config(tmp_path)) as until:
        until("found borea True")
        road.lab.fault("borea", "power-off")
        try:
            until("gone borea", "found borea False")
        finally:
            road.lab.fault("borea", "power-on")
        until("found borea True")
