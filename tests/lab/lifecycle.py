"""Brings a lab up and takes it down again, leaving nothing."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from tests.lab import cgroups
from tests.lab.cgroups import Cgroup
from tests.lab.errors import LabError
from tests.lab.files import get, put, remove_tree
from tests.lab.needs import missing
from tests.lab.plan import UpOptions, plan
from tests.lab.power import boot, thaw
from tests.lab.processes import netns_path, run_tool, send
from tests.lab.records import DESK
from tests.lab.shaping import shape
from tests.lab.sshd import make_keys, write_ssh_config
from tests.lab.store import Lab
from tests.lab.wiring import etc_files, wire_up

_POWER_OFF_WITHIN_S = 1.5
_GRACE_S = 0.3


def up(lab: Lab, options: UpOptions) -> None:
    """Make and start a lab; what a failed start made is removed again."""
    begin = time.monotonic()
    lacks = missing()
    if lacks:
        raise LabError("; ".join(lacks))
    _make_room(lab, options)
    lab.state = plan(lab.name, options)
    for namespace in lab.state.namespaces:
        if netns_path(namespace).exists():
            raise LabError(f"a network namespace {namespace!r} exists that is not this lab's")
    lab.folder.mkdir(mode=0o755, parents=True)
    # Before anything is made, so that `down` can undo a crash.
    lab.save()
    lab.note_names()
    try:
        _make(lab)
    except BaseException:
        if not options.keep_failed:
            down(lab)
        raise
    lab.state.up_s = round(time.monotonic() - begin, 2)
    lab.save()


def _make_room(lab: Lab, options: UpOptions) -> None:
    """Remove what a crashed lab left; refuse to touch one that runs, unless it is to go."""
    if not lab.traces and not cgroups.leftovers(lab.name):
        return
    lab.load_leftovers()
    if any(lab.alive(name) for name in lab.nodes) and not options.replace:
        raise LabError(f"lab '{lab.name}' is up already: use --replace, or `down` first")
    down(lab)


def _make(lab: Lab) -> None:
    make_keys(lab)
    wire_up(lab)
    for node in lab.nodes.values():
        Cgroup(lab.name, node.name).create(node)
    shape(lab)
    _furnish_desk(lab)
    boot(lab, [node.name for node in lab.nodes.values() if node.kind != DESK])


def _furnish_desk(lab: Lab) -> None:
    """The desk's home with the owner's key, and its files for /etc."""
    desk = lab.node(DESK)
    folder = lab.node_folder(DESK)
    home = folder / "home"
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, parents=True)
    (folder / "etc").mkdir(mode=0o755)
    for name, text in etc_files(lab, DESK).items():
        put(folder / "etc" / name, text)
    put(ssh / "id_ed25519", get(lab.keys / "id_ed25519"), 0o600)
    put(ssh / "id_ed25519.pub", get(lab.keys / "id_ed25519.pub"))
    write_ssh_config(lab, ssh / "id_ed25519")
    if not lab.state.settings.first_contact:
        put(ssh / "known_hosts", get(lab.keys / "known_hosts"))
    desk.home = str(home)


def down(lab: Lab) -> None:
    """Remove every process, namespace, control group, mount and file of a lab."""
    lab.load_leftovers()
    groups = _groups(lab)
    for group in groups:
        # A group may be gone, or half made, after a crash.
        with contextlib.suppress(LabError, OSError):
            thaw(group)
    _ask_machines_to_end(lab)
    for group in groups:
        group.end_all(_GRACE_S)
    for namespace in lab.state.namespaces:
        _remove_namespace(namespace)
    cgroups.remove_all(lab.name)
    for name in lab.state.etc_folders:
        remove_tree(Path("/etc/netns", name))
    with contextlib.suppress(OSError):
        # Another lab may still have its files there.
        Path("/etc/netns").rmdir()
    gone = remove_tree(lab.folder)
    lab.forget()
    if not gone:
        raise LabError(f"could not remove {lab.folder}: something still uses it")


def _groups(lab: Lab) -> list[Cgroup]:
    names = set(lab.nodes) | cgroups.leftovers(lab.name)
    return [Cgroup(lab.name, name) for name in sorted(names)]


def _ask_machines_to_end(lab: Lab) -> None:
    for name, node in lab.nodes.items():
        if lab.alive(name) and node.pid:
            send(node.pid, signal.SIGTERM)
    end = time.monotonic() + _POWER_OFF_WITHIN_S
    while any(lab.alive(name) for name in lab.nodes) and time.monotonic() < end:
        time.sleep(0.02)


def _remove_namespace(name: str) -> None:
    """Remove a network namespace and whatever else was started inside: it is the lab's own."""
    if not netns_path(name).exists():
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = run_tool(["ip", "netns", "pids", name], check=False).stdout.split()
        if not pids:
            break
        for pid in pids:
            send(int(pid), number)
        time.sleep(_GRACE_S)
    run_tool(["ip", "netns", "del", name], check=False)
