"""How well the strips of Monitor show, at a moment of a recorded run, what a mode does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from homesplit.core import events
from homesplit.core.events import Event
from homesplit.core.state import RunState
from homesplit.view import monitor, stalls
from homesplit.view.watch import Stall, Step, Watch, moved_transfers

WINDOW_S = 10.0
"""What the strips show."""
EDGE_S = 1.5
"""What is to be seen whole stays so far from the strips' ends."""
SETTLED_S = 20.0
"""So long after a switch the figures are of the new mode."""
STALLED = 10.0
"""How many steps beside a hand-off a second of waiting is worth, against."""


class Strips(NamedTuple):
    """What is to be seen at one moment."""

    since_s: float
    now_s: float
    steps: tuple[tuple[str, Step], ...]
    handoffs: tuple[tuple[float, float], ...]
    stalls: tuple[Stall, ...]
    cause: str
    """Why the answers of the newest stall waited."""

    @property
    def stalled_s(self) -> float:
        """Seconds of all stalls."""
        return sum(stall.length_s for stall in self.stalls)

    def whole(self, begin_s: float, end_s: float) -> bool:
        """Whether something is to be seen from its beginning to its end."""
        return begin_s > self.since_s + EDGE_S and end_s < self.now_s - EDGE_S


def a_prompt_stops_answers(strips: Strips) -> float:
    """Prompts read whole: the newest stall is due to one, and both are seen whole."""
    newest = strips.stalls[-1] if strips.stalls else None
    if newest is None or not strips.whole(newest.start_s, newest.end_s):
        return -1.0
    if "was reading a prompt" not in strips.cause:
        return -1.0
    return newest.length_s * len(newest.waits)


def chunks_go_beside_answers(strips: Strips) -> float:
    """Chunked prefill: steps that read and write at once."""
    mixed = sum(bool(step.reads and step.writes) for _, step in strips.steps)
    return mixed - STALLED * strips.stalled_s


def both_write(strips: Strips) -> float:
    """Replica: how many steps of the box that wrote less there are to be seen."""
    boxes = {box for box, _ in strips.steps}
    counts = [sum(b == box and step.writes > 0 for b, step in strips.steps) for box in boxes]
    return float(min(counts)) if len(counts) > 1 else -1.0


def answers_go_on_beside_a_handoff(strips: Strips) -> float:
    """Split: steps that write while a hand-off, seen whole, is on its way."""
    seen = [moved for moved in strips.handoffs if strips.whole(*moved)]
    beside = sum(
        step.writes > 0 and any(step.end_s > begin and step.start_s < end for begin, end in seen)
        for _, step in strips.steps
    )
    return beside - STALLED * strips.stalled_s


class Lesson:
    """The score of each moment of a run under load in one mode, None at every other."""

    def __init__(
        self, score: Callable[[Strips], float], mode: str, prefill: str | None = None
    ) -> None:
        self._score, self._mode, self._prefill = score, mode, prefill
        self._watch = Watch()

    def __call__(self, state: RunState, event: Event) -> float | None:
        """The score after this event."""
        if not isinstance(event, events.StepSeen):
            return None
        self._watch.take(state.engine, state.choices.targets.tpot_s)
        if not self._is_under_load(state):
            return None
        return self._score(self._strips(state))

    def _is_under_load(self, state: RunState) -> bool:
        engine, setting = state.engine, state.engine.setting
        if setting is None or not engine.switches or engine.latest_s is None:
            return False
        return (
            setting.mode == self._mode
            and self._prefill in (None, setting.prefill)
            and engine.latest_s - engine.switches[-1].at_s > SETTLED_S
            and state.load.running
            and state.stage("compare").status == "idle"
            and not state.failures
        )

    def _strips(self, state: RunState) -> Strips:
        engine, now_s = state.engine, state.engine.latest_s or 0.0
        since_s = now_s - WINDOW_S
        found = tuple(self._watch.stalls_since(since_s, now_s))
        return Strips(
            since_s=since_s,
            now_s=now_s,
            steps=tuple(
                (box, step)
                for box in monitor.box_names(state)
                for step in self._watch.steps_since(box, since_s)
            ),
            handoffs=tuple((begin, end) for _, begin, end in moved_transfers(engine, since_s)),
            stalls=found,
            cause=stalls.explained(found[-1], self._watch, engine)[1] if found else "",
        )
