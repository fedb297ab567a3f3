"""System calls that Python lacks: namespaces, mounts, a process's name."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWPID = 0x20000000
NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_MNT_DETACH = 2
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: int | bytes | ctypes.c_ulong | None) -> None:
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{args}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _call("unshare", flags)


def enter(path: str | Path, flags: int) -> None:
    """Join the namespace that a file stands for."""
    fd = os.open(path, os.O_RDONLY)
    try:
        enter_open(fd, flags)
    finally:
        os.close(fd)


def enter_open(fd: int, flags: int) -> None:
    """Join the namespace that an open file stands for."""
    _call("setns", fd, flags)


def enter_process(pid: int, flags: int) -> None:
    """Join several namespaces of a running process at once."""
    fd = os.pidfd_open(pid)
    try:
        enter_open(fd, flags)
    finally:
        os.close(fd)


def mount(
    source: str, target: str | Path, kind: str, flags: int = 0, options: str | None = None
) -> None:
    """Mount a file system; raises OSError that names both ends."""
    data = options.encode() if options else None
    try:
        _call(
            "mount",
            source.encode(),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            data,
        )
    except OSError as error:
        number = error.errno or 0
        raise OSError(
            number, f"mount {source} on {target} ({kind}): {os.strerror(number)}"
        ) from error


def bind(source: str | Path, target: str | Path, *, read_only: bool = False) -> None:
    """Show a file or folder at a second place."""
    mount(str(source), target, "none", MS_BIND | MS_REC)
    if read_only:
        mount("none", target, "none", MS_BIND | MS_REMOUNT | MS_RDONLY)


def keep_mounts_private() -> None:
    """Let no mount made from here on reach the rest of the machine."""
    mount("none", "/", "none", MS_REC | MS_PRIVATE)


def pivot_root(new_root: str | Path) -> None:
    """Make `new_root` this process's root and let go of the old one."""
    os.chdir(new_root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Name this UTS namespace."""
    encoded = name.encode()
    _call("sethostname", encoded, len(encoded))


def set_process_name(name: str) -> None:
    """Set what /proc/PID/comm says (15 bytes at most)."""
    _call("prctl", _PR_SET_NAME, name.encode(), 0, 0, 0)


def wake_precisely() -> None:
    """Ask for a timer slack of one nanosecond."""
    _call("prctl", _PR_SET_TIMERSLACK, 1, 0, 0, 0)
