"""How long processes wanted to run and were not let: the part of a pause that is the computer's."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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

    def outside_s(
        self, begin_s: float, end_s: float, but: Sequence[tuple[float, float]] = ()
    ) -> float:
        """How long a process waited for a core between two times, but for some spans.

        Between two looks: of each process that thread's waiting which waited longest, of all
        processes together no more than the time between the looks.
        """
        found_s = 0.0
        for (last_s, before), (now_s, waits) in itertools.pairwise(list(self._seen)):
            begin, end = max(last_s, begin_s), min(now_s, end_s)
            if end <= begin:
                continue
            longest: dict[int, float] = {}
            for (pid, thread), waited_s in waits.items():
                more_s = waited_s - before.get((pid, thread), waited_s)
                longest[pid] = max(longest.get(pid, 0.0), more_s)
            covered = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in but)
            found_s += min(end - begin - covered, sum(longest.values()))
        return found_s

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
