"""Makes links slow, late and lossy with what a plain kernel has: tbf, iptables, NFQUEUE."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

from tests.lab.cgroups import Cgroup
from tests.lab.errors import LabError
from tests.lab.files import put, tail
from tests.lab.processes import TOOL_PATH, run_tool, start_time
from tests.lab.rates import FRAME_BYTES, MTU_BYTES, burst_bytes, super_packet_bytes
from tests.lab.records import DelayProcess, Node
from tests.lab.store import ENTRY, Lab

DELAY_GROUP = "delay"


def shape(lab: Lab, only: str | None = None) -> None:
    """Apply rates (of one machine, or all), then everyone's loss and delay."""
    for node in lab.nodes.values():
        if only in (None, node.name):
            _limit_rate(lab, node)
    lossy = any(_lossy(node) for node in lab.nodes.values())
    for node in lab.nodes.values():
        rate = node.rate_bits_per_s
        size = str(super_packet_bytes(rate) if rate else 65536)
        # Loss drops super-packets, so small ones keep it near a loss of frames. One frame each
        # would be exact, but then tbf was seen to carry no more than 0.25 Gbit/s.
        segments = "4" if lossy else "65535"
        device = ["ip", "-n", node.netns, "link", "set", "eth0"]
        run_tool([*device, "gso_max_size", size, "gso_max_segs", segments])
    _filter(lab)


def path_loss(lab: Lab, sender: str, receiver: str) -> float:
    """Share of packets lost one way between two machines."""
    kept = 1.0
    for node in (lab.node(sender), lab.node(receiver)):
        kept *= 1 - node.link.loss_percent / 200
        kept *= 1 - node.fault.loss_percent / 100
    return round(1 - kept, 8)


def path_delay_s(lab: Lab, sender: str, receiver: str) -> tuple[float, float]:
    """One way between two machines, in seconds: (always, and at most this much on top)."""
    ends = (lab.node(sender), lab.node(receiver))
    fixed_ms = sum(node.link.latency_ms / 4 + node.fault.latency_ms / 2 for node in ends)
    extra_ms = sum(node.link.jitter_ms / 2 for node in ends)
    return fixed_ms / 1000, extra_ms / 1000


def _lossy(node: Node) -> bool:
    return node.link.loss_percent > 0 or node.fault.loss_percent > 0


def _limit_rate(lab: Lab, node: Node) -> None:
    """Put a token bucket at both ends of one cable."""
    rate = node.rate_bits_per_s
    # The machine's end paces what it sends. The switch's is a little wider, so that it only
    # bites when two others send to this machine at once.
    fast = bool(rate and rate > 8e9)
    ends = (
        (node.netns, "eth0", 1.0, 1),
        (lab.state.switch, node.port_device, 1.1 if fast else 1.01, 2 if fast else 1),
    )
    for namespace, device, wider, bursts in ends:
        if rate is None:
            drop = ["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"]
            run_tool(drop, check=False)
            continue
        burst = burst_bytes(rate) * bursts
        # tc counts neither preamble nor gap nor checksum: their share comes off the rate.
        counted = int(rate * wider * (MTU_BYTES + 14) / FRAME_BYTES)
        limit = max(1 << 20, 4 * burst)
        bucket = f"tbf rate {counted}bit burst {burst} limit {limit}".split()
        run_tool(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket])


def _filter(lab: Lab) -> None:
    """Drop and hold back packets where they arrive, by the sender's address on the wire."""
    queues: list[dict[str, str | int | float]] = []
    for receiver in lab.nodes.values():
        rules: list[str] = []
        for number, sender in enumerate(lab.nodes.values()):
            if sender is receiver:
                continue
            match = f"-A INPUT -i eth0 -m mac --mac-source {sender.mac}"
            loss = path_loss(lab, sender.name, receiver.name)
            delay_s, jitter_s = path_delay_s(lab, sender.name, receiver.name)
            if loss:
                rules.append(f"{match} -m statistic --mode random --probability {loss:.8f} -j DROP")
            if delay_s or jitter_s:
                rules.append(f"{match} -j NFQUEUE --queue-num {number} --queue-bypass")
                queues.append(
                    {"namespace": receiver.netns, "number": number}
                    | {"delay_s": delay_s, "jitter_s": jitter_s}
                )
        _load_rules(receiver, rules)
    put(lab.folder / "delays.json", json.dumps(queues))
    _tell_delay_process(lab, needed=bool(queues))
    lab.save()


def _load_rules(node: Node, rules: list[str]) -> None:
    if not rules and not node.filtered:
        return
    if not shutil.which("iptables-restore", path=TOOL_PATH):
        raise LabError("latency, jitter and loss need iptables: apt-get install iptables")
    table = "\n".join(["*mangle", ":INPUT ACCEPT [0:0]", *rules, "COMMIT", ""])
    for tool in ("iptables-restore", "ip6tables-restore"):
        run_tool([tool], namespace=node.netns, text=table)
    node.filtered = bool(rules)


def _tell_delay_process(lab: Lab, *, needed: bool) -> None:
    """Have a running delay process read its list again, or start the first one."""
    running = lab.state.delay
    if running and start_time(running.pid) == running.started:
        os.kill(running.pid, signal.SIGHUP)
    elif needed:
        lab.state.delay = _start_delay_process(lab)


def _start_delay_process(lab: Lab) -> DelayProcess:
    group = Cgroup(lab.name, DELAY_GROUP)
    group.create()
    log = lab.folder / "delay.log"
    command = [sys.executable, "-I", "-S", str(ENTRY), "--lab", lab.name, "_delay"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    group.join(process.pid)
    assert process.stdout is not None
    with process.stdout as told:
        if not told.readline():
            raise LabError(f"the process that delays packets died: {tail(log, 500)}")
    _let_come_first(process.pid)
    return DelayProcess(pid=process.pid, started=start_time(process.pid))


def _let_come_first(pid: int) -> None:
    """Run it before everything else: a packet held longer than asked is a delay nobody set."""
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        # Where real time is not allowed, as in some containers.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, -10)
