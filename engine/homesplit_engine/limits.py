"""What a worker may take of its machine, which is less where a container or a quota limits it."""

from __future__ import annotations

import math
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def available_bytes(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Bytes that the machine has available and that every control group around us still allows."""
    return min([psutil.virtual_memory().available, *_left(groups, own)])


def allowed_cores(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Whole cores that quotas leave us, rounded up; None without one."""
    pairs = [_text(folder / "cpu.max").split() for folder in _folders(groups, own)]
    older = groups / "cpu"
    pairs.append(
        [*_text(older / "cpu.cfs_quota_us").split(), *_text(older / "cpu.cfs_period_us").split()]
    )
    shares = [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1])
    ]
    return max(1, math.ceil(min(shares))) if shares else None


def _left(groups: Path, own: Path) -> list[int]:
    """What is left of each limit; files that only the group's own pages fill can be given back."""
    left: list[int] = []
    for folder in _folders(groups, own):
        most, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if most is not None and used is not None:
            left.append(max(0, most - used + _cached(folder / "memory.stat", "")))
    # The older kind shows a container only its own.
    older = groups / "memory"
    most, used = _number(older / "memory.limit_in_bytes"), _number(older / "memory.usage_in_bytes")
    if most is not None and used is not None:
        left.append(max(0, most - used + _cached(older / "memory.stat", "total_")))
    return left


def _folders(groups: Path, own: Path) -> list[Path]:
    """Our control group's folder and those of the groups around it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    ours = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if ours is None or ".." in ours.split("/"):
        return [groups]
    folder = groups / ours
    return [folder, *(p for p in folder.parents if p.is_relative_to(groups))]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _cached(path: Path, prefix: str) -> int:
    pairs = [line.split() for line in _text(path).splitlines()]
    wanted = {f"{prefix}inactive_file", f"{prefix}active_file"}
    return sum(int(p[1]) for p in pairs if len(p) == 2 and p[0] in wanted and p[1].isdecimal())
