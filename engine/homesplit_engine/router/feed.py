"""The stream of events to watchers: one JSON object a line, slow readers lose the oldest."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from homesplit_engine.events import EngineEvent, FaultSeen
from homesplit_engine.records import Fault

QUEUED_LINES = 2_000
"""Per watcher; a reader further behind than this loses the oldest and is told so."""
MAX_WATCHERS = 64
GATHER_S = 0.1
"""What comes within this goes out as one piece: a reader is woken ten times a second at most."""


class Watcher:
    """One reader of the feed with a bounded queue of its own."""

    def __init__(self, first: list[bytes]) -> None:
        self._lines: deque[bytes] = deque(first, maxlen=QUEUED_LINES)
        self._dropped = 0
        self._some = asyncio.Event()
        if first:
            self._some.set()

    def put(self, line: bytes) -> None:
        """Queue a line; the oldest goes when the queue is full."""
        if len(self._lines) == QUEUED_LINES:
            self._dropped += 1
        self._lines.append(line)
        self._some.set()

    async def take(self, timeout_s: float) -> bytes:
        """All lines queued, as one piece; a blank line when nothing came in `timeout_s`."""
        try:
            await asyncio.wait_for(self._some.wait(), timeout_s)
        except TimeoutError:
            return b"\n"
        await asyncio.sleep(GATHER_S)
        self._some.clear()
        lines = [_lost_lines(self._dropped)] if self._dropped else []
        lines.extend(self._lines)
        self._dropped = 0
        self._lines.clear()
        return b"\n".join(lines) + b"\n"


def _lost_lines(count: int) -> bytes:
    sentence = f"This reader is too slow: the {count} oldest events waiting for it were dropped."
    fault = Fault(at_s=time.monotonic(), box=None, kind="events_dropped", sentence=sentence)
    return msgspec.json.encode(FaultSeen(fault=fault))


class Feed:
    """Tells every watcher; costs nothing when nobody watches."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    def tell(self, event: EngineEvent) -> None:
        """Queue one event for everyone who watches."""
        if not self._watchers:
            return
        line = msgspec.json.encode(event)
        for watcher in self._watchers:
            watcher.put(line)

    def watch(self, first: list[EngineEvent]) -> Watcher | None:
        """A new watcher that starts with the events `first`; None when there are too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = Watcher([msgspec.json.encode(event) for event in first])
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """The watcher has gone."""
        self._watchers.discard(watcher)
