"""Keeps every core of a box at work while the link is measured, as an engine would."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import List, Optional, Type

from homesplit_probes.methods import usable_cores

# Arithmetic and memory traffic in turn; ends by itself when its parent is gone.
_WORK = """\
import ctypes, hashlib, os, time
size, parent, end = 16 << 20, os.getppid(), time.monotonic() + 20
a, b = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
while time.monotonic() < end and os.getppid() == parent:
    ctypes.memmove(b, a, size)
    hashlib.sha256(memoryview(b)[:1 << 20]).digest()
"""


class Busy:
    """One working process for each usable core while its block runs."""

    def __init__(self) -> None:
        self._workers: List["subprocess.Popen[bytes]"] = []

    def __enter__(self) -> "Busy":
        for _ in range(usable_cores()):
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WORK],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
