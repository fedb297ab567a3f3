"""Measures a lab from inside: rate, round trip, ZeroMQ, arithmetic, memory, who is seen."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any, cast

from tests.lab.errors import LabError
from tests.lab.inside import output, run_inside, start_inside
from tests.lab.processes import run_tool
from tests.lab.records import DESK
from tests.lab.store import Lab

SCRIPTS = Path(__file__).with_name("scripts")

_IPERF_PORT = 5299
_ZMQ_PORT = 5598
_LISTENS_WITHIN_S = 30.0
_PINGS = 20


def iperf_bits_per_s(
    lab: Lab, sender: str, receiver: str, *, seconds: int = 4, streams: int = 1
) -> float:
    """What iperf3 says arrives between two machines, in bits per second of TCP payload.

    The first second is left out, while TCP finds its speed.
    """
    server_command = ["iperf3", "-s", "-1", "-p", str(_IPERF_PORT)]
    server = start_inside(lab, receiver, server_command)
    try:
        _wait_for_listener(lab, receiver, _IPERF_PORT)
        client = ["iperf3", "-J", "-O", "1", "-c", lab.node(receiver).address]
        client += ["-p", str(_IPERF_PORT), "-t", str(seconds), "-P", str(streams)]
        told = json.loads(output(lab, sender, client, timeout_s=seconds + 25))
    finally:
        _end(server)
    if "error" in told:
        raise LabError(f"iperf3 {sender} to {receiver}: {told['error']}")
    return float(told["end"]["sum_received"]["bits_per_second"])


def zmq_bits_per_s(lab: Lab, sender: str, receiver: str, python: str) -> float:
    """What two ZeroMQ sockets carry between two machines, in bits per second."""
    address = f"tcp://{lab.node(receiver).address}:{_ZMQ_PORT}"
    script = str(SCRIPTS / "zmq_rate.py")
    puller = start_inside(lab, receiver, [python, script, "pull", address], host_files=True)
    pusher: subprocess.Popen[str] | None = None
    try:
        if not (puller.stdout and puller.stdout.readline()):
            raise LabError(f"pyzmq: {puller.communicate(timeout=10)[1][-300:]}")
        pusher = start_inside(
            lab,
            sender,
            [python, script, "push", address],
            host_files=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return float(puller.communicate(timeout=120)[0])
    finally:
        for process in (puller, pusher):
            if process:
                _end(process)


def round_trip_ms(lab: Lab, sender: str, receiver: str) -> float:
    """The mean round trip of small packets.

    -U, because the kernel else stamps a reply before it waits in the delay queue.
    """
    command = ["ping", "-U", "-q", "-i", "0.05", "-c", str(_PINGS), lab.node(receiver).address]
    as_root = lab.node(sender).full
    done = run_inside(lab, sender, command, root=as_root)
    match = re.search(r"= [\d.]+/([\d.]+)/", done.stdout)
    if match is None:
        raise LabError(f"ping {sender} to {receiver}: {(done.stderr or done.stdout)[-300:]}")
    return float(match[1])


def cpu_counts(lab: Lab, name: str) -> int:
    """How far a machine's processor counts in a second."""
    script = (SCRIPTS / "cpu_speed.py").read_text()
    return int(output(lab, name, ["/usr/bin/python3", "-c", script]))


def memory_gib(lab: Lab, name: str) -> float:
    """How much memory a machine believes to have."""
    match = re.search(r"MemTotal:\s+(\d+)", output(lab, name, ["cat", "/proc/meminfo"]))
    if match is None:
        raise LabError(f"{name}: /proc/meminfo has no MemTotal")
    return int(match[1]) / 2**20


def seen_by_mdns(lab: Lab, python: str, names: list[str], seconds: float = 6.0) -> dict[str, Any]:
    """What zeroconf on the desk finds: {found_s, services: [{type, name, addresses, port}]}."""
    command = [python, str(SCRIPTS / "see_mdns.py"), str(seconds), *names]
    return cast("dict[str, Any]", json.loads(output(lab, DESK, command, timeout_s=60)))


def _wait_for_listener(lab: Lab, name: str, port: int) -> None:
    end = time.monotonic() + _LISTENS_WITHIN_S
    while time.monotonic() < end:
        if f":{port} " in run_tool(["ss", "-Hltn"], namespace=lab.node(name).netns).stdout:
            return
        time.sleep(0.05)
    raise LabError(f"{name}: nothing listens at port {port}; is iperf3 installed?")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=10)
