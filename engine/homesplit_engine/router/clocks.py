"""How a box's monotonic clock stands against the router's, from pings."""

from __future__ import annotations

from collections import deque

KEPT = 32
"""Pings looked back on: the shortest round trip among them is the best witness."""


class ClockOffset:
    """Offset to add to a box's clock, from the ping with the shortest recent round trip."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def learn(self, sent_s: float, answered_s: float, box_clock_s: float) -> None:
        """One ping: sent and answered on the router's clock, and the box's clock in between."""
        middle = (sent_s + answered_s) / 2
        self._seen.append((answered_s - sent_s, middle - box_clock_s))

    def forget(self) -> None:
        """The box was started anew: its clock may be another."""
        self._seen.clear()

    @property
    def offset_s(self) -> float | None:
        """Add this to the box's clock; None before any ping."""
        return min(self._seen)[1] if self._seen else None

    @property
    def error_s(self) -> float | None:
        """The offset is off by at most this: half the shortest round trip."""
        return min(self._seen)[0] / 2 if self._seen else None
