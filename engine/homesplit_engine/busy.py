"""How many cores other programs take on this machine, where /proc tells; else the reason.

Counted are the cores this process may run on. What homesplit's own processes use is taken
off, so that a figure above 0 is load that a measurement should not have beside it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")
_SHORTEST_S = 0.5
"""Counters tick in hundredths: over less time than this the quotient is mostly noise."""
_SEARCH_EVERY_S = 10.0
_MARK = b"homesplit"


class OthersMeter:
    """Mean cores taken by other programs since the last reading."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._last: tuple[float, float, dict[int, float]] | None = None
        self._cores: float | None = None
        self._why: str | None = "no reading yet"
        self._own: tuple[int, ...] = ()
        self._searched_s = float("-inf")

    def read(self) -> tuple[float | None, str | None]:
        """Cores, or None and why there is no figure."""
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < _SHORTEST_S:
            return self._cores, self._why
        try:
            busy_s, own_s = self._busy_s(), self._own_s(now_s)
        except (OSError, ValueError, AttributeError):
            return None, "this machine does not tell how busy its cores are (/proc/stat)"
        if self._last is not None:
            last_s, last_busy_s, last_own_s = self._last
            ours_s = sum(s - last_own_s[pid] for pid, s in own_s.items() if pid in last_own_s)
            self._cores = max(0.0, busy_s - last_busy_s - ours_s) / (now_s - last_s)
            self._why = None
        self._last = (now_s, busy_s, own_s)
        return self._cores, self._why

    def _busy_s(self) -> float:
        """Seconds for which the cores we may use were busy since boot."""
        wanted = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        total = 0
        for line in (self._proc / "stat").read_text().splitlines():
            name, *ticks = line.split()
            if name in wanted:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
                total += user + nice + system + irq + softirq + steal
        return total / os.sysconf("SC_CLK_TCK")

    def _own_s(self, now_s: float) -> dict[int, float]:
        """Seconds that each process of homesplit has run for, of those that share our cores."""
        if now_s - self._searched_s > _SEARCH_EVERY_S:
            self._own, self._searched_s = self._search(), now_s
        found: dict[int, float] = {}
        for pid in self._own:
            try:
                fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def _search(self) -> tuple[int, ...]:
        ours = os.sched_getaffinity(0)
        found: list[int] = []
        for folder in self._proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                named = _MARK in (folder / "cmdline").read_bytes()
                if named and os.sched_getaffinity(int(folder.name)) & ours:
                    found.append(int(folder.name))
            except OSError:
                continue
        return tuple(found)
