"""Asks what may hang (a network disk that is away, a broken GPU) without anybody waiting for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("homesplit.worker")
HANGS_S = 5.0
"""What has not been answered for so long hangs."""
JOIN_S = 1.0
"""One that hangs is not waited for: its thread ends with the process."""
_T = TypeVar("_T")


class Looking(Generic[_T]):
    """One question, asked in a thread of its own whenever its last answer was fetched."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], _T],
        unknown: _T,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unknown` is the answer until there is one, and while the question hangs or fails."""
        self._name, self._ask, self._unknown = name, ask, unknown
        self._clock = clock
        self._last = unknown
        self._asked_s: float | None = None
        self._wanted = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._look, name=f"look at {name}", daemon=True)
        self._thread.start()

    def last(self) -> _T:
        """The newest answer; another one is asked for. Never waits."""
        self._wanted.set()
        return self._unknown if self.hangs_s() is not None else self._last

    def hangs_s(self) -> float | None:
        """For how long the question has gone unanswered; None while that is no long time."""
        asked_s = self._asked_s
        since_s = 0.0 if asked_s is None else self._clock() - asked_s
        return since_s if since_s >= HANGS_S else None

    def stop_soon(self) -> None:
        """Asks the thread to end."""
        self._ending = True
        self._wanted.set()

    def join(self) -> None:
        """Waits for the thread's end, for a moment."""
        self._thread.join(JOIN_S)

    @property
    def lives(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def _look(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ending:
                return
            self._asked_s = self._clock()
            try:
                self._last = self._ask()
            except Exception:
                log.exception("looking at %s failed", self._name)
                self._last = self._unknown
            self._asked_s = None
