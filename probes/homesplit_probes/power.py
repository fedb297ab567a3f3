"""Watts at rest and at work, where the machine tells them without special rights."""

from __future__ import annotations

import sys
import threading
import time
from typing import List, Optional

from homesplit_probes.figures import number
from homesplit_probes.gpus import parse_amd_power, parse_mac_power
from homesplit_probes.report import Figure, figure, unknown
from homesplit_probes.said import said

_RAPL = "/sys/class/powercap/intel-rapl:0/energy_uj"
_EVERY_S = 0.25


def gpu_watts() -> Optional[float]:
    """What all NVIDIA GPUs draw together now; None when the driver doesn't tell."""
    text = said(["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"])
    watts = [number(line) for line in text.splitlines()]
    known = [w for w in watts if w is not None]
    return sum(known) if known and len(known) == len(watts) else None


def amd_watts() -> Optional[float]:
    """What all AMD GPUs draw together now; None when amd-smi doesn't tell."""
    return parse_amd_power(said(["amd-smi", "metric", "--power"]))


def mac_watts(seconds: float) -> Optional[float]:
    """Average over `seconds` by powermetrics, which tells it to root alone; else None."""
    every = str(int(1000 * seconds))
    return parse_mac_power(
        said(["powermetrics", "--samplers", "cpu_power", "-n", "1", "-i", every])
    )


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
        self._mac = sys.platform == "darwin"
        self._samples: List[float] = []
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def _once(self) -> Optional[float]:
        if self._device == "cuda":
            return gpu_watts()
        if self._device == "rocm":
            return amd_watts()
        return mac_watts(_EVERY_S) if self._mac else package_watts(_EVERY_S)

    def _method(self) -> str:
        gpus = {"cuda": "nvidia-smi power.draw", "rocm": "amd-smi SOCKET_POWER"}
        return gpus.get(self._device) or (
            "powermetrics, CPU, GPU and ANE" if self._mac else "RAPL, first CPU package"
        )

    def _why(self) -> str:
        if self._device == "cuda":
            return "power is not measured: the NVIDIA driver does not tell it"
        if self._device == "rocm":
            return "power is not measured: amd-smi does not tell it"
        if self._mac:
            return "power is not measured: macOS tells it (powermetrics) to root alone"
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
        # The GPUs' tools tell the moment; the others' figures are averages that took the time.
        pause_s = _EVERY_S if self._device in ("cuda", "rocm") else 0
        while True:
            watts = self._once()
            if watts is None:
                return
            self._samples.append(watts)
            if self._stop.wait(pause_s):
                return

    def under_load(self) -> Figure:
        """What was seen during the block."""
        if not self._samples:
            return unknown(self._why())
        return figure(self._samples, "W", self._method() + ", while multiplying matrices")
