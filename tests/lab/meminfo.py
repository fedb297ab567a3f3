"""/proc/meminfo of a machine whose memory is its control group's limit."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.files import get, put
from tests.lab.kernel import bind


class MemoryView:
    """Keeps /proc/meminfo in step with what the group uses.

    `used` and `stat` are open files of the group: its folder is out of sight inside the machine.
    """

    def __init__(self, limit_gib: float, files: tuple[Path, Path]) -> None:
        self._limit_gib = limit_gib
        self._used, self._stat = (os.open(path, os.O_RDONLY) for path in files)
        self._shown: int | None = None
        self._host = ""

    def show(self) -> None:
        """Put the view in place; once, inside the machine."""
        self._host = get("/proc/meminfo")
        put("/run/.meminfo", self._text())
        bind("/run/.meminfo", "/proc/meminfo", read_only=True)
        self._shown = os.open("/run/.meminfo", os.O_WRONLY)

    def refresh(self) -> None:
        """Write the present figures; the text keeps its length, so readers see it whole."""
        if self._shown is not None:
            os.pwrite(self._shown, self._text(), 0)

    def _text(self) -> bytes:
        used_bytes = int(os.pread(self._used, 64, 0))
        pairs = (line.split() for line in os.pread(self._stat, 65536, 0).decode().splitlines())
        stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
        cached = stat.get("total_inactive_file", stat.get("inactive_file", 0))
        return meminfo(self._host, self._limit_gib, used_bytes, cached).encode()


def meminfo(host: str, limit_gib: float, used_bytes: int, cached_bytes: int) -> str:
    """The host's /proc/meminfo with the figures of a machine of `limit_gib`."""
    total = int(limit_gib * 2**20)
    free = max(0, (int(limit_gib * 2**30) - used_bytes) // 1024)
    own = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": min(total, free + cached_bytes // 1024),
        "Buffers": 0,
        "Cached": cached_bytes // 1024,
        "SwapTotal": 0,
        "SwapFree": 0,
        "SwapCached": 0,
    }
    lines: list[str] = []
    for line in host.splitlines():
        key = line.partition(":")[0]
        lines.append(f"{key + ':':<16}{own[key]:>8} kB" if key in own else line)
    return "\n".join(lines) + "\n"
