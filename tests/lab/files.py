"""Small file helpers: write with owner and mode, read, wait for a folder to go."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path


def put(path: str | Path, text: str | bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
    """Write a whole file with a mode and an owner; a symbolic link is replaced, not followed."""
    target = Path(path)
    if target.is_symlink():
        target.unlink()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    target.chmod(mode)
    os.chown(target, uid, gid)


def get(path: str | Path) -> str:
    """A file's text; /proc and /sys files included."""
    return Path(path).read_text(errors="replace")


def tail(path: str | Path, characters: int = 1500) -> str:
    """The end of a log, empty when there is none."""
    try:
        return get(path)[-characters:]
    except OSError:
        return ""


def remove_tree(path: Path, patience_s: float = 30.0) -> bool:
    """Remove a folder, trying again while a last mount lets go of it; says whether it is gone."""
    end = time.monotonic() + patience_s
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)
        if time.monotonic() > end:
            break
        if path.exists():
            time.sleep(0.1)
    return not path.exists()
