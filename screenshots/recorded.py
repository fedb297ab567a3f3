"""Pictures of a recorded run: for each screen, the run up to the moment that shows it best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from homesplit.core import events
from homesplit.core.events import Event
from homesplit.core.state import RunState, apply

Recorded = Sequence[tuple[float, Event]]


class Moment(NamedTuple):
    """A picture's name, its screen, and how much of the run is to be shown."""

    name: str
    screen: str
    events: Recorded


Wanted = Callable[[RunState, Event], bool]


def _probed(state: RunState, event: Event) -> bool:
    measured = all(name in state.profiles for name in state.choices.boxes)
    return len(state.choices.boxes) == 2 and measured and bool(state.links)


def _planned(state: RunState, event: Event) -> bool:
    ended = isinstance(event, events.StageEnded) and event.stage == "plan"
    return state.plan is not None and (ended or isinstance(event, events.PlanMade))


def _deploying(state: RunState, event: Event) -> bool:
    """Both boxes are in the middle of something that is counted."""
    told = state.stage("deploy").progress
    midway = {p.box for p in told if p.box and p.total and 0.3 < p.done / p.total < 0.8}
    return isinstance(event, events.Progress) and event.stage == "deploy" and len(midway) == 2


def _in(mode: str, prefill: str | None = None) -> Wanted:
    """A request that ended while the load ran in this mode."""

    def wanted(state: RunState, event: Event) -> bool:
        setting = state.engine.setting
        return (
            isinstance(event, events.RequestDone)
            and setting is not None
            and setting.mode == mode
            and prefill in (None, setting.prefill)
            and event.record.mode == mode
            and event.record.outcome == "completed"
            and (event.record.served == "split") == (mode == "split")
            and not state.failures
            and state.load.running
            and state.stage("compare").status == "idle"
            and (mode != "split" or _handed_over(state))
        )

    return wanted


HANDED_OVER_S = 6.0
"""A picture of the split shows a hand-off that ended so recently."""


def _handed_over(state: RunState) -> bool:
    """Whether the strips show a hand-off."""
    engine = state.engine
    if not engine.transfers or engine.latest_s is None:
        return False
    last = engine.transfers[-1]
    return engine.latest_s - last.event.end_s - last.offset_s < HANDED_OVER_S


def _compared(state: RunState, event: Event) -> bool:
    ended = isinstance(event, events.StageEnded) and event.stage == "compare"
    return ended or isinstance(event, events.CompareRun | events.CompareVerdict)


def _anything(state: RunState, event: Event) -> bool:
    return bool(state.entries)


_WANTED: tuple[tuple[str, str, Wanted], ...] = (
    ("machines", "machines", _probed),
    ("plan", "plan", _planned),
    ("deploy", "deploy", _deploying),
    ("monitor-colocated", "monitor", _in("colocated", "whole")),
    ("monitor-colocated-chunked", "monitor", _in("colocated", "chunked")),
    ("monitor-replica", "monitor", _in("replica")),
    ("monitor-split", "monitor", _in("split")),
    ("compare", "compare", _compared),
    ("notebook", "notebook", _anything),
)


def moments(recorded: Recorded) -> Iterator[Moment]:
    """Each picture that this run can give, shown at its last moment of that kind."""
    last: dict[str, int] = {}
    state = RunState()
    for number, (_, event) in enumerate(recorded):
        state = apply(state, event)
        last.update({name: number for name, _, wanted in _WANTED if wanted(state, event)})
    for name, screen, _ in _WANTED:
        if name in last:
            yield Moment(name, screen, recorded[: last[name] + 1])
