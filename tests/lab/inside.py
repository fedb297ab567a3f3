"""Runs a command inside a machine, on the desk, or in a machine's network only."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Never

from tests.lab.cgroups import Cgroup
from tests.lab.errors import LabError
from tests.lab.identity import account
from tests.lab.init import BOX_PATH
from tests.lab.kernel import (
    MS_NOSUID,
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUTS,
    bind,
    enter,
    enter_process,
    keep_mounts_private,
    mount,
    set_hostname,
    unshare,
)
from tests.lab.processes import netns_path
from tests.lab.records import DESK, Node
from tests.lab.store import CHECKOUT, ENTRY, Lab

_SET = "HOMELAB_SET_"
"""Environment variables with this prefix reach a machine without it."""

_NOT_ON_THE_DESK = (
    "SSH_AUTH_SOCK",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


def replace_process(
    lab: Lab, name: str, command: Sequence[str], *, root: bool = False, host_files: bool = False
) -> Never:
    """Become `command` on a machine; on the desk it sees this computer's files."""
    node = lab.node(name)
    if host_files or not node.full:
        environment = _enter_network(lab, node)
    else:
        environment = _enter_machine(lab, node, root=root)
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        print(f"lab: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _enter_network(lab: Lab, node: Node) -> dict[str, str]:
    """Take a machine's network, name, limits and hosts file; keep this computer's files."""
    group = Cgroup(lab.name, node.name)
    group.join()
    outside = _outside() if node.kind == DESK else {}
    enter(netns_path(node.netns), NEWNET)
    unshare(NEWNS | NEWUTS)
    set_hostname(node.name)
    keep_mounts_private()
    etc = lab.folder / DESK / "etc" if node.kind == DESK else Path("/etc/netns") / node.netns
    for name in ("hosts", "hostname", "resolv.conf"):
        shown = Path("/etc", name)
        if (etc / name).exists() and shown.exists():
            bind(etc / name, shown.resolve())
    _show_own_interfaces()
    environment = {**os.environ, "HOMELAB_NODE": node.name}
    if node.kind == DESK:
        environment["HOME"] = node.home
        environment["HOMESPLIT_FAULTS"] = _fault_command(lab, outside)
        for key in _NOT_ON_THE_DESK:
            environment.pop(key, None)
    return environment


def _fault_command(lab: Lab, outside: dict[str, int]) -> str:
    """How the desk breaks something of its lab: from outside of it, where the lab is made."""
    ways = [f"--{kind}=/proc/{os.getpid()}/fd/{number}" for kind, number in outside.items()]
    words = [sys.executable, "-m", "tests.lab", "--lab", lab.name, "fault"]
    return shlex.join(["nsenter", *ways, f"--wd={CHECKOUT}", "--", *words])


def _outside() -> dict[str, int]:
    """The namespaces that this process is about to leave, kept open for who comes after it."""
    found: dict[str, int] = {}
    for kind, name in (("mount", "mnt"), ("net", "net"), ("uts", "uts")):
        found[kind] = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
        os.set_inheritable(found[kind], True)
    return found


def _show_own_interfaces() -> None:
    """/sys shows the interfaces of the namespace it was mounted in.

    Control groups of version 1 are mounted below /sys and would go out of sight: leave it then.
    """
    if not os.path.isdir("/sys/fs/cgroup/freezer"):
        mount("sysfs", "/sys", "sysfs", MS_NOSUID)


def _enter_machine(lab: Lab, node: Node, *, root: bool) -> dict[str, str]:
    """Join a machine as its owner, or as its root; this process stays behind to wait."""
    if not lab.alive(node.name) or node.pid is None:
        raise LabError(f"{node.name} is off")
    Cgroup(lab.name, node.name).join()
    enter_process(node.pid, NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET)
    user = "root" if root else node.user
    who = account(user)
    child = os.fork()
    if child:
        _wait_and_exit_like(child)
    os.chdir(who.home)
    os.setgroups([])
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)
    environment = {
        "HOME": who.home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": who.shell,
        "PATH": BOX_PATH,
        "LANG": "C.UTF-8",
        "TERM": os.environ.get("TERM", "dumb"),
    }
    given = {
        key.removeprefix(_SET): value for key, value in os.environ.items() if key.startswith(_SET)
    }
    return {**environment, **given}


def _wait_and_exit_like(child: int) -> Never:
    def pass_on(number: int, _frame: object) -> None:
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def exec_command(lab: Lab, name: str, *options: str) -> list[str]:
    """The start of a command line that runs the rest on a machine, from anywhere."""
    return [sys.executable, "-I", "-S", str(ENTRY), "--lab", lab.name, "exec", *options, name, "--"]


def start_inside(
    lab: Lab,
    name: str,
    command: Sequence[str],
    *,
    root: bool = False,
    host_files: bool = False,
    stdout: int | IO[str] | None = subprocess.PIPE,
    stderr: int | IO[str] | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start a command on a machine and return at once."""
    options = ["--root"] * root + ["--host-fs"] * host_files
    return subprocess.Popen(
        [*exec_command(lab, name, *options), *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
    )


def run_inside(
    lab: Lab,
    name: str,
    command: Sequence[str],
    *,
    root: bool = False,
    host_files: bool = False,
    text: str | None = None,
    timeout_s: float = 180.0,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine to its end; 124 is the exit code of one that took too long.

    `environment` is added to this process's on the desk; machines take nothing from it.
    """
    options = ["--root"] * root + ["--host-fs"] * host_files
    arguments = [*exec_command(lab, name, *options), *command]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **environment} if environment else None,
    )
    try:
        out, err = process.communicate(text, timeout=timeout_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        code, err = 124, f"{err}\n(stopped after {timeout_s:g} s)"
    return subprocess.CompletedProcess(arguments, code, out, err)


def output(
    lab: Lab,
    name: str,
    command: Sequence[str],
    *,
    root: bool = False,
    text: str | None = None,
    timeout_s: float = 180.0,
) -> str:
    """What a command on a machine prints; raises LabError with its own words when it fails."""
    done = run_inside(lab, name, command, root=root, text=text, timeout_s=timeout_s)
    if done.returncode:
        words = (done.stderr or done.stdout)[-600:]
        raise LabError(f"{name}: {command[0]} ended with {done.returncode}: {words}")
    return done.stdout
