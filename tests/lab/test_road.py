"""The whole road on two boxes by the command line: from finding them to leaving nothing."""

from __future__ import annotations

import csv
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import MODEL, lab_needs, model_needs
from tests.lab.api import RunningLab, running_lab
from tests.lab.desks import settle
from tests.lab.rates import goodput_bits_per_s
from tests.lab.road import (
    Road,
    box_platform,
    discovered,
    fetch_packages,
    files_of,
    processes_of,
)

pytestmark = [pytest.mark.lab, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1500)]

BOXES = ("atlas", "borea")
PAIR = ",".join(BOXES)
LOAD = (
    *("--prompt-tokens", "60", "--output-tokens", "8", "--users", "2"),
    *("--seconds", "6", "--warm-up", "0"),
)
PLANNED_LOAD = ("--prompt-tokens", "600", "--output-tokens", "32", "--users", "4")
KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
"""SmolLM2-135M: 30 layers, K and V, 3 heads of 64, in fp32."""
QUESTION, WORDS = "Name three fruits.", ("banana", "orange", "grape")
MODES = {"colocated", "replica", "split"}
TRIES = 8
SETTLED_S = 60.0
"""What a log-in started on a box has ended by then."""


ASKED_FOR_ROOT = "/tmp/asked-for-root"
PLAIN = f"""set -e
library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -rf "$library/ensurepip"
touch "$library/EXTERNALLY-MANAGED"
for name in sudo doas pkexec; do
  printf '#!/bin/sh\\necho "$0 $*" >>{ASKED_FOR_ROOT}\\n' >/usr/local/bin/$name
  printf 'echo "a terminal is required to read the password" >&2; exit 1\\n' >>/usr/local/bin/$name
  chmod 755 /usr/local/bin/$name
done
"""
"""Debian as it comes: pip refuses the system's Python, which can make no environment with pip
either; and who wants to be root is asked for a password at a terminal that is not there."""


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Generator[Road]:
    """A desk and two plain boxes of 4 GiB at 1 Gbit/s, the second with half a core."""
    assert not (lab_needs() or model_needs())
    with running_lab(2, "1gbe", cpu=["atlas=1", "borea=0.5"], memory=["4"]) as lab:
        for box in BOXES:
            made = lab.box(box, ["sh", "-c", PLAIN], root=True)
            assert made.returncode == 0, made.stderr
        fetch_packages(box_platform(lab, "atlas"))
        yield Road(lab, tmp_path_factory.mktemp("road"))


TYPED_BOX = """\
name = "{name}"
memory_bytes = 4294967296
memory_bytes_per_s = {memory_bytes_per_s}
flops_per_s = {{ fp32 = {flops_per_s} }}
unified = true
"""


def typed_boxes(folder: Path) -> str:
    """Both boxes with the figures that one core and half a core have when nothing else works.

    They bear the boxes' names, so that the link measured between those is theirs.
    """
    for name, memory, flops in (("atlas", "8e9", "8e10"), ("borea", "4e9", "4e10")):
        text = TYPED_BOX.format(name=name, memory_bytes_per_s=memory, flops_per_s=flops)
        (folder / f"{name}.toml").write_text(text)
    return ",".join(f"{folder}/{box}.toml" for box in BOXES)


def link_as_iperf_has_it(
    road: Road, bits_per_s: float, measured_already: dict[str, Any] | None = None
) -> None:
    """Measure the rate that is set; what else runs on this computer may spoil a few tries."""
    told: list[str] = []
    for number in range(TRIES):
        known = measured_already if number == 0 else None
        link = known or road.json("probe", "--link", *BOXES, timeout_s=300)["link"]
        forward = link["a_to_b"] if link["a"] == BOXES[0] else link["b_to_a"]
        measured = (forward["value"] or 0) * 8
        iperf = road.lab.iperf_bits_per_s(*BOXES)
        lab = goodput_bits_per_s(bits_per_s)
        if measured == pytest.approx(iperf, rel=0.10) and iperf == pytest.approx(lab, rel=0.10):
            return
        told.append(f"{measured:.3g} {forward.get('why', '')} (iperf3 {iperf:.3g}, lab {lab:.3g})")
    raise AssertionError(f"bit/s: {'; '.join(told)}")


def boxes_are_measured(road: Road) -> dict[str, Any]:
    """Each box's figures: a number, or its reason; returns the link between them."""
    probed = road.json("probe", *BOXES, timeout_s=300)
    assert [box["name"] for box in probed["boxes"]] == list(BOXES)
    for box in probed["boxes"]:
        assert box["memory_bytes"] == pytest.approx(4 * 2**30, rel=0.05)
        assert box["memory_bytes_per_s"]["value"] > 0
        readings = box["flops_per_s"].values()
        assert all(each["why"] for each in readings if each["value"] is None)
        assert any(each["value"] for each in readings)
    return probed["link"]


def advice(road: Road, boxes: str) -> dict[str, Any]:
    """The plan for two boxes over the link as it was last measured."""
    words = ("plan", "--boxes", boxes, "--link", "probed", "--model", MODEL, "--no-flips")
    plan = road.json(*words, *PLANNED_LOAD, timeout_s=300)
    assert {mode["mode"] for mode in plan["modes"]} >= MODES
    assert plan["recommendation"]["sentence"]
    assert all(each["sentence"] for each in plan["rules"])
    link = rule(plan, "link")
    assert link["verdict"] == ("pass" if link["value"] <= link["threshold"] else "fail")
    return plan


def check_that_the_rate_changes_the_advice(
    slow: tuple[dict[str, Any], ...], fast: tuple[dict[str, Any], ...]
) -> None:
    """Each pair holds the plan for the boxes as probed and for those typed in.

    600 tokens are 28 MB of KV: 4.4 s at 50 Mbit/s, 0.24 s at 1 Gbit/s; a free core reads them
    in about 3 s. What boxes were probed at depends on what else this computer does, so for
    them it is the hand-off that must differ, and for the typed ones the mode as well.
    """
    for plan_slow, plan_fast in zip(slow, fast, strict=True):
        assert rule(plan_slow, "link")["value"] > 5 * rule(plan_fast, "link")["value"]
    slow_typed, fast_typed = slow[1], fast[1]
    assert rule(slow_typed, "link")["verdict"] == "fail"
    assert slow_typed["recommendation"]["mode"] != "split"
    assert rule(fast_typed, "link")["verdict"] == "pass"
    assert fast_typed["recommendation"]["mode"] == "split"
    assert fast_typed["recommendation"]["prefill_box"] == "atlas"


def listing(lab: RunningLab, box: str) -> tuple[list[str], list[str]]:
    """Files and processes of a box's owner."""
    return files_of(lab, box), processes_of(lab, box)


def rule(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """One rule of an advice."""
    return next(each for each in plan["rules"] if each["id"] == name)


def test_the_whole_road(road: Road, tmp_path: Path) -> None:
    lab = road.lab
    before = {box: listing(lab, box) for box in BOXES}

    found = discovered(road, usable=BOXES)
    for box in BOXES:
        assert found[box]["usable"], found[box]["why"]
        assert lab.address(box) in [each["address"] for each in found[box]["addresses"]]
        assert found[box]["found_by"]

    typed = typed_boxes(tmp_path)
    link_as_iperf_has_it(road, 1e9, boxes_are_measured(road))
    fast = advice(road, PAIR), advice(road, typed)
    lab.set_rate("50mbit")
    link_as_iperf_has_it(road, 50e6)
    slow = advice(road, PAIR), advice(road, typed)
    lab.set_rate("normal")
    check_that_the_rate_changes_the_advice(slow, fast)

    dry = road.json("up", "--boxes", PAIR, "--model", MODEL, "--mode", "colocated", "--dry-run")
    assert {change["box"] for change in dry["changes"] if change["needed"]} == set(BOXES)
    assert settle(lambda: {box: listing(lab, box) for box in BOXES} == before, within_s=SETTLED_S)

    up = road.json(
        *("up", "--boxes", PAIR, "--model", MODEL, "--mode", "colocated", "--yes"), timeout_s=900
    )
    assert [box["state"] for box in up["boxes"]] == ["running", "running"]
    assert road.json("status")["deployment"]["router_state"] == "running"
    served(road, "colocated")

    road.json("mode", "split", "--prefill-box", "atlas", "--decode-box", "borea")
    assert road.json("status")["deployment"]["setting"]["mode"] == "split"
    for rate in ("1gbe", "50mbit"):
        lab.set_rate(rate)
        handed_over(served(road, "split"))
    lab.set_rate("normal")

    # A header and an entry for each probe, plan, deployment and load.
    assert len(notebook_rows(road, tmp_path)) > 1 + 3

    road.json("down", timeout_s=300)
    for box in BOXES:
        assert settle(lambda box=box: processes_of(lab, box) == before[box][1], within_s=SETTLED_S)
        road.json("remove", box, timeout_s=300)
        assert ASKED_FOR_ROOT not in files_of(lab, box)
        assert settle(lambda box=box: listing(lab, box) == before[box], within_s=SETTLED_S)


def served(road: Road, mode: str) -> dict[str, Any]:
    """An answer that makes sense and a short load in which nothing fails; returns its figures."""
    answer = road.ask(QUESTION).lower()
    assert all(word in answer for word in WORDS), (mode, answer)
    result = road.json("bench", *LOAD, timeout_s=300)
    assert result["completed"] > 0
    assert (result["failed"], result["rejected"]) == (0, 0)
    for word in ("ttft_s", "ttst_s", "itl_s", "tpot_s", "stall_s"):
        assert {"p50", "p90", "p99"} <= set(result[word]), word
    keys = {"offered", "attainment", "goodput_requests_per_s", "goodput_tokens_per_s", "by_class"}
    assert keys <= set(result)
    return result


def handed_over(result: dict[str, Any]) -> None:
    """Every prompt's KV went over the wire, byte for byte what the model's shape says."""
    server = result["server"]
    assert server["handoff_tokens"] > 0
    assert server["handoff_bytes"] == server["handoff_tokens"] * KV_BYTES_PER_TOKEN


def notebook_rows(road: Road, folder: Path) -> list[list[str]]:
    """Export every format; returns the rows of the table."""
    for kind in ("ipynb", "md", "csv", "jsonl"):
        path = folder / f"notebook.{kind}"
        done = road.run("notebook", "export", "--format", kind, "--out", str(path))
        assert done.returncode == 0, done.stderr
        assert path.stat().st_size > 0
    nbformat.validate(nbformat.read(folder / "notebook.ipynb", as_version=4))
    with (folder / "notebook.csv").open() as file:
        return list(csv.reader(file))


def test_a_network_without_boxes_is_told_as_such(tmp_path: Path) -> None:
    with running_lab(1) as lab:
        lab.fault("atlas", "power-off")
        road = Road(lab, tmp_path / "home")
        found = road.json("discover", "--seconds", "1")["boxes"]
        assert [box["name"] for box in found if box["usable"] and not box["this_machine"]] == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("probe", "nowhere"), 1, "nowhere"),
        (("up", "--boxes", PAIR, "--model", "no-such-model", "--yes"), 1, "no-such-model"),
        (("up", "--boxes", PAIR, "--model", MODEL, "--mode", "sideways"), 2, "sideways"),
        (("up", "--boxes", PAIR, "--model", MODEL), 2, "--yes"),
        (("plan", "--boxes", "no-such-box,m", "--model", MODEL, "--users", "1"), 2, "no-such-box"),
        (("mode", "split"), 1, "deploy"),
    ],
)
def test_what_cannot_be_is_answered_in_a_sentence(
    road: Road, words: tuple[str, ...], code: int, says: str
) -> None:
    fresh = Road(road.lab, road.home.with_name("wrong-inputs"))
    done = fresh.run(*words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    for box in BOXES:
        assert settle(lambda box=box: processes_of(road.lab, box) == [], within_s=SETTLED_S)


def test_a_refused_key_and_a_changed_host_key_are_told_apart(tmp_path: Path) -> None:
    with running_lab(1, odd="refuse") as lab:
        road = Road(lab, tmp_path / "home")
        refused = road.run("probe", "corvo")
        assert (refused.returncode, "corvo" in refused.stderr) == (1, True)
        assert "Traceback" not in refused.stderr
        lab.fault("atlas", "new-hostkey")
        changed = road.run("probe", "atlas")
        assert (changed.returncode, "key" in changed.stderr) == (1, True)
        assert "Traceback" not in changed.stderr


def test_a_taken_port_is_told_and_nothing_is_left_running(road: Road) -> None:
    lab = road.lab
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = (
        "import socket, subprocess, sys, time\n"
        f"s = socket.create_server(('0.0.0.0', {port}))\n"
        "print('holds', flush=True)\n"
        "time.sleep(300)\n"
    )
    holder = ["sh", "-c", 'setsid /usr/bin/python3 -c "$0" > /tmp/held 2>&1 &', program]
    lab.box("atlas", holder)
    wait = "until grep -q holds /tmp/held; do sleep 0.1; done"
    assert lab.box("atlas", ["sh", "-c", wait]).returncode == 0
    try:
        done = road.run(
            *("up", "--boxes", "atlas", "--model", MODEL, "--port", str(port), "--yes"),
            timeout_s=600,
        )
        assert (done.returncode, str(port) in done.stderr) == (1, True), done.stderr
        assert [line for line in processes_of(lab, "atlas") if "homesplit" in line] == []
    finally:
        lab.fault("atlas", "kill-engine")
        road.run("down")
        road.run("remove", "atlas")
