"""What the hand-offs take of the link between the boxes."""

from __future__ import annotations

from msgspec import Struct

from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, bar, clean, crop, line, sparkline, width_of
from homesplit.view.timeline import moved_transfers

SPAN_S = 10.0
"""Over how long `now` is meant."""
HISTORY_S = 60.0
SLOT_S = 2.0


class LinkUse(Struct, frozen=True, kw_only=True):
    """One direction of the link: KV bytes per second now and over the last minute."""

    box_from: str
    box_to: str
    bytes_per_s: float
    measured_bytes_per_s: float | None
    why: str
    """Why there is no measured rate to hold it against."""
    handoffs: int
    """Ended in the last minute."""
    bytes: int
    history: tuple[float, ...]


def link_use(state: RunState, names: tuple[str, ...], now_s: float) -> tuple[LinkUse, ...]:
    """Each direction between two boxes that carried a hand-off in the last minute."""
    if len(names) != 2:
        return ()
    found: list[LinkUse] = []
    for box_from, box_to in (names, names[::-1]):
        moved = [
            (event.bytes, start_s, end_s)
            for event, start_s, end_s in moved_transfers(state.engine, now_s - HISTORY_S)
            if (event.box_from, event.box_to) == (box_from, box_to)
        ]
        if not moved:
            continue
        rate, why = _measured(state, box_from, box_to)
        slots = int(HISTORY_S / SLOT_S)
        found.append(
            LinkUse(
                box_from=box_from,
                box_to=box_to,
                bytes_per_s=_rate(moved, now_s - SPAN_S, now_s),
                measured_bytes_per_s=rate,
                why=why,
                handoffs=len(moved),
                bytes=sum(size for size, _, _ in moved),
                history=tuple(
                    _rate(moved, now_s - SLOT_S * (slots - n), now_s - SLOT_S * (slots - n - 1))
                    for n in range(slots)
                ),
            )
        )
    return tuple(found)


def _rate(moved: list[tuple[int, float, float]], start_s: float, end_s: float) -> float:
    """Bytes per second in a stretch; a hand-off's bytes are spread over its time."""
    total = 0.0
    for size, began_s, ended_s in moved:
        shared_s = min(end_s, ended_s) - max(start_s, began_s)
        if shared_s > 0:
            total += size * shared_s / max(ended_s - began_s, 1e-9)
    return total / (end_s - start_s)


def _measured(state: RunState, box_from: str, box_to: str) -> tuple[float | None, str]:
    if state.deployment is not None and state.deployment.loopback:
        return None, "loopback: no network to measure"
    link = link_between(state, box_from, box_to)
    if link is None:
        return None, "this link was not probed"
    reading = link.a_to_b if link.a == box_from else link.b_to_a
    return reading.value, reading.why or ""


def link_lines(uses: tuple[LinkUse, ...], width: int) -> Lines:
    """A line for each direction in use."""
    return tuple(_line(use, width) for use in uses)


def _line(use: LinkUse, width: int) -> Line:
    known = use.measured_bytes_per_s
    parts: list[Span] = [
        Span(f"{'link':<10}", "strong"),
        Span(f"{clean(use.box_from)} ━▶ {clean(use.box_to)}  ", "handoff"),
        Span(f"{numbers.link_rate(use.bytes_per_s)} "),
    ]
    if known:
        share = use.bytes_per_s / known
        parts.extend(bar(share, max(min(width - 92, 20), 6), "handoff"))
        parts.append(Span(f" {share * 100:.0f} % of {numbers.link_rate(known)}", ""))
    else:
        parts.append(Span(f"({use.why})", "dim"))
    parts.append(Span(f"  {use.handoffs} in 60 s, {numbers.size(use.bytes)} ", "dim"))
    if width >= 100:
        left = width - width_of(tuple(parts))
        top = max(use.history) or 1.0
        parts.extend(sparkline(use.history, max(min(left, 30), 0), "handoff", top))
    return crop(line(*parts), width)
