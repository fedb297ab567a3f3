"""Requests that are being served now, as the boxes' steps tell of them."""

from __future__ import annotations

from typing import NamedTuple

from homesplit.view import numbers
from homesplit.view.spans import Line, Span, clean, crop, line
from homesplit.view.watch import SILENT_S, Watch

HEALTH = "health-"
"""What the router's own checks of its workers are called."""


class Running(NamedTuple):
    """One request: where it was last seen, what was done for it, and since when."""

    request_id: str
    box: str
    reading: bool
    read_tokens: int
    written_tokens: int
    since_s: float


def running(watch: Watch, now_s: float) -> tuple[Running, ...]:
    """Newest first."""
    found = [
        Running(name, one.box, one.reading, one.read_tokens, one.written_tokens, one.since_s)
        for name, one in watch.live.items()
        if not one.ended and one.last_s >= now_s - SILENT_S and not name.startswith(HEALTH)
    ]
    return tuple(sorted(found, key=lambda one: -one.since_s))


def running_row(one: Running, now_s: float, width: int) -> Line:
    """One line for the list of requests."""
    doing = "reads" if one.reading else "writes"
    done = (
        f"{numbers.count(one.read_tokens)} prompt tokens"
        if one.reading
        else f"token {numbers.count(one.written_tokens)}"
    )
    return crop(
        line(
            Span("● ", "warn"),
            Span(f"{clean(one.request_id)[-10:]:<11}"),
            Span(f"{one.box} {doing}", "prefill" if one.reading else "decode"),
            Span(f"  {done}, for {numbers.seconds(max(now_s - one.since_s, 0.0))}", "dim"),
        ),
        width,
    )
