"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from homesplit.errors import HomesplitError


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `data`; a crash leaves the old file; folders are made with 0700.

    Raises HomesplitError when it can't be written; the old file stays then.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(path)
        part = path.with_name(f"{_start(path)}{os.getpid()}.{secrets.token_hex(6)}")
        try:
            _write(part, data, mode)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise HomesplitError(
            f"the file can't be written: {error.strerror}.",
            where=str(path),
            do_next="Free some space, or see who may write there; what it held is still there.",
        ) from error


def _write(part: Path, data: bytes, mode: int) -> None:
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _start(path: Path) -> str:
    """How the name of every piece begins that may become this file; a process id follows."""
    return f".{path.name}.part."


def _sweep(path: Path) -> None:
    """Take away the pieces of writers that were killed."""
    for part in path.parent.glob(f"{_start(path)}*"):
        owner = part.name.removeprefix(_start(path)).partition(".")[0]
        if owner.isdecimal() and not _lives(int(owner)):
            with contextlib.suppress(OSError):
                part.unlink()


def _lives(pid: int) -> bool:
    # Only now: nearly never needed, and slow to import. (os.kill(pid, 0) ends it on Windows.)
    import psutil

    try:
        return psutil.pid_exists(pid)
    except OverflowError:
        return True
