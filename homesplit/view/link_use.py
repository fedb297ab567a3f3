"""What the hand-offs take of the link between the boxes."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, bar, clean, crop, line, sparkline, width_of
from homesplit.view.watch import moved_transfers

HISTORY_S = 60.0
SLOT_S = 2.0
NOW_SLOTS = 5
"""Over how many slots `now` is meant: the last 10 s."""


class Moved(NamedTuple):
    """A hand-off on the router's clock."""

    bytes: int
    start_s: float
    end_s: float


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
    moved: dict[tuple[str, str], list[Moved]] = {}
    for event, start_s, end_s in moved_transfers(state.engine, now_s - HISTORY_S):
        way = (event.box_from, event.box_to)
        moved.setdefault(way, []).append(Moved(event.bytes, start_s, end_s))
    a, b = names
    return tuple(_use(state, way, moved[way], now_s) for way in ((a, b), (b, a)) if way in moved)


def _use(state: RunState, way: tuple[str, str], moved: list[Moved], now_s: float) -> LinkUse:
    rate, why = _measured(state, *way)
    slots = _slots(moved, now_s)
    return LinkUse(
        box_from=way[0],
        box_to=way[1],
        bytes_per_s=sum(slots[-NOW_SLOTS:]) / NOW_SLOTS,
        measured_bytes_per_s=rate,
        why=why,
        handoffs=len(moved),
        bytes=sum(one.bytes for one in moved),
        history=slots,
    )


def _slots(moved: list[Moved], now_s: float) -> tuple[float, ...]:
    """Bytes per second in each slot of the last minute; a hand-off is spread over its time."""
    count = int(HISTORY_S / SLOT_S)
    began_s = now_s - HISTORY_S
    rates = [0.0] * count
    for size, start_s, end_s in moved:
        from_s, to_s = max(start_s - began_s, 0.0), min(end_s - began_s, HISTORY_S)
        first, last = int(from_s / SLOT_S), min(int(to_s / SLOT_S), count - 1)
        if first == last:
            rates[first] += size * (to_s - from_s) / max(end_s - start_s, 1e-9) / SLOT_S
            continue
        per_s = size / (end_s - start_s) / SLOT_S
        for slot in range(first, last + 1):
            rates[slot] += per_s * (min(slot * SLOT_S + SLOT_S, to_s) - max(slot * SLOT_S, from_s))
    return tuple(rates)


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
