"""Running tools and telling one process from a later one with the same number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.files import get
from tests.lab.kernel import NEWNET, enter

TOOL_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def netns_path(namespace: str) -> Path:
    """The file that stands for a named network namespace."""
    return Path("/run/netns") / namespace


def run_tool(
    command: Sequence[str],
    *,
    namespace: str | None = None,
    text: str | None = None,
    check: bool = True,
    timeout_s: float = 180.0,
) -> subprocess.CompletedProcess[str]:
    """Run a tool of this machine, in a network namespace when one is named.

    `text` is given on standard input. Raises LabError with the tool's own words when it fails.
    """

    def join() -> None:
        if namespace:
            enter(netns_path(namespace), NEWNET)

    done = subprocess.run(
        list(command),
        input=text,
        text=True,
        capture_output=True,
        preexec_fn=join if namespace else None,
        timeout=timeout_s,
        env={**os.environ, "PATH": TOOL_PATH},
    )
    if check and done.returncode:
        place = f" in {namespace}" if namespace else ""
        words = (done.stderr or done.stdout).strip()[-800:]
        raise LabError(f"{' '.join(command)}{place}: {words}")
    return done


def start_time(pid: int | None) -> str | None:
    """When a process started, in clock ticks; None when it is dead.

    With the number this names one process for good.
    """
    if not pid:
        return None
    try:
        fields = get(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def parents(pid: int) -> set[int]:
    """A process and all that started it."""
    line: set[int] = set()
    while pid > 1:
        line.add(pid)
        pid = int(get(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[1])
    return line


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process; one that has just ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
