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
    for older in _older_folders(groups, own, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        pairs.append([word for name in names for word in _text(older / name).split()])
    shares = [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1])
    ]
    return max(1, math.ceil(min(shares))) if shares else None


def _left(groups: Path, own: Path) -> list[int]:
    """What is left of each limit; files that only the group's own pages fill can be given back.

    Beyond `memory.high` a group is slowed down until it gives memory back, which KV never is.
    """
    left: list[int] = []
    for folder in _folders(groups, own):
        cached = _cached(folder / "memory.stat", "")
        for limit in ("memory.max", "memory.high"):
            left += _less(_number(folder / limit), _number(folder / "memory.current"), cached)
    for older in _older_folders(groups, own, "memory"):
        used = _number(older / "memory.usage_in_bytes")
        cached = _cached(older / "memory.stat", "total_")
        left += _less(_number(older / "memory.limit_in_bytes"), used, cached)
    return left


def _less(most: int | None, used: int | None, cached: int) -> list[int]:
    return [] if most is None or used is None else [max(0, most - used + cached)]


def _folders(groups: Path, own: Path) -> list[Path]:
    """Our control group's folder and those of the groups around it."""
    ours = _own_path(own, "")
    return [] if ours is None else _and_around(groups, ours)


def _older_folders(groups: Path, own: Path, controller: str) -> list[Path]:
    """The same of the older kind, which has a tree for each controller."""
    ours = _own_path(own, controller)
    # A container sees its own group where others have the tree's root.
    return _and_around(groups / controller, ours or "")


def _and_around(root: Path, ours: str) -> list[Path]:
    folder = root / ours
    return [folder, *(p for p in folder.parents if p.is_relative_to(root))]


def _own_path(own: Path, controller: str) -> str | None:
    """Where we are in a controller's tree, of the newer kind's one tree for ""; None if unknown."""
    for line in _text(own).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and controller in parts[1].split(","):
            inside = parts[2].strip("/")
            return "" if ".." in inside.split("/") else inside
    return None


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
