"""Pictures of a recorded run: for each screen, the run up to the moment that shows it best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from homesplit.core import events
from homesplit.core.events import Event
from homesplit.core.state import RunState, apply
from screenshots.lessons import (
    Lesson,
    a_prompt_stops_answers,
    answers_go_on_beside_a_handoff,
    both_write,
    chunks_go_beside_answers,
)

Recorded = Sequence[tuple[float, Event]]


class Moment(NamedTuple):
    """A picture's name, its screen, and how much of the run is to be shown."""

    name: str
    screen: str
    events: Recorded


Score = Callable[[RunState, Event], float | None]
"""How well a moment shows what a picture is for; None when it can't."""


def _when(wanted: Callable[[RunState, Event], bool]) -> Score:
    """Moments of a kind that are all alike."""
    return lambda state, event: 0.0 if wanted(state, event) else None


def _probed(state: RunState, event: Event) -> bool:
    measured = all(name in state.profiles for name in state.choices.boxes)
    return len(state.choices.boxes) == 2 and measured and bool(state.links) and state.plan is None


def _planned(state: RunState, event: Event) -> bool:
    ended = isinstance(event, events.StageEnded) and event.stage == "plan"
    return state.plan is not None and (ended or isinstance(event, events.PlanMade))


def _deploying(state: RunState, event: Event) -> bool:
    """Both boxes are in the middle of something that is counted."""
    told = state.stage("deploy").progress
    midway = {p.box for p in told if p.box and p.total and 0.3 < p.done / p.total < 0.8}
    return isinstance(event, events.Progress) and event.stage == "deploy" and len(midway) == 2


def _compared(state: RunState, event: Event) -> bool:
    ended = isinstance(event, events.StageEnded) and event.stage == "compare"
    return ended or isinstance(event, events.CompareRun | events.CompareVerdict)


def _anything(state: RunState, event: Event) -> bool:
    return bool(state.entries) and not state.failures


def _wanted() -> tuple[tuple[str, str, Score], ...]:
    """Each picture's name, its screen, and what makes a good one."""
    whole = Lesson(a_prompt_stops_answers, "colocated", "whole")
    chunked = Lesson(chunks_go_beside_answers, "colocated", "chunked")
    return (
        ("machines", "machines", _when(_probed)),
        ("plan", "plan", _when(_planned)),
        ("deploy", "deploy", _when(_deploying)),
        ("monitor-colocated", "monitor", whole),
        ("monitor-colocated-chunked", "monitor", chunked),
        ("monitor-replica", "monitor", Lesson(both_write, "replica")),
        ("monitor-split", "monitor", Lesson(answers_go_on_beside_a_handoff, "split")),
        ("compare", "compare", _when(_compared)),
        ("notebook", "notebook", _when(_anything)),
    )


def moments(recorded: Recorded) -> Iterator[Moment]:
    """Each picture that this run can give, at its best moment, the last of those alike."""
    wanted = _wanted()
    best: dict[str, tuple[float, int]] = {}
    state = RunState()
    for number, (_, event) in enumerate(recorded):
        state = apply(state, event)
        for name, _, score in wanted:
            found = score(state, event)
            if found is not None and (name not in best or found >= best[name][0]):
                best[name] = found, number
    for name, screen, _ in wanted:
        if name in best:
            yield Moment(name, screen, recorded[: best[name][1] + 1])
