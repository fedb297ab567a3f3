"""What the HTTP server logs of strangers' bytes: one bounded line each, and few lines a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

NAME = "homesplit.router.door"
MOST_LINES, PERIOD_S = 20, 60.0
"""Lines about what is no HTTP within a period; the rest is counted and told with the next."""
MOST_CHARS = 200


class Bounded(logging.Filter):
    """Takes the traceback off what a stranger's bytes caused; everything else stays as it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began_s = -PERIOD_S
        self._lines = 0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; changes it to one line where it tells of bad bytes."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return True
        now_s = self._clock()
        if now_s - self._began_s >= PERIOD_S:
            self._began_s, self._lines = now_s, 0
        if self._lines >= MOST_LINES:
            self._left_out += 1
            return False
        self._lines += 1
        words = " ".join(f"{record.getMessage()}: {error}".split())
        # What a stranger sent may be in it: no control characters, and an end.
        told = "".join(c if c.isprintable() else "?" for c in words)[:MOST_CHARS]
        more = f" ({self._left_out} more were not logged)" if self._left_out else ""
        self._left_out = 0
        record.msg, record.args = "%s", (told + more,)
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def door_log() -> logging.Logger:
    """The logger for the HTTP server."""
    log = logging.getLogger(NAME)
    if not any(isinstance(one, Bounded) for one in log.filters):
        log.addFilter(Bounded())
    return log
