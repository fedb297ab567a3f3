"""Watts at rest and at work, where the machine tells them without special rights."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import List, Optional

from homesplit_probes.facts import number
from homesplit_probes.report import Figure, figure, unknown

_RAPL = "/sys/class/powercap/intel-rapl:0/energy_uj"
_EVERY_S = 0.25


def gpu_watts() -> Optional[float]:
    """What all NVIDIA GPUs draw together now; None when the driver doesn't tell."""
    command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    watts = [number(line) for line in done.stdout.splitlines()]
    known = [w for w in watts if w is not None]
    return sum(known) if known and len(known) == len(watts) else None


def package_watts(seconds: float) -> Optional[float]:
    """Average of the first CPU package over `seconds` by RAPL; None where it isn't readable."""
    try:
        with open(_RAPL) as file:
            before = int(file.read())
        time.sleep(seconds)
        with open(_RAPL) as file:
            after = int(file.read())
    except (OSError, ValueError):
        return None
    return (after - before) / 1e6 / seconds if after > before else None


class Meter:
    """Samples watts in the background while its block runs."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._samples: List[float] = []
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def _once(self) -> Optional[float]:
        if self._device == "cuda":
            return gpu_watts()
        return package_watts(_EVERY_S)

    def _method(self) -> str:
        return "nvidia-smi power.draw" if self._device == "cuda" else "RAPL, first CPU package"

    def _why(self) -> str:
        if self._device == "cuda":
            return "the NVIDIA driver does not tell the power"
        return "power is not measured: this machine's counters are not readable without root"

    def idle(self) -> Figure:
        """A few samples before the load."""
        samples = [w for w in (self._once() for _ in range(3)) if w is not None]
        return figure(samples, "W", self._method()) if samples else unknown(self._why())

    def __enter__(self) -> "Meter":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=6)

    def _run(self) -> None:
        while not self._stop.is_set():
            watts = self._once()
            if watts is None:
                return
            self._samples.append(watts)
            self._stop.wait(_EVERY_S if self._device == "cuda" else 0)

    def under_load(self) -> Figure:
        """What was seen during the block."""
        if not self._samples:
            return unknown(self._why())
        return figure(self._samples, "W", self._method() + ", while multiplying matrices")
