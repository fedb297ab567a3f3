"""What this machine draws, where it can be read: RAPL counters, else NVML; else the reason."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

_POWERCAP = Path("/sys/class/powercap")
_SHORTEST_S = 0.5
"""Counters tick in steps: over less time than this the quotient is mostly noise."""


class PowerMeter:
    """Mean power since the last reading; not all of a machine, only what the counters cover."""

    def __init__(self, device: str) -> None:
        self._gpu = device.startswith("cuda")
        self._packages = sorted(_POWERCAP.glob("intel-rapl:[0-9]")) if not self._gpu else []
        self._last: tuple[float, int] | None = None
        self._power_w: float | None = None
        self._why: str | None = "no reading yet"

    def read(self) -> tuple[float | None, str | None]:
        """Watts, or None and why there is no figure."""
        if self._gpu:
            return _nvml_power()
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < _SHORTEST_S:
            return self._power_w, self._why
        energy, why = self._energy_uj()
        if energy is None:
            return None, why
        if self._last is not None and energy >= self._last[1]:
            self._power_w = (energy - self._last[1]) / 1e6 / (now_s - self._last[0])
            self._why = None
        self._last = (now_s, energy)
        return self._power_w, self._why

    def _energy_uj(self) -> tuple[int | None, str | None]:
        if not self._packages:
            return None, "this machine offers no RAPL counters (/sys/class/powercap)"
        try:
            return sum(int((path / "energy_uj").read_text()) for path in self._packages), None
        except PermissionError:
            return None, "reading the RAPL counters needs root on this machine"
        except (OSError, ValueError) as error:
            return None, f"the RAPL counters can't be read: {error}"


def _nvml_power() -> tuple[float | None, str | None]:
    try:
        import pynvml  # only where there is an NVIDIA device

        nvml: Any = pynvml
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        return nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0, None
    except ImportError:
        return None, "nvidia-ml-py is not installed on this machine"
    except Exception as error:  # NVML's errors share no base class that can be named unloaded
        return None, f"NVML gives no power figure: {error}"
