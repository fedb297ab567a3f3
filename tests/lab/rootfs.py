"""A machine's file system: a copy-on-write view of this computer with its own system folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.kernel import MS_NODEV, MS_NOSUID, bind, keep_mounts_private, mount, pivot_root
from tests.lab.records import Node, Settings
from tests.lab.store import CHECKOUT

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "net/tun", "fuse")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_SHARED_BY_MANY = frozenset({"/", "/bin", "/etc", "/home", "/lib", "/mnt", "/media", "/opt"}) | {
    "/sbin",
    "/srv",
    "/usr",
    "/usr/local",
    "/usr/src",
    "/var",
    "/var/lib",
}
_REPLACED = ("/root", "/tmp", "/run", "/dev", "/proc", "/sys")
"""Folders of which each machine has its own, so that nothing of this computer shows there."""


def hidden_folders(extra: list[str]) -> list[str]:
    """Folders that machines do not see: the checkout and what lies beside it, this
    computer's added software, the home of whoever called sudo, and those asked for.
    """
    beside = CHECKOUT.parent
    chosen = [str(CHECKOUT if str(beside) in _SHARED_BY_MANY else beside), "/opt"]
    caller = os.environ.get("SUDO_USER")
    if caller:
        home = os.path.expanduser(f"~{caller}")
        chosen += [home] if os.path.isabs(home) else []
    chosen += extra
    return [path for path in dict.fromkeys(chosen) if not _replaced(path)]


def _replaced(path: str) -> bool:
    return any(path == own or path.startswith(f"{own}/") for own in _REPLACED)


def build_root(node: Node, settings: Settings, folder: Path) -> None:
    """Make the view under `folder` and move into it; runs in new mount and PID namespaces."""
    for name in ("root", "upper", "work", "roothome"):
        (folder / name).mkdir(mode=0o755, exist_ok=True)
    (folder / "roothome").chmod(0o700)
    _empty_tmp(folder / "tmp")
    root = folder / "root"
    keep_mounts_private()
    try:
        layers = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
        mount("overlay", root, "overlay", 0, layers)
    except OSError as error:
        raise LabError(
            f"{error}. HOMELAB_STATE must name a folder on ext4, xfs or tmpfs, not on an overlay."
        ) from error
    mount("proc", root / "proc", "proc")
    mount("sysfs", root / "sys", "sysfs")
    _make_dev(root / "dev", node.memory_gib)
    mount("run", root / "run", "tmpfs", MS_NOSUID, "mode=755")
    bind(folder / "tmp", root / "tmp")
    bind(folder / "roothome", root / "root")
    _hide_and_share(root, settings)
    pivot_root(root)
    os.umask(0o022)
    for name in ("sshd", "lock", "avahi-daemon", "user"):
        Path("/run", name).mkdir(mode=0o755, parents=True, exist_ok=True)


def _empty_tmp(folder: Path) -> None:
    """A reboot empties /tmp."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o1777)


def _make_dev(dev: Path, memory_gib: float | None) -> None:
    mount("dev", dev, "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            (dev / name).parent.mkdir(exist_ok=True)
            (dev / name).touch(0o666)
            bind(f"/dev/{name}", dev / name)
    for name, target in _DEVICE_LINKS.items():
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    terminals = "newinstance,ptmxmode=0666,mode=620,gid=5"
    mount("devpts", dev / "pts", "devpts", MS_NOSUID, terminals)
    size = f",size={int(memory_gib * 2**29)}" if memory_gib else ""
    mount("shm", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{size}")


def _hide_and_share(root: Path, settings: Settings) -> None:
    for hidden in settings.hide:
        inside = Path(f"{root}{hidden}")
        if inside.is_dir():
            mount("none", inside, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for entry in settings.share:
        path, _, option = entry.partition(":")
        inside = Path(f"{root}{path}")
        inside.mkdir(parents=True, exist_ok=True)
        bind(path, inside, read_only=option == "ro")
