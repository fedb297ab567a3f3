"""Package tools of this machine: pip where this Python has it, with the user's own settings."""

from __future__ import annotations

import importlib.util
import os
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


def uv_binary() -> Path:
    """The uv that came with homesplit, else one on PATH. Raises HomesplitError."""
    name = "uv.exe" if os.name == "nt" else "uv"
    for folder in (sysconfig.get_path("scripts"), Path(sys.executable).parent):
        if (own := Path(folder, name)).is_file():
            return own
    if found := shutil.which("uv"):
        return Path(found)
    raise HomesplitError("The program uv is missing.", do_next="Install it with: pip install uv")
