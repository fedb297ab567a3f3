"""Asking a machine for all its facts: what hangs, and answers without end."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from homesplit_probes import __main__ as probes
from homesplit_probes import facts, throttle
from homesplit_probes.said import said as probes_said

from homesplit.core.probed import box_profile
from homesplit.io.probe_runner import FACTS_S
from tests.probes.facts_kit import command, said, tool

GOLDEN = Path(__file__).parent / "golden"


def test_a_tool_that_hangs_is_given_up_and_the_rest_is_told(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "sleep 600")
    asked = facts.WITHIN + command("nvidia").replace("within 8 ", "within 1 ")
    assert said(tmp_path, f"{asked}; echo and on") == "and on\n"


def test_a_tool_that_hears_no_signal_is_given_up(tmp_path: Path) -> None:
    tool(tmp_path, "deaf", "trap '' TERM; sleep 60; echo late")
    # As where only the time of day is told.
    within = facts.WITHIN.replace("/proc/uptime", "/none/uptime")
    assert said(tmp_path, f"{within}within 1 deaf; echo and on") == "and on\n"


def test_a_driver_that_hangs_is_not_asked_twice(tmp_path: Path) -> None:
    for name, asked in (("nvidia-smi", ("nvidia", "mig")), ("amd-smi", ("amd",))):
        # As it ends where it is given up.
        tool(tmp_path, name, f"echo asked >>{tmp_path}/log; exit 124")
        script = facts.WITHIN + "; ".join(map(command, asked))
        script = re.sub(r"within \d+ ", "within 100 ", script)
        said(tmp_path, script)
        assert (tmp_path / "log").read_text() == "asked\n"
        tool(tmp_path, name, f"echo asked >>{tmp_path}/log")
        said(tmp_path, script)
        assert (tmp_path / "log").read_text() == "asked\n" * 3
        (tmp_path / "log").unlink()


BUSY = r"""
late=0
clock() { now=$late; }
# Nothing is done but by the time that this waits for, so that it takes no time here.
sleep() {
  late=$((late + 9)); turns="$turns."
  if [ -n "$at" ]; then until [ -s "$at" ]; do command sleep 0.02; done
  else until [ -e "$held/load.told" ] && [ -e "$held/nvidia.told" ]; do command sleep 0.02; done; fi
}
"""
"""A box where each turn of 0.1 s lasts 9 s."""


def test_what_hangs_holds_up_nothing_else_and_is_named_in_time_also_by_a_busy_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's tool, and what hangs where `within` bounds nothing."""
    names = ("nvidia", "on_battery", "load", "silent")
    monkeypatch.setattr(facts, "FACTS", tuple(f for f in facts.FACTS if f.name in names))
    tool(tmp_path, "nvidia-smi", "echo R, 1, 1, 1, 1, 1; exec sleep 20")
    tool(tmp_path, "pmset", "exec sleep 20")
    # What no signal ends is as what nobody ends.
    script = facts.script("MARK").replace("kill -KILL", "true").replace("facts='", f"{BUSY}facts='")
    answer = said(tmp_path, f'{script}; echo; echo "MARK turns"; echo "$turns"')
    found = facts.parse(answer, "MARK")
    # Not in 200 turns of 0.1 s, which last half an hour there.
    assert answer.endswith("turns\n...\n")
    assert (found["silent"], found["nvidia"][0]["name"]) == (["nvidia", "on_battery"], "R")
    assert found["load"] is not None
    warned = box_profile("b", None, found, None, at="").warnings
    assert "no answer in time about its NVIDIA GPU and its battery: it is very busy" in warned[-1]


def test_all_facts_are_told_before_the_desk_stops_waiting() -> None:
    waits = re.findall(r"within (\d+) ", "; ".join(fact.command for fact in facts.FACTS))
    assert max(map(int, waits)) < facts.ANSWER_S < probes._FACTS_S < FACTS_S  # pyright: ignore[reportPrivateUsage]


def test_facts_in_front_of_one_that_hangs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1, output=command[-1].encode())

    def script(mark: str) -> str:
        return f"{mark} load\n0.5 1 1\n{mark} disk\n"

    monkeypatch.setattr(facts, "script", script)
    monkeypatch.setattr(subprocess, "run", hanging)
    found = probes.gather_facts()
    assert (found["load"], found["disk"]) == (0.5, None)


def test_a_tool_that_no_signal_ends_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen[str].kill
    monkeypatch.setattr("homesplit_probes.said._WAIT_S", 0.1)
    monkeypatch.setattr("homesplit_probes.said._END_S", 0.1)

    def deaf(process: subprocess.Popen[str]) -> None:
        left.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", deaf)
    assert probes_said(["sleep", "60"]) == ""
    (process,) = left
    assert process.poll() is None
    kill(process)
    process.communicate()


def test_where_nothing_can_be_written_all_are_waited_for(tmp_path: Path) -> None:
    tool(tmp_path, "mktemp", "exit 1")
    assert said(tmp_path, f"{facts.WITHIN}within 100 echo here") == "here\n"
    found = facts.parse(said(tmp_path, facts.script("MARK")), "MARK")
    assert found["memory"]["total_bytes"] and found["silent"] == []


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    tool(tmp_path, "mktemp", f"mkdir {tmp_path}/held; echo {tmp_path}/held")
    said(tmp_path, facts.script("MARK"))
    assert not (tmp_path / "held").exists()


def test_wsls_tools_are_found_where_no_login_looks() -> None:
    assert "/usr/lib/wsl/lib" in facts.script("MARK").splitlines()[0]


def test_the_whole_script_runs_under_plain_sh_and_is_read_back() -> None:
    done = subprocess.run(["sh", "-c", facts.script("MARK")], capture_output=True, timeout=300)
    found = facts.parse(done.stdout.decode(), "MARK")
    assert set(found) == {fact.name for fact in facts.FACTS}
    assert found["system"]["kernel"]
    assert found["memory"]["total_bytes"] > 0


@pytest.mark.parametrize(
    "junk",
    [
        *("\n", " \n", "a ", "1 ", "GPU: 1\n", "VRAM:\n", "Chipset Model:\n"),
        *("en0: flags=1 mtu 1\n", "GPU 0:\n  MIG a  ", "model name : ", "9", "quota=1 1\n"),
    ],
)
def test_an_answer_without_end_is_read_or_unknown(junk: str) -> None:
    parts = [f"MARK {fact.name}\n{junk * (200_000 // len(junk))}" for fact in facts.FACTS]
    found = facts.parse("\n".join(parts), "MARK")
    assert set(found) == {fact.name for fact in facts.FACTS}
    assert box_profile("b", None, found, None, at="").name == "b"


@pytest.mark.parametrize("digits", [400, 4000, 100_000])
def test_a_figure_without_end_is_unknown_and_costs_nobody_a_profile(digits: int) -> None:
    figure = "9" * digits
    lines = [
        f"Chipset Model: M\n VRAM (Total): {figure} GB\n",
        f"hw.memsize: {figure}\npage size of {figure} bytes\nPages free: {figure}.\n",
        f"hw.memsize: 17179869184\npage size of 16384 bytes\nPages free: {figure}.\n",
        f"en0: flags=1 mtu {figure}\n media: auto ({figure}baseT)\n",
        f"en0: flags=1 mtu 1500\n media: auto ({figure}Gbase-T)\n",
        f"eth0|{figure}|{figure}|wired|up\n",
        f"MemTotal: {figure} kB\nMemAvailable: {figure} kB\n",
        f"cores={figure}\nquota={figure} {figure}\n",
        f"R, {figure}, {figure}, 1, {figure}, {figure}\n",
        f"GPU: 0\n    VRAM:\n        SIZE: {figure} GB\n",
        f"0x1002|amdgpu|R|{figure}|{figure}|{figure}\n",
        f"/dev/a {figure} {figure} {figure} 5% /\n",
        figure,
    ]
    for line in lines:
        parts = [f"MARK {fact.name}\n{line}" for fact in facts.FACTS]
        found = facts.parse("\n".join(parts), "MARK")
        profile = box_profile("b", None, found, None, at="")
        assert profile.memory_total_bytes.value in (None, 1 << 34), line[:40]
        assert all(gpu.memory_bytes.value is None for gpu in profile.accelerators), line[:40]
        mtus = [one["mtu"] for one in (found["interfaces"] or {}).values()]
        assert mtus in ([], [None], [1500]), line[:40]
    assert throttle.parse_mac(f"CPU_Speed_Limit = {figure}") == {}
