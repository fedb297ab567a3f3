"""Why an answer stood still: each gap's part beyond the target, laid to what ran meanwhile.

The boxes' steps and hand-offs are told with their clocks' offsets, so a gap between two
tokens can be held against them on the router's clock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from homesplit_engine.records import RequestRecord, StepEvent

Cause = Literal["prefill", "handoff", "moved", "decode", "waiting"]
CAUSES: tuple[Cause, ...] = ("prefill", "handoff", "moved", "decode", "waiting")
KEPT_STEPS = 4_096
"""Steps looked back on per box: a gap older than these is laid to `waiting`."""


class Span(Struct, frozen=True):
    """One step on the router's clock, and whose prompts it read."""

    start_s: float
    end_s: float
    prefill: tuple[str, ...]


class StepMemory:
    """The recent steps of every box."""

    def __init__(self) -> None:
        self._spans: dict[str, deque[Span]] = {}

    def remember(self, event: StepEvent, offset_s: float) -> None:
        """One step as its box told it."""
        spans = self._spans.setdefault(event.box, deque(maxlen=KEPT_STEPS))
        readers = tuple(piece.request_id for piece in event.prefill)
        spans.append(Span(event.start_s + offset_s, event.end_s + offset_s, readers))

    def between(self, box: str, start_s: float, end_s: float) -> Iterator[Span]:
        """The box's steps that overlap a time, newest first."""
        for span in reversed(self._spans.get(box, ())):
            if span.end_s <= start_s:
                return
            if span.start_s < end_s:
                yield span


def stall_causes(
    record: RequestRecord, tpot_target_s: float, steps: StepMemory
) -> Mapping[Cause, float]:
    """Stalled seconds of one answer by cause; they add up to its stall.

    `prefill`: another prompt was read on the box that wrote. `handoff`: its own KV was on the
    way. `moved`: it lost its box. `decode`: the box's decode steps were slower than the target.
    `waiting`: the box computed nothing that is known of (preempted, network, a sleeping box).
    """
    found: dict[Cause, float] = {}
    times = record.token_s
    for index, (start_s, end_s) in enumerate(itertools.pairwise(times)):
        over_s = end_s - start_s - tpot_target_s
        if over_s > 0:
            for cause, seconds in _shares(record, index, start_s, end_s, over_s, steps):
                found[cause] = found.get(cause, 0.0) + seconds
    return found


def _shares(
    record: RequestRecord,
    index: int,
    start_s: float,
    end_s: float,
    over_s: float,
    steps: StepMemory,
) -> Iterator[tuple[Cause, float]]:
    """A gap's stall, shared in the order: hand-off, others' prefill, slow steps, the rest."""
    if record.resubmitted:
        longest = max(b - a for a, b in itertools.pairwise(record.token_s))
        if end_s - start_s >= longest:
            yield "moved", over_s
            return
    left_s = over_s
    if index == 0 and record.handoff_exposed_s:
        taken_s = min(left_s, record.handoff_exposed_s)
        left_s -= taken_s
        yield "handoff", taken_s
    prefill_s = decode_s = 0.0
    for span in steps.between(record.decode_box or "", start_s, end_s):
        overlap_s = max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))
        if any(reader != record.request_id for reader in span.prefill):
            prefill_s += overlap_s
        else:
            decode_s += overlap_s
    shares: tuple[tuple[Cause, float], ...] = (("prefill", prefill_s), ("decode", decode_s))
    for cause, seconds in shares:
        taken_s = min(left_s, seconds)
        left_s -= taken_s
        if taken_s > 0:
            yield cause, taken_s
    if left_s > 0:
        yield "waiting", left_s
