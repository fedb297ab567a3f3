"""How long an answer stood still, and what it waited for: to be noticed, to be read again.

All processes are on one computer, so the steps' times and the clients' are one clock's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from homesplit_engine.events import EngineEvent, FaultSeen, StepSeen, TransferSeen, WorkerLost
from homesplit_engine.records import StepEvent

from tests.lab.matrix.stand import DETECTION_S, LINK_MBIT
from tests.lab.matrix.traffic import Stream

ALLOWANCE_S = 0.5
"""For messages and threads around the steps, beside the time in which the processes wanted a core
and had none, which is measured."""
LINK_BYTES_PER_S = LINK_MBIT * 1e6 / 8 * 0.94
"""Payload that the undisturbed link carries: less what Ethernet, IP and TCP put around it."""
Spans = Sequence[tuple[float, float]]


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time without a token, in its parts."""

    whole_s: float
    noticed_s: float
    """From the fault until the router told of a loss, or that it gave this answer's hand-off up."""
    reading_s: float
    """Steps of the box that read the prompt and the tokens so far again, or wrote the answer.
    Whatever else it had to read first, for those who had lost their box as well, is in them."""
    handing_s: float = 0.0
    """What the undisturbed link takes for the KV that went over it meanwhile, outside of those
    steps: an answer that nothing is done to waits for that as well."""
    coreless_s: float = 0.0
    """Outside of those steps: how long router, workers or client wanted a core and had none."""
    coreless_before_s: float = 0.0
    """The same before it was noticed."""
    lost: bool = False
    """Whether a box was taken away."""

    @property
    def rest_s(self) -> float:
        """None of these."""
        return max(0.0, self.whole_s - self.noticed_s - self.reading_s - self.coreless_s)

    @property
    def beside_s(self) -> float:
        """All but reading, the link's own time, and the computer's: what may take no longer than
        the detection of a lost box."""
        known_s = self.reading_s + self.handing_s + self.coreless_s + self.coreless_before_s
        return max(0.0, self.whole_s - known_s)

    @property
    def why_too_long(self) -> str | None:
        """What is wrong with it; None when nothing."""
        if self.lost and self.noticed_s - self.coreless_before_s > DETECTION_S + ALLOWANCE_S:
            return f"the loss was told after {self.noticed_s:.2f} s"
        stood = self.rest_s if self.lost else self.beside_s - DETECTION_S
        if stood > ALLOWANCE_S:
            return (
                f"stood still for {self.whole_s:.2f} s: {self.noticed_s:.2f} to be noticed, "
                f"{self.reading_s:.2f} to be read again, {self.handing_s:.2f} for the link, "
                f"{self.coreless_before_s + self.coreless_s:.2f} without a core"
            )
        return None


def pause_of(
    stream: Stream,
    fault_s: float,
    heard: Sequence[tuple[float, EngineEvent]],
    coreless_s: Callable[[float, float, Spans], float] = lambda _begin_s, _end_s, _but: 0.0,
    *,
    lost: bool = True,
) -> Pause:
    """The longest pause of an answer after a fault; `heard` has each event with its arrival.

    `coreless_s` gives how long the processes wanted a core between two times, but for some spans.
    """
    begin_s, end_s = stream.longest_gap(fault_s)
    begin_s = max(begin_s, fault_s)
    told_s = _first_told_s(stream.name, begin_s, end_s, heard)
    noticed_s = begin_s if told_s is None else told_s
    # Where a box is gone, what was read there is lost; else waiting for the prompts of others
    # and being read counts on each box where it was.
    from_s = noticed_s if lost else begin_s
    steps = [event.event for _, event in heard if isinstance(event, StepSeen)]
    boxes = _reading_boxes(stream.name, from_s, end_s, steps)
    spans = _spans(steps, boxes[-1:] if lost else boxes, from_s, end_s)
    return Pause(
        whole_s=end_s - begin_s,
        noticed_s=noticed_s - begin_s,
        reading_s=sum(end - begin for begin, end in spans),
        handing_s=_handing_s(heard, begin_s, end_s, spans),
        coreless_s=coreless_s(from_s, end_s, spans),
        coreless_before_s=coreless_s(begin_s, from_s, ()),
        lost=lost,
    )


def _spans(
    steps: Sequence[StepEvent], boxes: Sequence[str], begin_s: float, end_s: float
) -> list[tuple[float, float]]:
    """When any of these boxes computed, without gaps of nothing and counted once."""
    found: list[tuple[float, float]] = []
    for step in sorted(steps, key=lambda step: step.start_s):
        begin, end = max(step.start_s, begin_s), min(step.end_s, end_s)
        begin = max(begin, found[-1][1]) if found else begin
        if step.box in boxes and end > begin:
            found.append((begin, end))
    return found


def _handing_s(
    heard: Sequence[tuple[float, EngineEvent]], begin_s: float, end_s: float, but: Spans
) -> float:
    """The link's own time for what was handed over meanwhile; never more than that took."""
    found_s = 0.0
    for _, event in heard:
        if not isinstance(event, TransferSeen) or not event.event.committed:
            continue
        moved = event.event
        begin, end = max(moved.start_s, begin_s), min(moved.end_s, end_s)
        took_s = moved.end_s - moved.start_s
        if end <= begin or took_s <= 0:
            continue
        covered = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in but)
        share = max(0.0, end - begin - covered) / took_s
        found_s += min(share * took_s, share * moved.bytes / LINK_BYTES_PER_S)
    return min(found_s, end_s - begin_s)


def _first_told_s(
    name: str, begin_s: float, end_s: float, heard: Sequence[tuple[float, EngineEvent]]
) -> float | None:
    """When what this answer waited for was told; None when it waited for no such thing."""
    for _, event in heard:
        # As it was told: it is heard a moment later, maybe after the answer went on.
        if isinstance(event, WorkerLost):
            told_s = event.at_s
        elif isinstance(event, FaultSeen) and event.fault.sentence.startswith(f"{name}:"):
            told_s = event.fault.at_s
        else:
            continue
        if begin_s <= told_s <= end_s:
            return told_s
    return None


def _reading_boxes(name: str, from_s: float, end_s: float, steps: Sequence[StepEvent]) -> list[str]:
    """Which boxes read this answer's prompt (again) meanwhile, or wrote it; the last one last."""
    found: dict[str, None] = {}
    for step in steps:
        meanwhile = step.start_s < end_s and step.end_s > from_s
        if meanwhile and (
            name in step.decode or any(piece.request_id == name for piece in step.prefill)
        ):
            found.pop(step.box, None)
            found[step.box] = None
    return list(found)
