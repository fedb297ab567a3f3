"""A lock between processes of this machine, held by an open file that says who holds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from homesplit.errors import HomesplitError

_POLL_S = 0.2
_MOST_BYTES = 4096


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a lock: its process, what it does there, and since when (Unix time)."""

    pid: int
    doing: str
    since_s: float


@asynccontextmanager
async def file_lock(path: Path, *, doing: str, wait_s: float) -> AsyncGenerator[None, None]:
    """Hold `path` exclusively, telling others that we are `doing` something.

    Raises HomesplitError with the holder when another has it beyond `wait_s`. The system frees
    the lock when its holder ends, however it ends, so none goes stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _take(handle, time.monotonic() + wait_s)
        _note(handle, Holder(pid=os.getpid(), doing=doing, since_s=time.time()))
        try:
            yield
        finally:
            _note(handle, None)
    finally:
        os.close(handle)


def at_work(path: Path) -> str | None:
    """A sentence on who holds `path` now, None when nobody does; whoever was killed does not."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:  # nobody has ever held it
        return None
    try:
        _lock(handle)
    except (BlockingIOError, PermissionError):
        return _at_work(_holder(handle))
    finally:
        os.close(handle)
    return None


async def _take(handle: int, deadline_s: float) -> None:
    while True:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline_s:
                raise _held(_holder(handle)) from None
            await asyncio.sleep(_POLL_S)
        else:
            return


def _lock(handle: int) -> None:
    """Take the lock, or raise at once where another has it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _note(handle: int, holder: Holder | None) -> None:
    """Say in the file who holds it; a disk without room for that is no reason to stop."""
    with contextlib.suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, 0)
        if holder is not None:
            os.write(handle, msgspec.json.encode(holder))


def _holder(handle: int) -> Holder | None:
    """Who says to hold it; None where nobody does, or where a locked file can't be read."""
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        return msgspec.json.decode(os.read(handle, _MOST_BYTES), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None


def _held(holder: Holder | None) -> HomesplitError:
    do_next = "Wait until it is done, or end it there, then try again."
    return HomesplitError(_at_work(holder), do_next=do_next)


def _at_work(holder: Holder | None) -> str:
    if holder is None:
        who, doing = "Another homesplit on this machine", "at work there"
    else:
        since = time.strftime("%H:%M:%S", time.localtime(holder.since_s))
        who = f"Another homesplit on this machine (process {holder.pid}, since {since})"
        doing = holder.doing
    return f"{who} is {doing}."
