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
from tests.lab.api import running_lab
from tests.lab.rates import goodput_bits_per_s
from tests.lab.road import Road, box_platform, fetch_packages, files_of, processes_of

pytestmark = [pytest.mark.lab, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1500)]

BOXES = ("atlas", "borea")
PAIR = ",".join(BOXES)
LOAD = (
    *("--prompt-tokens", "60", "--output-tokens", "8", "--users", "2"),
    *("--seconds", "30", "--warm-up", "0"),
)
PLANNED_LOAD = ("--prompt-tokens", "1500", "--output-tokens", "32", "--users", "4")
MODES = {"colocated", "replica", "split"}


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Generator[Road]:
    """A desk and two boxes of 4 GiB at 1 Gbit/s, the second with half a core."""
    assert not (lab_needs() or model_needs())
    with running_lab(2, "1gbe", cpu=["atlas=1", "borea=0.5"], memory=["4"]) as lab:
        fetch_packages(box_platform(lab, "atlas"))
        yield Road(lab, tmp_path_factory.mktemp("road"))


def measured_bytes_per_s(probed: dict[str, Any]) -> float:
    """The link from the first box to the second."""
    link = probed["link"]
    forward = link["a_to_b"] if link["a"] == BOXES[0] else link["b_to_a"]
    assert forward["value"] is not None, forward["why"]
    return float(forward["value"])


TYPED_BOX = """\
name = "{name}"
memory_bytes = 17179869184
memory_bytes_per_s = {memory_bytes_per_s}
flops_per_s = {{ fp32 = {flops_per_s} }}
unified = true
"""


def test_the_advice_on_the_link_differs_where_the_arithmetic_does(
    road: Road, tmp_path: Path
) -> None:
    """1,500 tokens are 69 MB of KV: 0.6 s at 1 Gbit/s, 12 s at 50 Mbit/s; prefill takes about 4."""
    for name, memory, flops in (("reader", "2e10", "2e11"), ("writer", "1e11", "4e10")):
        text = TYPED_BOX.format(name=name, memory_bytes_per_s=memory, flops_per_s=flops)
        (tmp_path / f"{name}.toml").write_text(text)
    boxes = f"{tmp_path}/reader.toml,{tmp_path}/writer.toml"
    verdicts: dict[str, str] = {}
    for rate in ("50mbit", "1gbe"):
        road.lab.set_rate(rate)
        mbit = road.lab.iperf_bits_per_s(*BOXES) / 1e6
        plan = road.json(
            *("plan", "--boxes", boxes, "--link", f"{mbit:.1f}Mbit/s", "--model", MODEL),
            *PLANNED_LOAD,
            timeout_s=300,
        )
        verdicts[rate] = rule(plan, "link")["verdict"]
    assert verdicts == {"50mbit": "fail", "1gbe": "pass"}


def probe_and_plan(road: Road, rate: str, bits_per_s: float) -> dict[str, Any]:
    """Measure at a rate, hold the link against iperf3 in the same lab, and ask for the advice."""
    road.lab.set_rate(rate)
    probed = road.json("probe", *BOXES, timeout_s=300)
    assert [box["name"] for box in probed["boxes"]] == list(BOXES)
    for box in probed["boxes"]:
        assert box["memory_bytes"] == pytest.approx(4 * 2**30, rel=0.05)
        assert box["memory_bytes_per_s"]["value"] > 0
        readings = box["flops_per_s"].values()
        assert all(each["why"] for each in readings if each["value"] is None)
        assert any(each["value"] for each in readings)
    iperf = road.lab.iperf_bits_per_s(*BOXES)
    assert iperf == pytest.approx(goodput_bits_per_s(bits_per_s), rel=0.10)
    assert measured_bytes_per_s(probed) * 8 == pytest.approx(iperf, rel=0.10)
    return road.json("plan", "--boxes", PAIR, "--model", MODEL, *PLANNED_LOAD, timeout_s=300)


def rule(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """One rule of an advice."""
    return next(each for each in plan["rules"] if each["id"] == name)


def test_the_whole_road(road: Road, tmp_path: Path) -> None:
    lab = road.lab
    before = {box: (files_of(lab, box), processes_of(lab, box)) for box in BOXES}

    found = {box["name"]: box for box in road.json("discover")["boxes"]}
    for box in BOXES:
        assert found[box]["usable"], found[box]["why"]
        assert lab.address(box) in [each["address"] for each in found[box]["addresses"]]
        assert found[box]["found_by"]

    slow = probe_and_plan(road, "50mbit", 50e6)
    fast = probe_and_plan(road, "1gbe", 1e9)
    for plan in (slow, fast):
        assert {mode["mode"] for mode in plan["modes"]} >= MODES
        assert plan["recommendation"]["sentence"]
        assert all(each["sentence"] for each in plan["rules"])
        link = rule(plan, "link")
        assert link["verdict"] == ("pass" if link["value"] <= link["threshold"] else "fail")
    assert rule(slow, "link")["value"] > rule(fast, "link")["value"]

    dry = road.json("up", "--boxes", PAIR, "--model", MODEL, "--mode", "colocated", "--dry-run")
    assert {change["box"] for change in dry["changes"] if change["needed"]} == set(BOXES)
    assert {box: (files_of(lab, box), processes_of(lab, box)) for box in BOXES} == before

    up = road.json(
        *("up", "--boxes", PAIR, "--model", MODEL, "--mode", "colocated", "--yes"), timeout_s=600
    )
    assert [box["state"] for box in up["boxes"]] == ["running", "running"]
    assert road.json("status")["router_state"] == "running"

    colocated = bench(road)
    road.json("mode", "split", "--prefill-box", "atlas", "--decode-box", "borea")
    assert road.json("status")["setting"]["mode"] == "split"
    split = bench(road)
    assert split["ttft_s"]["p50"] != colocated["ttft_s"]["p50"]

    assert len(notebook_rows(road, tmp_path)) >= 2

    road.json("down", timeout_s=120)
    for box in BOXES:
        assert processes_of(lab, box) == before[box][1]
        road.json("remove", box, timeout_s=120)
        assert files_of(lab, box) == before[box][0]
        assert processes_of(lab, box) == before[box][1]


def bench(road: Road) -> dict[str, Any]:
    """A short load; nothing fails and every word of the design is there."""
    result = road.json("bench", *LOAD, timeout_s=180)
    assert result["completed"] > 0
    assert (result["failed"], result["rejected"]) == (0, 0)
    for word in ("ttft_s", "ttst_s", "itl_s", "tpot_s", "stall_s"):
        assert {"p50", "p90", "p99"} <= set(result[word]), word
    keys = {"offered", "attainment", "goodput_requests_per_s", "goodput_tokens_per_s", "by_class"}
    assert keys <= set(result)
    return result


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
        assert processes_of(road.lab, box) == []


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
    assert lab.box("atlas", ["sh", "-c", wait], timeout_s=20).returncode == 0
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
