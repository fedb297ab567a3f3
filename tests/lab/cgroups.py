"""A control group for each machine: CPU time, memory, and freezing it whole."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.files import get
from tests.lab.processes import send
from tests.lab.records import Node

_ROOT = Path("/sys/fs/cgroup")
_V1_CONTROLLERS = ("freezer", "cpu", "cpuset", "memory")
PATIENCE_S = 30.0
"""For what ends as soon as it is so; only a broken machine takes as long."""


def _unified() -> bool:
    """Whether cgroup v2 with its CPU controller is in use; else v1."""
    try:
        return "cpu" in get(_ROOT / "cgroup.controllers").split()
    except OSError:
        return False


def usable() -> bool:
    """Whether there are control groups that can freeze a machine and be written."""
    place = _ROOT if _unified() else _ROOT / "freezer"
    return place.is_dir() and os.access(place, os.W_OK)


def _bases(lab: str) -> list[Path]:
    name = f"homesplit-lab-{lab}"
    if _unified():
        return [_ROOT / name]
    return [_ROOT / controller / name for controller in _V1_CONTROLLERS]


class Cgroup:
    """One machine's group in whichever version the kernel offers."""

    def __init__(self, lab: str, node: str) -> None:
        self.unified = _unified()
        self.relative = Path(f"homesplit-lab-{lab}") / node
        if not usable():
            raise LabError("no usable control groups: /sys/fs/cgroup is missing or read-only")

    def folder(self, controller: str) -> Path:
        """Where a controller's files for this group are."""
        return (_ROOT if self.unified else _ROOT / controller) / self.relative

    def folders(self) -> list[Path]:
        """The group's folders that exist."""
        found = dict.fromkeys(self.folder(controller) for controller in _V1_CONTROLLERS)
        return [folder for folder in found if folder.is_dir()]

    def create(self, node: Node | None = None) -> None:
        """Make the group with a machine's limits; without one, for freezing and finding only."""
        if self.unified:
            self._create_unified(node)
        else:
            self._create_v1(node)

    def _set(self, controller: str, key: str, value: str | int) -> None:
        path = self.folder(controller) / key
        try:
            path.write_text(str(value))
        except OSError as error:
            raise LabError(f"control group {path} = {value}: {error.strerror}") from error

    def _create_unified(self, node: Node | None) -> None:
        base = self.folder("").parent
        base.mkdir(exist_ok=True)
        for folder in (_ROOT, base):
            for controller in ("cpu", "cpuset", "memory"):
                # One that can't be had shows below, where a limit asks for it.
                with contextlib.suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        self.folder("").mkdir(exist_ok=True)
        if node and node.cpu:
            period = node.cpu.period_us
            if node.cpu.share < len(node.cpu.cpus):
                self._set("", "cpu.max", f"{int(node.cpu.share * period)} {period}")
            self._set("", "cpuset.cpus", _list(node.cpu.cpus))
        if node and node.memory_gib:
            self._set("", "memory.max", int(node.memory_gib * 2**30))

    def _create_v1(self, node: Node | None) -> None:
        wanted = ["freezer"]
        # Only where asked: without a limit the process stays in the group it came from.
        wanted += ["cpu", "cpuset"] if node and node.cpu else []
        wanted += ["memory"] if node and node.memory_gib else []
        for controller in wanted:
            if not (_ROOT / controller).is_dir():
                raise LabError(f"this kernel has no v1 control group '{controller}'")
            self.folder(controller).mkdir(parents=True, exist_ok=True)
        if node and node.cpu:
            period = node.cpu.period_us
            limited = node.cpu.share < len(node.cpu.cpus)
            self._choose_cpus(node.cpu.cpus)
            self._set("cpu", "cpu.cfs_period_us", period)
            self._set("cpu", "cpu.cfs_quota_us", int(node.cpu.share * period) if limited else -1)
        if node and node.memory_gib:
            self._set("memory", "memory.limit_in_bytes", int(node.memory_gib * 2**30))

    def _choose_cpus(self, cpus: list[int]) -> None:
        own = self.folder("cpuset")
        for folder in (own.parent, own):
            for key in ("cpuset.cpus", "cpuset.mems"):
                inherited = get(folder.parent / key).strip()
                chosen = _list(cpus) if folder == own and key == "cpuset.cpus" else inherited
                (folder / key).write_text(chosen)

    def join(self, pid: int | None = None) -> None:
        """Move a process, this one unless told, into the group."""
        for folder in self.folders():
            (folder / "cgroup.procs").write_text(str(pid or os.getpid()))

    def pids(self) -> set[int]:
        """Every process in the group, as this machine numbers them."""
        found: set[int] = set()
        for folder in self.folders():
            with contextlib.suppress(OSError):
                found.update(int(line) for line in get(folder / "cgroup.procs").split())
        return found

    def freeze(self, on: bool) -> None:
        """Stop every instruction of the group, or let it go on."""
        if self.unified:
            self._set("", "cgroup.freeze", int(on))
            state, frozen = self.folder("") / "cgroup.events", "frozen 1"
        else:
            self._set("freezer", "freezer.state", "FROZEN" if on else "THAWED")
            state, frozen = self.folder("freezer") / "freezer.state", "FROZEN"
        end = time.monotonic() + PATIENCE_S
        while on and frozen not in get(state):
            if time.monotonic() > end:
                raise LabError(f"{self.relative.name} did not freeze in {PATIENCE_S:g} s")
            time.sleep(0.01)

    def memory_files(self) -> tuple[Path, Path]:
        """Bytes in use, and what they are made of."""
        used = "memory.current" if self.unified else "memory.usage_in_bytes"
        folder = self.folder("memory")
        return folder / used, folder / "memory.stat"

    def end_all(self, grace_s: float) -> None:
        """End every process of the group: asked first, then killed after `grace_s`."""
        begin = time.monotonic()
        asked = False
        while (pids := self.pids() - {os.getpid()}) and time.monotonic() < begin + PATIENCE_S:
            if time.monotonic() >= begin + grace_s:
                for pid in pids:
                    send(pid, signal.SIGKILL)
            elif not asked:
                for pid in pids:
                    send(pid, signal.SIGTERM)
                asked = True
            time.sleep(0.02)


def _list(cpus: list[int]) -> str:
    return ",".join(map(str, cpus))


def leftovers(lab: str) -> set[str]:
    """Machines of a lab that still have a group, whatever its state file says."""
    return {entry.name for base in _bases(lab) for entry in _children(base)}


def remove_all(lab: str) -> None:
    """Remove a lab's groups; their processes must have ended."""
    for base in _bases(lab):
        if base.is_dir():
            for entry in _children(base):
                _remove(entry)
            _remove(base)


def _children(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _remove(folder: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > end:
                print(f"lab: cannot remove {folder}: {error.strerror}", file=sys.stderr)
                return
            time.sleep(0.02)
