"""Switches machines on and off."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.lab.cgroups import Cgroup
from tests.lab.errors import LabError
from tests.lab.files import tail
from tests.lab.init import BOX_PATH
from tests.lab.processes import run_tool, send, start_time
from tests.lab.records import Fault
from tests.lab.shaping import shape
from tests.lab.store import ENTRY, STATE_ROOT, Lab
from tests.lab.wiring import plug, set_port

_BOOT_ENDS_WITHIN_S = 60.0


def boot(lab: Lab, names: list[str]) -> None:
    """Start machines side by side; raises LabError with the log of one that did not come up."""
    starting: dict[str, subprocess.Popen[str]] = {}
    for name in names:
        folder = lab.node_folder(name)
        folder.mkdir(exist_ok=True)
        with (folder / "init.log").open("w") as log:
            starting[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(ENTRY), "--lab", lab.name, "_box", name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={"PATH": BOX_PATH, "LANG": "C.UTF-8", "HOMELAB_STATE": str(STATE_ROOT)},
            )
    for name, process in starting.items():
        _note_pid(lab, name, process)
    lab.save()
    failed = [name for name, process in starting.items() if not _ready(process)]
    if failed:
        logs = "\n".join(f"{name}: {tail(lab.node_folder(name) / 'init.log')}" for name in failed)
        raise LabError(f"did not start: {', '.join(failed)}\n{logs}")


def _note_pid(lab: Lab, name: str, process: subprocess.Popen[str]) -> None:
    first = process.stdout.readline() if process.stdout else ""
    if first.startswith("PID "):
        node = lab.node(name)
        node.pid = int(first.split()[1])
        node.started = start_time(node.pid)


def _ready(process: subprocess.Popen[str]) -> bool:
    if process.stdout is None:
        return False
    with process.stdout as told:
        ready = told.readline().strip() == "READY"
    process.wait(_BOOT_ENDS_WITHIN_S)
    return ready


def power_off(lab: Lab, name: str) -> None:
    """Off at once: the cable goes silent first, so that no goodbye gets out."""
    node, group = lab.node(name), Cgroup(lab.name, name)
    set_port(lab, node, "down", check=False)
    if lab.alive(name) and node.pid:
        send(node.pid, signal.SIGKILL)
    thaw(group)
    group.end_all(grace_s=0)
    # A namespace goes in its own time: the cable must be gone before a new one of its name.
    run_tool(["ip", "-n", lab.state.switch, "link", "del", node.port_device], check=False)
    run_tool(["ip", "netns", "del", node.netns], check=False)
    node.pid = node.started = None
    lab.save()


def power_on(lab: Lab, name: str) -> None:
    """On again, healthy, with the files it had."""
    node = lab.node(name)
    if lab.alive(name):
        raise LabError(f"{name} is on")
    node.fault = Fault()
    node.filtered = False
    run_tool(["ip", "netns", "add", node.netns])
    plug(lab, node)
    shape(lab, only=name)
    boot(lab, [name])


def thaw(group: Cgroup) -> None:
    """Let a frozen group go on, when there is one."""
    if group.folders():
        group.freeze(False)
