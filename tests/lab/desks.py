"""Commands of a desk that are broken off, and what tests of deployment look at in a box."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from typing import Any

from tests.lab.errors import LabError
from tests.lab.inside import exec_command
from tests.lab.records import DESK
from tests.lab.road import COMMAND, Road
from tests.lab.store import CHECKOUT

_SAID_S = 1200.0

LISTENING = """
import os, re, socket
from ipaddress import ip_address
for path in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(path).read().splitlines()[1:]:
        words = line.split()
        if words[3] != "0A" or int(words[7]) != os.getuid():
            continue
        host, port = words[1].split(":")
        raw = b"".join(bytes.fromhex(host[n:n + 8])[::-1] for n in range(0, len(host), 8))
        print(ip_address(raw), int(port, 16))
"""
"""Prints address and port of every socket on which the box's owner listens."""

ASK = """
import json, os, sys, urllib.error, urllib.request
run = os.path.expanduser("~/.local/share/homesplit/box/run/")
port = json.load(open(run + "router.json"))["http_port"]
key = open(run + "api.key").read().strip() if sys.argv[2] == "key" else "none"
request = urllib.request.Request(f"http://127.0.0.1:{port}{sys.argv[1]}")
request.add_header("Authorization", "Bearer " + key)
try:
    with urllib.request.urlopen(request, timeout=60) as reply:
        print(reply.read().decode())
except urllib.error.HTTPError as error:
    print(json.dumps({"refused": error.code}))
"""
"""Asks the router from within its box, with its key or with a wrong one."""


ASK_FROM_OUTSIDE = """
import json, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1])
request.add_header("Authorization", "Bearer " + sys.stdin.readline().strip())
try:
    with urllib.request.urlopen(request, timeout=60) as reply:
        print(json.dumps(reply.status))
except urllib.error.HTTPError as error:
    print(json.dumps(error.code))
except urllib.error.URLError as error:
    print(json.dumps(str(error.reason)))
"""
"""Asks an URL with the key on standard input; tells the status, or why there is no answer."""


HEARS_INT = ("env", "--default-signal=INT")
"""Whoever runs the tests in the background has it ignored, and so would the command."""


class Broken:
    """A command that is watched until it says something, then broken off or left to end."""

    def __init__(self, road: Road, *words: str) -> None:
        environment = {
            "HOMESPLIT_HOME": str(road.home),
            "HOMESPLIT_SSH_CONFIG": str(road.lab.ssh_config),
        }
        # On the desk the command takes the place of what starts it, so that its pid is known.
        self._process = subprocess.Popen(
            [*exec_command(road.lab.lab, DESK), *HEARS_INT, *COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, **environment},
        )
        self._said: list[str] = []

    def until(self, *patterns: str) -> None:
        """Return as soon as each pattern was found in a line on standard error."""
        deadline = time.monotonic() + _SAID_S
        missing = set(patterns)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            missing -= {pattern for pattern in missing if re.search(pattern, line)}
            if not missing:
                return
            if time.monotonic() > deadline:
                break
        raise LabError(f"never said: {missing}\n{''.join(self._said[-20:])}")

    def kill(self) -> None:
        """End it with no chance to tidy up."""
        self._process.kill()
        self._process.communicate(timeout=60)

    def interrupt(self) -> int:
        """Break it off as Ctrl-C does; its exit code."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=120)
        return self._process.returncode

    def end(self, *, timeout_s: float) -> tuple[int, str]:
        """Its exit code and all that it said."""
        _, rest = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, "".join(self._said) + rest


def python_in(road: Road, box: str, program: str, *words: str) -> str:
    """What a Python program prints that runs in a box as its owner."""
    done = road.lab.box(box, ["/usr/bin/python3", "-c", program, *words])
    if done.returncode:
        raise LabError(f"{box}: {done.stderr[-800:]}")
    return done.stdout


def asked_from(road: Road, box: str, url: str, key: str) -> int | str:
    """What a URL answers to a box that has this key: its status, or why there is none."""
    command = ["/usr/bin/python3", "-c", ASK_FROM_OUTSIDE, url]
    return json.loads(road.lab.box(box, command, text=f"{key}\n").stdout)


def listening(road: Road, box: str) -> set[tuple[str, int]]:
    """Where the box's owner listens."""
    lines = python_in(road, box, LISTENING).splitlines()
    return {(host, int(port)) for host, port in map(str.split, lines)}


def ask_router(road: Road, box: str, path: str, *, key: bool = True) -> dict[str, Any]:
    """The router's answer; `{"refused": status}` when it gives none."""
    return json.loads(python_in(road, box, ASK, path, "key" if key else "none"))


def settle(condition: Any, *, within_s: float) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
