"""A lock between processes of this machine, held by an open file."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from homesplit.errors import HomesplitError

_POLL_S = 0.2


@asynccontextmanager
async def file_lock(path: Path, *, what: str, wait_s: float) -> AsyncGenerator[None, None]:
    """Hold `path` exclusively; raises HomesplitError when another holds it beyond `wait_s`.

    The system frees the lock when its holder ends, however it ends, so none goes stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await _take(handle, path, what, time.monotonic() + wait_s)
        yield
    finally:
        os.close(handle)


async def _take(handle: int, path: Path, what: str, deadline_s: float) -> None:
    while True:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline_s:
                raise HomesplitError(
                    f"Another homesplit on this machine is busy with {what}.",
                    where=str(path),
                    do_next="Wait until it is done, then repeat the command.",
                ) from None
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
