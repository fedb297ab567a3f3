"""Package tools of this machine: pip where this Python has it, with the user's own settings."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from homesplit.errors import HomesplitError


def pip_command() -> tuple[str, ...]:
    """How to call pip here; by uv when this Python has none. Raises HomesplitError."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    return (str(uv_binary()), "tool", "run", "--quiet", "pip")


def pip_progress() -> tuple[str, ...]:
    """The option that makes pip tell its progress in lines, which it can from 24.1 on."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        # uv fetches a current one.
        return ("--progress-bar", "raw")
    return ("--progress-bar", "raw" if pip_tells_progress(version) else "off")


def pip_tells_progress(version: str) -> bool:
    """Whether a pip of this version knows `--progress-bar raw`."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return tuple(numbers) >= (24, 1)


def uv_binary() -> Path:
    """The uv that came with homesplit, else one on PATH. Raises HomesplitError."""
    name = "uv.exe" if os.name == "nt" else "uv"
    for folder in (sysconfig.get_path("scripts"), Path(sys.executable).parent):
        if (own := Path(folder, name)).is_file():
            return own
    if found := shutil.which("uv"):
        return Path(found)
    raise HomesplitError("The program uv is missing.", do_next="Install it with: pip install uv")
