"""How long processes wanted to run and were not let: the part of a pause that is the computer's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PERIOD_S = 0.05


class Waits:
    """Looks again and again at how long each process's threads have waited for a core."""

    def __init__(self, pids: Callable[[], Mapping[str, int | None]]) -> None:
        self._pids = pids
        self._seen: list[tuple[float, dict[tuple[int, int], float]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waits", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def forget(self) -> None:
        """Drop what was seen."""
        self._seen.clear()

    def between_s(self, begin_s: float, end_s: float) -> float:
        """Of each process that thread's waiting which waited longest, summed over processes."""
        seen = [waits for at, waits in self._seen if begin_s - PERIOD_S <= at <= end_s + PERIOD_S]
        longest: dict[int, float] = {}
        for (pid, thread), last_s in (seen[-1] if seen else {}).items():
            first_s = next(waits[pid, thread] for waits in seen if (pid, thread) in waits)
            longest[pid] = max(longest.get(pid, 0.0), last_s - first_s)
        return sum(longest.values())

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            found: dict[tuple[int, int], float] = {}
            for pid in self._pids().values():
                if pid is not None:
                    found |= _waits_of(pid)
            self._seen.append((time.monotonic(), found))


def _waits_of(pid: int) -> dict[tuple[int, int], float]:
    """Seconds that each thread of a process has waited on a run queue since it began."""
    found: dict[tuple[int, int], float] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                waited_ns = int((task / "schedstat").read_text().split()[1])
                found[pid, int(task.name)] = waited_ns / 1e9
    return found
