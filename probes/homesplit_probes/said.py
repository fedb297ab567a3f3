"""What a tool of the machine prints, as long as it is there and answers."""

from __future__ import annotations

import contextlib
import subprocess
from typing import List

_WAIT_S, _END_S = 5, 1


def said(command: List[str]) -> str:
    """The tool's standard output; nothing when it is missing or takes too long."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return ""
    try:
        return process.communicate(timeout=_WAIT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
    # One that waits for a broken device ends by no signal.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_END_S)
    return ""
