"""What can go wrong at home, on purpose: cables, power, sleep, slow links, killed engines."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cgroups import Cgroup
from tests.lab.errors import LabError
from tests.lab.files import get
from tests.lab.init import ANNOUNCER
from tests.lab.power import power_off, power_on, thaw
from tests.lab.processes import parents, send
from tests.lab.rates import PRESETS, parse_rate
from tests.lab.records import DESK, Fault, Node
from tests.lab.shaping import shape
from tests.lab.sshd import renew_host_key
from tests.lab.store import ENTRY, Lab
from tests.lab.wiring import set_port

_REBOOT_OFF_S = 3.0
_SERVICES = ("sshd", "sshd-session", "avahi-daemon")

UNDO = {
    "pause": "resume",
    "sleep": "wake",
    "cut-link": "restore-link",
    "blackhole": "restore-link",
    "loss": "loss",
    "latency": "latency",
    "rate": "rate",
}
"""What ends a fault; loss, latency and rate end with a value."""

_UNDO_VALUES = {"loss": "0", "latency": "0", "rate": "normal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """One fault as asked for; `for_s` undoes it after so long (of a reboot: time off)."""

    box: str
    what: str
    value: str | None = None
    for_s: float | None = None
    match: str | None = None
    signal_name: str = "KILL"


def inject(lab: Lab, request: FaultRequest) -> list[dict[str, int | str]]:
    """Break something, or mend it; returns the processes that `kill-engine` ended."""
    node = lab.node(request.box)
    if request.what == "kill-engine":
        return kill_engine(lab, node, request.match, request.signal_name)
    action = _ACTIONS.get(request.what)
    if action is None:
        raise LabError(f"no fault {request.what!r}: {', '.join(FAULTS)}")
    action(lab, node, request)
    lab.save()
    undo = UNDO.get(request.what)
    if undo and request.for_s is not None:
        time.sleep(request.for_s)
        _ACTIONS[undo](
            lab, node, FaultRequest(box=node.name, what=undo, value=_UNDO_VALUES.get(undo))
        )
        lab.save()
    return []


def _pause(lab: Lab, node: Node, _request: FaultRequest) -> None:
    Cgroup(lab.name, node.name).freeze(True)
    node.fault.paused = True


def _resume(lab: Lab, node: Node, _request: FaultRequest) -> None:
    Cgroup(lab.name, node.name).freeze(False)
    node.fault.paused = False


def _sleep(lab: Lab, node: Node, request: FaultRequest) -> None:
    """A closed lid: no packet, no instruction."""
    _cut_link(lab, node, request)
    _pause(lab, node, request)


def _wake(lab: Lab, node: Node, request: FaultRequest) -> None:
    set_port(lab, node, "up")
    node.fault.cut = None
    _resume(lab, node, request)


def _cut_link(lab: Lab, node: Node, _request: FaultRequest) -> None:
    """Cable out: the machine sees no carrier."""
    set_port(lab, node, "down")
    node.fault.cut = "link"


def _blackhole(lab: Lab, node: Node, _request: FaultRequest) -> None:
    """The carrier stays, every packet is lost."""
    set_port(lab, node, "nomaster")
    node.fault.cut = "blackhole"


def _restore_link(lab: Lab, node: Node, _request: FaultRequest) -> None:
    set_port(lab, node, "master", "br0")
    set_port(lab, node, "up")
    node.fault.cut = None


def _number(request: FaultRequest) -> float:
    try:
        return float(request.value or "")
    except ValueError:
        raise LabError(f"fault {request.box} {request.what} needs a number") from None


def _loss(lab: Lab, node: Node, request: FaultRequest) -> None:
    node.fault.loss_percent = _number(request)
    shape(lab, only=node.name)


def _latency(lab: Lab, node: Node, request: FaultRequest) -> None:
    node.fault.latency_ms = _number(request)
    shape(lab, only=node.name)


def _rate(lab: Lab, node: Node, request: FaultRequest) -> None:
    value = request.value or ""
    if value == "normal":
        node.fault.rate_bits_per_s = None
    else:
        preset = PRESETS.get(value)
        rate = preset.rate_bits_per_s if preset else None
        node.fault.rate_bits_per_s = rate or parse_rate(value)
    shape(lab, only=node.name)


def _clear(lab: Lab, node: Node, _request: FaultRequest) -> None:
    """Mend everything but the power."""
    thaw(Cgroup(lab.name, node.name))
    if node.pid or node.kind == DESK:
        set_port(lab, node, "master", "br0")
        set_port(lab, node, "up")
    node.fault = Fault()
    shape(lab, only=node.name)


def _needs_switch(node: Node) -> None:
    if node.kind == DESK:
        raise LabError("the desk has no power switch")


def _power_off(lab: Lab, node: Node, _request: FaultRequest) -> None:
    _needs_switch(node)
    power_off(lab, node.name)


def _power_on(lab: Lab, node: Node, _request: FaultRequest) -> None:
    _needs_switch(node)
    power_on(lab, node.name)


def _reboot(lab: Lab, node: Node, request: FaultRequest) -> None:
    _power_off(lab, node, request)
    time.sleep(_REBOOT_OFF_S if request.for_s is None else request.for_s)
    power_on(lab, node.name)


def _new_host_key(lab: Lab, node: Node, request: FaultRequest) -> None:
    _power_off(lab, node, request)
    renew_host_key(lab, node)
    power_on(lab, node.name)


_ACTIONS: dict[str, Callable[[Lab, Node, FaultRequest], None]] = {
    "pause": _pause,
    "resume": _resume,
    "sleep": _sleep,
    "wake": _wake,
    "cut-link": _cut_link,
    "blackhole": _blackhole,
    "restore-link": _restore_link,
    "loss": _loss,
    "latency": _latency,
    "rate": _rate,
    "reboot": _reboot,
    "power-off": _power_off,
    "power-on": _power_on,
    "new-hostkey": _new_host_key,
    "clear": _clear,
}

FAULTS = ("kill-engine", *_ACTIONS)
"""Every fault by the name it has on the command line."""


def kill_engine(
    lab: Lab, node: Node, match: str | None = None, signal_name: str = "KILL"
) -> list[dict[str, int | str]]:
    """Signal everything in a machine but its init, SSH server and announcer, and our callers.

    `match` narrows it to command lines that the regular expression finds.
    """
    name = "SIG" + signal_name.upper().removeprefix("SIG")
    number = getattr(signal.Signals, name, None)
    if not isinstance(number, signal.Signals):
        raise LabError(f"no signal {signal_name!r}")
    spared = parents(os.getpid()) | {node.pid}
    killed: list[dict[str, int | str]] = []
    for pid in sorted(Cgroup(lab.name, node.name).pids()):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            command = get(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            if pid in spared or _is_service(pid, command):
                continue
            if match is None or re.search(match, command):
                send(pid, number)
                killed.append({"pid": pid, "command": command[:200]})
    return killed


def _is_service(pid: int, command: str) -> bool:
    if Path(os.readlink(f"/proc/{pid}/exe")).name in _SERVICES:
        return True
    if get(f"/proc/{pid}/comm").strip() == ANNOUNCER:
        return True
    return str(ENTRY) in command and " exec " in command
