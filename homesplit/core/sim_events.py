"""What is to come in the simulator, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """What happens at which moment; of one moment, in the order in which it was noted."""

    def __init__(self) -> None:
        self.coming: list[tuple[float, int, Callable[[float], None]]] = []
        """A heap, the next one first."""
        self._noted = 0

    def at(self, when_s: float, what: Callable[[float], None]) -> None:
        """`what` is called with its moment once that has come."""
        self._noted += 1
        heapq.heappush(self.coming, (when_s, self._noted, what))
