"""How much of a probe's time is left, so that it ends in time whatever the machine does."""

from __future__ import annotations

import time
from typing import Callable

OVER = "the probe's time was over before it; probe again when the box is less busy"


class Budget:
    """Counts down from `seconds`; `clock` gives seconds and never goes back."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds left, 0 when it is over."""
        return max(0.0, self._end - self._clock())

    def take(self, wanted: float, least: float = 0.5) -> float:
        """`wanted` seconds or what is left of them; 0 when that is less than `least`."""
        given = min(wanted, self.left())
        return given if given >= least else 0.0
