"""What the hand-offs take of the link between the boxes."""

from __future__ import annotations

from homesplit_engine.records import TransferEvent
from msgspec import Struct

from homesplit.core.engine_state import Engine
from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, bar, clean, crop, line, sparkline, width_of

SLOTS = 30
SLOT_S = 2.0
"""The last minute, in slots that stand still while time goes on."""
NOW_SLOTS = 5
"""Over how many slots `now` is meant: the last 10 s and what has passed of the next slot."""

Way = tuple[str, str]


class Slot:
    """What one direction carried in two seconds, and the hand-offs that ended in them."""

    __slots__ = ("bytes", "ended", "ended_bytes")

    def __init__(self) -> None:
        self.bytes = 0.0
        self.ended = 0
        self.ended_bytes = 0


class Moves:
    """Follows the hand-offs as they are told; each is looked at once, when it is new."""

    def __init__(self) -> None:
        self._forget(None)

    def _forget(self, first_s: float | None) -> None:
        self._seen = 0
        self._first_s = first_s
        self._slots: dict[Way, dict[int, Slot]] = {}

    def take(self, engine: Engine) -> None:
        """Look at the hand-offs that ended since the last time."""
        if engine.first_s != self._first_s or engine.total_transfers < self._seen:
            self._forget(engine.first_s)
        new = engine.total_transfers - self._seen
        self._seen = engine.total_transfers
        for seen in engine.transfers[max(len(engine.transfers) - new, 0) :]:
            self._add(seen.event, seen.event.start_s + seen.offset_s, seen.offset_s)
        for slots in self._slots.values():
            # A slot more than is shown: hand-offs may be told late.
            for old in sorted(slots)[: -2 * SLOTS]:
                del slots[old]

    def _add(self, event: TransferEvent, start_s: float, offset_s: float) -> None:
        """Spread a hand-off's bytes over its time."""
        end_s = max(event.end_s + offset_s, start_s)
        slots = self._slots.setdefault((event.box_from, event.box_to), {})
        first, last = int(start_s // SLOT_S), int(end_s // SLOT_S)
        first = max(first, last - SLOTS)
        for number in range(first, last + 1):
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = Slot()
            if first == last:
                slot.bytes += event.bytes
            else:
                part_s = min(number * SLOT_S + SLOT_S, end_s) - max(number * SLOT_S, start_s)
                slot.bytes += event.bytes * part_s / (end_s - start_s)
        slots[last].ended += 1
        slots[last].ended_bytes += event.bytes

    def of(self, way: Way, now_s: float) -> tuple[Slot, ...]:
        """The last `SLOTS` slots of a direction; the slot of `now_s` is not over yet."""
        last = int(now_s // SLOT_S)
        slots = self._slots.get(way, {})
        return tuple(slots.get(n) or Slot() for n in range(last - SLOTS + 1, last + 1))


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


def link_use(
    state: RunState, moves: Moves, names: tuple[str, ...], now_s: float
) -> tuple[LinkUse, ...]:
    """Each direction between two boxes that carried a hand-off in the last minute."""
    if len(names) != 2:
        return ()
    ways = (names, names[::-1])
    uses = (_use(state, (a, b), moves.of((a, b), now_s), now_s) for a, b in ways)
    return tuple(use for use in uses if use.handoffs)


def _use(state: RunState, way: Way, slots: tuple[Slot, ...], now_s: float) -> LinkUse:
    rate, why = _measured(state, *way)
    lately = slots[-NOW_SLOTS - 1 :]
    lasted_s = NOW_SLOTS * SLOT_S + now_s % SLOT_S
    return LinkUse(
        box_from=way[0],
        box_to=way[1],
        bytes_per_s=sum(slot.bytes for slot in lately) / lasted_s,
        measured_bytes_per_s=rate,
        why=why,
        handoffs=sum(slot.ended for slot in slots),
        bytes=sum(slot.ended_bytes for slot in slots),
        history=tuple(slot.bytes / SLOT_S for slot in slots),
    )


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
    many = "hand-off" if use.handoffs == 1 else "hand-offs"
    told = f"  {use.handoffs} {many} in 60 s, {numbers.size(use.bytes)} "
    if width_of((*parts, Span(told))) <= width:
        parts.append(Span(told, "dim"))
    if width >= 100:
        left = width - width_of(tuple(parts))
        top = max(use.history) or 1.0
        parts.extend(sparkline(use.history, max(min(left, 30), 0), "handoff", top))
    return crop(line(*parts), width)
