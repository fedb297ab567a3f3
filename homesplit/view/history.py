"""The typical figures of each ten seconds of the last minutes, kept as requests end."""

from __future__ import annotations

from statistics import median

from homesplit.core.engine_state import Done, Engine

SLOTS = 30
SLOT_S = 10.0
FIGURES = ("ttft", "tpot", "gap")


def figure(done: Done, which: str) -> float | None:
    """TTFT (`ttft`), TPOT (`tpot`) or longest gap (`gap`), seconds."""
    if which == "ttft":
        return done.ttft_s
    return done.tpot_s if which == "tpot" else done.longest_gap_s


class History:
    """The p50 of each figure in each slot, the newest last; a slot without figures is a gap."""

    def __init__(self) -> None:
        self._forget(None)

    def _forget(self, first_s: float | None) -> None:
        self._seen = 0
        self._first_s = first_s
        self._values: dict[tuple[str, int], list[float]] = {}
        self._medians: dict[tuple[str, int], tuple[int, float]] = {}

    def take(self, engine: Engine) -> None:
        """Look at the requests that ended since the last time."""
        if engine.first_s != self._first_s or engine.total_requests < self._seen:
            self._forget(engine.first_s)
        new = engine.total_requests - self._seen
        self._seen = engine.total_requests
        for done in engine.requests[max(len(engine.requests) - new, 0) :]:
            slot = int(done.at_s // SLOT_S)
            for which in FIGURES:
                value = figure(done, which)
                if value is not None:
                    self._values.setdefault((which, slot), []).append(value)
        # Here as well, for nobody may look for a day.
        self._forget_before(int((engine.latest_s or 0.0) // SLOT_S) - SLOTS)

    def of(self, which: str, now_s: float) -> tuple[float | None, ...]:
        """The last `SLOTS` slots; the slot of `now_s` is not over yet."""
        last = int(now_s // SLOT_S)
        self._forget_before(last - SLOTS)
        return tuple(self._median((which, slot)) for slot in range(last - SLOTS + 1, last + 1))

    def _forget_before(self, slot: int) -> None:
        for key in [key for key in self._values if key[1] <= slot]:
            del self._values[key]
            self._medians.pop(key, None)

    def _median(self, key: tuple[str, int]) -> float | None:
        values = self._values.get(key)
        if not values:
            return None
        known = self._medians.get(key)
        if known is None or known[0] != len(values):
            known = self._medians[key] = (len(values), median(values))
        return known[1]
