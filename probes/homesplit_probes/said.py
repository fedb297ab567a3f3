"""What a tool of the machine prints, as long as it is there and answers."""

from __future__ import annotations

import subprocess
from typing import List

_WAIT_S = 5


def said(command: List[str]) -> str:
    """The tool's standard output; nothing when it is missing or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
