"""How long an answer stood still, and what it waited for: to be noticed, to be read again.

All processes are on one computer, so the steps' times and the clients' are one clock's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from homesplit_engine.events import EngineEvent, FaultSeen, StepSeen, WorkerLost
from homesplit_engine.records import StepEvent

from tests.lab.matrix.stand import DETECTION_S
from tests.lab.matrix.traffic import Stream

ALLOWANCE_S = 0.5
"""For messages and threads around the steps, beside the time in which the processes wanted a core
and had none, which is measured."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The longest time without a token, in its parts."""

    whole_s: float
    noticed_s: float
    """From the fault until the router told of a loss."""
    reading_s: float
    """From then on: steps of the box that read the prompt and the tokens so far again. Whatever
    else it had to read first, for those who had lost their box as well, is in them."""
    coreless_s: float = 0.0
    """From then on: how long router and workers wanted a core and had none."""

    @property
    def rest_s(self) -> float:
        """Neither of both."""
        return max(0.0, self.whole_s - self.noticed_s - self.reading_s)

    @property
    def why_too_long(self) -> str | None:
        """What is wrong with it; None when nothing."""
        if self.noticed_s > DETECTION_S + ALLOWANCE_S:
            return f"the loss was told after {self.noticed_s:.2f} s"
        if self.rest_s > ALLOWANCE_S + self.coreless_s:
            return (
                f"stood still for {self.whole_s:.2f} s: {self.noticed_s:.2f} to be noticed, "
                f"{self.reading_s:.2f} to be read again, {self.coreless_s:.2f} without a core"
            )
        return None


def pause_of(
    stream: Stream,
    fault_s: float,
    heard: Sequence[tuple[float, EngineEvent]],
    coreless_s: Callable[[float, float], float] = lambda _begin_s, _end_s: 0.0,
) -> Pause:
    """The longest pause of an answer after a fault; `heard` has each event with its arrival."""
    begin_s, end_s = stream.longest_gap(fault_s)
    begin_s = max(begin_s, fault_s)
    told_s = _first_told_s(stream.name, begin_s, end_s, heard)
    from_s = begin_s if told_s is None else told_s
    steps = [event.event for _, event in heard if isinstance(event, StepSeen)]
    box = _reading_box(stream.name, from_s, end_s, steps)
    return Pause(
        whole_s=end_s - begin_s,
        noticed_s=from_s - begin_s,
        reading_s=sum(
            max(0.0, min(step.end_s, end_s) - max(step.start_s, from_s))
            for step in steps
            if step.box == box
        ),
        coreless_s=coreless_s(from_s, end_s),
    )


def _first_told_s(
    name: str, begin_s: float, end_s: float, heard: Sequence[tuple[float, EngineEvent]]
) -> float | None:
    """When the loss that this answer waited for was told; None when it waited for none."""
    for heard_s, event in heard:
        loss = isinstance(event, WorkerLost)
        own = isinstance(event, FaultSeen) and event.fault.sentence.startswith(f"{name}:")
        if (loss or own) and begin_s <= heard_s <= end_s:
            return heard_s
    return None


def _reading_box(name: str, from_s: float, end_s: float, steps: Sequence[StepEvent]) -> str | None:
    """Which box read this answer's prompt (again) meanwhile, or wrote it."""
    for step in reversed(steps):
        meanwhile = step.start_s < end_s and step.end_s > from_s
        if meanwhile and (
            name in step.decode or any(piece.request_id == name for piece in step.prefill)
        ):
            return step.box
    return None
