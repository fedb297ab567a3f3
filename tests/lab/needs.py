"""What this computer lacks for a lab, in sentences that say how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from tests.lab import cgroups
from tests.lab.processes import TOOL_PATH

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ssh": "openssh-client",
    "avahi-daemon": "avahi-daemon",
    "iptables-restore": "iptables",
    "iperf3": "iperf3",
    "ping": "iputils-ping",
    "tmux": "tmux",
}
"""Debian's package for each tool."""

TO_START = ("ip", "tc", "sshd", "ssh-keygen")

_TRY = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
new_mounts_names_ipc_pids_network = 0x6C020000
sys.exit(0 if libc.unshare(new_mounts_names_ipc_pids_network) == 0 else 1)
"""


def missing(tools: Iterable[str] = TO_START) -> list[str]:
    """Each thing that stands in a lab's way; none when it can start."""
    if sys.platform != "linux":
        return ["the lab needs Linux: it makes machines out of namespaces"]
    lacks: list[str] = []
    if os.geteuid() != 0:
        lacks.append("the lab needs root (sudo): it makes network namespaces and mounts")
    for tool in tools:
        if not shutil.which(tool, path=TOOL_PATH):
            lacks.append(f"{tool} is missing: apt-get install {PACKAGES.get(tool, tool)}")
    if not lacks and not cgroups.usable():
        lacks.append("control groups are missing or read-only at /sys/fs/cgroup")
    if not lacks and not _namespaces():
        lacks.append("this kernel or container allows no new namespaces (needs CAP_SYS_ADMIN)")
    return lacks


def _namespaces() -> bool:
    tried = subprocess.run([sys.executable, "-I", "-S", "-c", _TRY], check=False, timeout=30)
    return tried.returncode == 0
