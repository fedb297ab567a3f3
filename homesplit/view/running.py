"""Requests that are being served now, as the boxes' steps tell of them."""

from __future__ import annotations

from msgspec import Struct

from homesplit.core.state import Engine
from homesplit.view import numbers
from homesplit.view.spans import Line, Span, clean, crop, line

HEALTH = "health-"
"""What the router's own checks of its workers are called."""
SILENT_S = 60.0
"""A request that no step has spoken of for so long is not shown as running."""


class Running(Struct, frozen=True, kw_only=True):
    """One request: where it was last seen, what was done for it, and since when."""

    request_id: str
    box: str
    reading: bool
    read_tokens: int
    written_tokens: int
    since_s: float
    last_s: float


def running(engine: Engine, now_s: float) -> tuple[Running, ...]:
    """Newest first."""
    ended = {done.request_id for done in engine.requests}
    found: dict[str, Running] = {}
    for seen in engine.steps:
        event, end_s = seen.event, seen.event.end_s + seen.offset_s
        if end_s < now_s - SILENT_S:
            continue
        start_s = event.start_s + seen.offset_s
        for piece in event.prefill:
            _add(found, ended, piece.request_id, event.box, start_s, end_s, read=piece.tokens)
        for request in event.decode:
            _add(found, ended, request, event.box, start_s, end_s, read=0)
    return tuple(sorted(found.values(), key=lambda one: -one.since_s))


def _add(
    found: dict[str, Running],
    ended: set[str],
    request: str,
    box: str,
    start_s: float,
    end_s: float,
    *,
    read: int,
) -> None:
    if request in ended or request.startswith(HEALTH):
        return
    known = found.get(request)
    found[request] = Running(
        request_id=request,
        box=box,
        reading=read > 0,
        read_tokens=(known.read_tokens if known else 0) + read,
        written_tokens=(known.written_tokens if known else 0) + (not read),
        since_s=known.since_s if known else start_s,
        last_s=end_s,
    )


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
