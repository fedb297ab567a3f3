"""The state that every screen draws, and `apply`, the only function that makes a new one.

Everything that grows with time is a ring with a bound, so that a day of monitoring holds
no more memory than its first minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TypeGuard, TypeVar, get_args

from homesplit_engine.events import EngineEvent
from homesplit_engine.words import Figures
from msgspec import Struct, field
from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.brought import Brought
from homesplit.core.choices import Choices
from homesplit.core.deployment import Deployment, DeployPlan
from homesplit.core.engine_state import MAX_STEPS, Done, Engine, after, ring
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile, FoundBox
from homesplit.core.plan import Plan
from homesplit.core.plan_map import PlanMap
from homesplit.core.workload import LengthClass

__all__ = [
    "MAX_STEPS",
    "Done",
    "Engine",
    "Load",
    "LogLine",
    "RunState",
    "StageState",
    "apply",
    "apply_all",
    "link_between",
]

MAX_LOG = 400
MAX_SMALL = 40
_OF_ENGINE = frozenset(get_args(EngineEvent))

_T = TypeVar("_T")


def _ring(items: tuple[_T, ...], item: _T, bound: int) -> tuple[_T, ...]:
    """`items` with `item` at the end, the oldest dropped beyond `bound`."""
    return ring(items, (item,), bound)


class LogLine(Struct, frozen=True, kw_only=True):
    """One line of what happened, kept for the log pane."""

    stage: str
    box: str | None
    text: str
    bad: bool = False


class StageState(Struct, frozen=True, kw_only=True):
    """How one stage stands: `idle`, `running`, `done` or `failed`, and its latest sentence."""

    status: str = "idle"
    sentence: str = ""
    progress: tuple[events.Progress, ...] = ()
    """The latest of each (box, step) of the run in progress, in the order they began."""
    failure: events.StageFailed | None = None


class Load(Struct, frozen=True, kw_only=True):
    """The load generator as it stands."""

    running: bool = False
    workload: str = ""
    rate_requests_per_s: float | None = None
    seconds: float | None = None
    classes: tuple[LengthClass, ...] = ()
    last: Figures | None = None


class RunState(Struct, frozen=True, kw_only=True):
    """Everything known in this session."""

    stages: dict[str, StageState] = field(default_factory=dict[str, StageState])
    boxes: tuple[FoundBox, ...] = ()
    profiles: dict[str, BoxProfile] = field(default_factory=dict[str, BoxProfile])
    links: tuple[LinkProfile, ...] = ()
    choices: Choices = field(default_factory=Choices)
    plan: Plan | None = None
    plan_map: PlanMap | None = None
    deploy_plan: DeployPlan | None = None
    deployment: Deployment | None = None
    brought: tuple[Brought, ...] = ()
    """What lay on each box when it was last looked at."""
    engine: Engine = field(default_factory=Engine)
    load: Load = field(default_factory=Load)
    compared: tuple[events.CompareRun, ...] = ()
    verdict: events.CompareVerdict | None = None
    entries: tuple[events.EntryWritten, ...] = ()
    failures: tuple[events.StageFailed, ...] = ()
    log: tuple[LogLine, ...] = ()

    def stage(self, name: str) -> StageState:
        """One stage's state; a stage that never began is idle."""
        return self.stages.get(name, StageState())


def link_between(state: RunState, a: str, b: str) -> LinkProfile | None:
    """The newest link profile between two boxes, whichever way round it was measured."""
    ends = {a, b}
    return next((link for link in reversed(state.links) if {link.a, link.b} == ends), None)


def apply_all(state: RunState, told: Iterable[events.Event]) -> RunState:
    """The state after several events, as `apply` one by one, with less work for the engine's."""
    for of_engine, run in groupby(told, is_of_engine):
        if of_engine:
            engine = after(state.engine, (event for event in run if is_of_engine(event)))
            state = replace(state, engine=engine)
        else:
            for event in run:
                state = apply(state, event)
    return state


def is_of_engine(event: events.Event) -> TypeGuard[EngineEvent]:
    """Whether the running boxes told this event."""
    return type(event) in _OF_ENGINE


def apply(state: RunState, event: events.Event) -> RunState:
    """The state after `event`; the only way a state comes to be."""
    match event:
        case events.StageStarted():
            return _stage_started(state, event)
        case events.Progress():
            return _progress(state, event)
        case events.StageEnded():
            return _stage_ended(state, event)
        case events.StageFailed():
            return _stage_failed(state, event)
        case events.BoxFound(box=box):
            return _box_found(state, box)
        case events.BoxGone(name=name):
            return replace(state, boxes=tuple(box for box in state.boxes if box.name != name))
        case events.BoxProbed(profile=profile):
            return replace(state, profiles={**state.profiles, profile.name: profile})
        case events.LinkProbed(link=link):
            return _link_probed(state, link)
        case events.ChoiceMade(choices=choices):
            return replace(state, choices=choices)
        case events.PlanMade(plan=plan):
            return replace(state, plan=plan)
        case events.PlanMapped(map=plan_map):
            return replace(state, plan_map=plan_map)
        case events.DeployPlanned(plan=plan):
            return replace(state, deploy_plan=plan)
        case events.DeploymentSeen(deployment=deployment):
            return _deployment_seen(state, deployment)
        case events.BroughtSeen(boxes=boxes):
            return replace(state, brought=boxes)
        case events.LoadStarted():
            return _load_started(state, event)
        case events.LoadEnded():
            return _load_ended(state, event)
        case events.LoadStopped():
            return replace(state, load=replace(state.load, running=False))
        case events.CompareRun():
            return _compare_run(state, event)
        case events.CompareVerdict():
            return replace(state, verdict=event)
        case events.EntryWritten():
            return _entry_written(state, event)
        case _:
            return replace(state, engine=after(state.engine, (event,)))


# ------------------------------------------------------------------------------ stages


def _with_stage(state: RunState, name: str, stage: StageState, line: LogLine | None) -> RunState:
    log = state.log if line is None else _ring(state.log, line, MAX_LOG)
    return replace(state, stages={**state.stages, name: stage}, log=log)


def _stage_started(state: RunState, event: events.StageStarted) -> RunState:
    line = LogLine(stage=event.stage, box=None, text=event.sentence)
    stage = StageState(status="running", sentence=event.sentence)
    fresh = _with_stage(state, event.stage, stage, line)
    # What it failed of before is being tried again; the log still has it.
    told = tuple(one for one in state.failures if one.stage != event.stage)
    fresh = replace(fresh, failures=told)
    # A comparison tells several beginnings (a mode, the text check); only the first is anew.
    if event.stage == "compare" and state.stage("compare").status != "running":
        return replace(fresh, compared=(), verdict=None)
    return fresh


def _progress(state: RunState, event: events.Progress) -> RunState:
    stage = state.stage(event.stage)
    same = next(
        (n for n, p in enumerate(stage.progress) if (p.box, p.step) == (event.box, event.step)),
        None,
    )
    if same is None:
        progress = _ring(stage.progress, event, MAX_SMALL)
        line = LogLine(stage=event.stage, box=event.box, text=event.sentence or event.step)
    else:
        told = stage.progress[same].sentence
        # A counted step shows how far it is by itself; only its end is worth a line.
        counting = event.total is not None and event.done < event.total
        progress = (*stage.progress[:same], event, *stage.progress[same + 1 :])
        line = (
            LogLine(stage=event.stage, box=event.box, text=event.sentence)
            if event.sentence and event.sentence != told and not counting
            else None
        )
    status = stage.status if stage.status != "idle" else "running"
    return _with_stage(state, event.stage, replace(stage, status=status, progress=progress), line)


def _stage_ended(state: RunState, event: events.StageEnded) -> RunState:
    line = LogLine(stage=event.stage, box=None, text=event.sentence)
    before = state.stage(event.stage)
    stage = StageState(status="done", sentence=event.sentence, progress=before.progress)
    return _with_stage(state, event.stage, stage, line)


def _stage_failed(state: RunState, event: events.StageFailed) -> RunState:
    line = LogLine(stage=event.stage, box=event.where, text=event.what, bad=True)
    before = state.stage(event.stage)
    stage = StageState(
        status="failed", sentence=event.what, progress=before.progress, failure=event
    )
    failed = _with_stage(state, event.stage, stage, line)
    return replace(failed, failures=_ring(state.failures, event, MAX_SMALL))


# ---------------------------------------------------------------------------- machines


def _box_found(state: RunState, box: FoundBox) -> RunState:
    if any(known.name == box.name for known in state.boxes):
        boxes = tuple(box if known.name == box.name else known for known in state.boxes)
    else:
        boxes = tuple(sorted((*state.boxes, box), key=_box_order))
    return replace(state, boxes=boxes)


def _box_order(box: FoundBox) -> tuple[bool, bool, str]:
    """Usable ones first, this machine last among them, then by name."""
    return (not box.usable, box.this_machine, box.name)


def _link_probed(state: RunState, link: LinkProfile) -> RunState:
    others = tuple(known for known in state.links if {known.a, known.b} != {link.a, link.b})
    return replace(state, links=_ring(others, link, MAX_SMALL))


# ------------------------------------------------------- deployment, load, comparison


def _deployment_seen(state: RunState, deployment: Deployment | None) -> RunState:
    if deployment is None:
        return replace(state, deployment=None)
    new = state.deployment is None or state.deployment.id != deployment.id
    engine = Engine() if new else state.engine
    if engine.setting is None:
        engine = replace(engine, setting=deployment.setting)
    return replace(state, deployment=deployment, engine=engine)


def _load_started(state: RunState, event: events.LoadStarted) -> RunState:
    load = Load(
        running=True,
        workload=event.workload,
        rate_requests_per_s=event.rate_requests_per_s,
        seconds=event.seconds,
        classes=event.classes,
        last=state.load.last,
    )
    return replace(state, load=load)


def _load_ended(state: RunState, event: events.LoadEnded) -> RunState:
    return replace(state, load=replace(state.load, running=False, last=event.figures))


def _compare_run(state: RunState, event: events.CompareRun) -> RunState:
    key = (event.mode, event.prefill)
    kept = tuple(run for run in state.compared if (run.mode, run.prefill) != key)
    if len(kept) == len(state.compared):
        return replace(state, compared=(*state.compared, event))
    same = tuple(event if (r.mode, r.prefill) == key else r for r in state.compared)
    return replace(state, compared=same)


def _entry_written(state: RunState, event: events.EntryWritten) -> RunState:
    others = tuple(entry for entry in state.entries if entry.id != event.id)
    return replace(state, entries=_ring(others, event, 500))
