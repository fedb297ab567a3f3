"""A machine's first process: builds its view, starts its services, reaps, and powers off."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Never

from tests.lab import announcements, mdns
from tests.lab.cgroups import Cgroup
from tests.lab.files import get, tail
from tests.lab.identity import HostKeys, settle
from tests.lab.kernel import (
    NEWIPC,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUTS,
    enter,
    set_hostname,
    set_process_name,
    unshare,
)
from tests.lab.meminfo import MemoryView
from tests.lab.processes import netns_path
from tests.lab.records import Node
from tests.lab.rootfs import build_root
from tests.lab.sshd import private_host_key, public_host_key
from tests.lab.store import Lab
from tests.lab.wiring import etc_files

BOX_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

ANNOUNCER = "lab-announcer"
"""Process name of the built-in mDNS responder."""

_PRINTER_PORTS = (80, 515, 631, 9100)
_SSHD_LOG = Path("/var/log/sshd.log")
_AVAHI_LOG = Path("/var/log/avahi.log")
_READY_WITHIN_S = 60.0


def main(lab: Lab, name: str) -> None:
    """Turn this process's child into machine `name`; prints `PID n`, then `READY` or `FAILED`."""
    node = lab.node(name)
    group = Cgroup(lab.name, name)
    group.join()
    enter(netns_path(node.netns), NEWNET)
    told, tell = os.pipe()
    view = MemoryView(node.memory_gib, group.memory_files()) if node.memory_gib else None
    if node.full:
        unshare(NEWNS | NEWUTS | NEWIPC | NEWPID)
    pid = os.fork()
    if pid:
        os.close(tell)
        print("PID", pid, flush=True)
        print("READY" if os.read(told, 2) == b"ok" else "FAILED", flush=True)
        return
    os.close(told)
    _run(lab, node, tell, view)


def _run(lab: Lab, node: Node, tell: int, view: MemoryView | None) -> Never:
    """The child: never returns, and tells its log what went wrong."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        if node.full:
            _become_machine(lab, node)
            _serve(node, lab.state.settings.mdns == "avahi", tell, view)
        _become_printer(node, tell)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _become_machine(lab: Lab, node: Node) -> None:
    keys = HostKeys(
        private_host_key(lab, node),
        public_host_key(lab, node) + "\n",
        get(lab.keys / "id_ed25519.pub"),
    )
    etc = etc_files(lab, node.name)
    set_hostname(node.name)
    build_root(node, lab.state.settings, lab.node_folder(node.name))
    settle(node, etc, keys, pam=lab.state.settings.pam)


def _become_printer(node: Node, tell: int) -> None:
    listeners = [socket.create_server((node.address, port)) for port in _PRINTER_PORTS]
    _say_ready(tell)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    records = announcements.of_printer(node.name, node.address)
    mdns.serve(node.address, records, listeners=listeners)


def _serve(node: Node, avahi: bool, tell: int, view: MemoryView | None) -> Never:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    if view:
        view.show()
    avahi_log = _start_services(node, avahi)
    if _wait_until_up(avahi_log):
        _say_ready(tell)
    else:
        for log in (_SSHD_LOG, _AVAHI_LOG):
            print(log, tail(log, 800), file=sys.stderr, flush=True)
        os.close(tell)
    while True:
        got = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, 1.0)
        _reap()
        if view:
            view.refresh()
        if got and got.si_signo == signal.SIGTERM:
            _power_off()


def _say_ready(tell: int) -> None:
    os.write(tell, b"ok")
    os.close(tell)


def _start_services(node: Node, avahi: bool) -> Path | None:
    """Start SSH and the announcer; returns avahi's log when avahi is the announcer."""
    sshd = shutil.which("sshd", path=BOX_PATH)
    if sshd is None:
        raise FileNotFoundError("sshd")
    _SSHD_LOG.parent.mkdir(parents=True, exist_ok=True)
    _start([sshd, "-D", "-e"], _SSHD_LOG)
    if node.kind == "mdns":
        odd = announcements.of_odd_machine(node.name, node.address)
        broken = announcements.broken_packets(node.name)
        _fork_announcer(lambda: mdns.serve(node.address, odd, broken))
        return None
    daemon = shutil.which("avahi-daemon", path=BOX_PATH) if avahi else None
    if daemon is None:
        plain = announcements.of_machine(node.name, node.address, node.mac)
        _fork_announcer(lambda: mdns.serve(node.address, plain))
        return None
    _AVAHI_LOG.unlink(missing_ok=True)
    _start([daemon, "--no-rlimits"], _AVAHI_LOG)
    return _AVAHI_LOG


def _start(command: Sequence[str], log: Path) -> None:
    with log.open("ab") as file:
        subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={"PATH": BOX_PATH, "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
            preexec_fn=_unblock_signals,
        )


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set[int]())


def _fork_announcer(serve: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            _unblock_signals()
            set_process_name(ANNOUNCER)
            serve()
        finally:
            os._exit(1)


def _wait_until_up(avahi_log: Path | None) -> bool:
    """Whether SSH greets, and avahi has its name, in time."""
    end = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < end:
        named = avahi_log is None or "successfully established" in tail(avahi_log, 20_000)
        if named and _ssh_greets():
            return True
        time.sleep(0.02)
    return False


def _ssh_greets() -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(("127.0.0.1", 22))
            return sock.recv(4) == b"SSH-"
        except OSError:
            return False


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _power_off() -> Never:
    """Ask every process of this machine to end, wait a little, and go."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    end = time.monotonic() + 0.8
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)
    os._exit(0)
