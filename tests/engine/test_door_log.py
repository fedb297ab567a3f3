"""What strangers' bytes leave in the log: a line each, without control characters, and few."""

from __future__ import annotations

import logging
import sys

from aiohttp.http_exceptions import BadHttpMessage
from homesplit_engine.router.door_log import MOST_CHARS, MOST_LINES, PERIOD_S, Bounded


def record(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except type(error):
        told = ("Error handling request from %s", ("10.0.0.9",), sys.exc_info())
        return logging.LogRecord("door", logging.ERROR, "", 0, *told)


def test_bytes_that_are_no_http_are_one_bounded_line_without_a_traceback() -> None:
    one = record(BadHttpMessage("bad\n\x1b[31m" + "x" * 5_000))
    assert Bounded(lambda: 0.0).filter(one)
    assert one.exc_info is None and one.levelno == logging.INFO
    line = one.getMessage()
    assert line.startswith("Error handling request from 10.0.0.9: 400, message: bad ?[31mx")
    assert len(line) == MOST_CHARS and line.isprintable()


def test_a_fault_of_our_own_keeps_its_traceback() -> None:
    one = record(RuntimeError("ours"))
    assert Bounded(lambda: 0.0).filter(one)
    assert one.exc_info is not None and one.levelno == logging.ERROR


def test_a_flood_is_counted_and_not_written() -> None:
    now_s = [0.0]
    bounded = Bounded(lambda: now_s[0])
    written = [bounded.filter(record(BadHttpMessage("bad"))) for _ in range(MOST_LINES + 50)]
    assert sum(written) == MOST_LINES
    now_s[0] = PERIOD_S
    later = record(BadHttpMessage("bad"))
    assert bounded.filter(later)
    assert later.getMessage().endswith("(50 more were not logged)")
