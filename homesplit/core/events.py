"""Everything that happens, as frozen values; `state.apply` is the only thing that reads them.

A run's events written as JSON lines and replayed draw every screen without a machine.
"""

from __future__ import annotations

import functools

import msgspec
from homesplit_engine.events import (
    EngineEvent,
    FaultSeen,
    ModeSwitched,
    RequestDone,
    StatusSeen,
    StepSeen,
    TransferSeen,
    WorkerBack,
    WorkerLost,
)
from homesplit_engine.words import Figures
from msgspec import Struct

from homesplit.core.brought import Brought
from homesplit.core.choices import Choices
from homesplit.core.deployment import Deployment, DeployPlan
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile, FoundBox
from homesplit.core.plan import Plan
from homesplit.core.plan_map import PlanMap
from homesplit.core.workload import LengthClass


class StageStarted(Struct, frozen=True, kw_only=True, tag=True):
    """A stage (`discover`, `probe`, `plan`, `deploy`, `serve`, `bench`, `compare`) began."""

    stage: str
    sentence: str


class Progress(Struct, frozen=True, kw_only=True, tag=True):
    """How far one piece of work is; `total` None when that isn't known."""

    stage: str
    step: str
    box: str | None = None
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    sentence: str = ""
    left_s: float | None = None


class StageEnded(Struct, frozen=True, kw_only=True, tag=True):
    """A stage ended in good order."""

    stage: str
    sentence: str


class StageFailed(Struct, frozen=True, kw_only=True, tag=True):
    """A stage failed: what happened, where, and what to do next."""

    stage: str
    what: str
    where: str | None = None
    do_next: str | None = None


class BoxFound(Struct, frozen=True, kw_only=True, tag=True):
    """A machine was seen, or is known better than before."""

    box: FoundBox


class BoxGone(Struct, frozen=True, kw_only=True, tag=True):
    """A machine said goodbye or is seen no more."""

    name: str


class BoxProbed(Struct, frozen=True, kw_only=True, tag=True):
    """A box was measured, or its saved profile was read."""

    profile: BoxProfile


class LinkProbed(Struct, frozen=True, kw_only=True, tag=True):
    """The link between two boxes was measured."""

    link: LinkProfile


class PlanMade(Struct, frozen=True, kw_only=True, tag=True):
    """The advice was worked out."""

    plan: Plan


class PlanMapped(Struct, frozen=True, kw_only=True, tag=True):
    """The advice elsewhere, as far as it is worked out; None when it begins anew."""

    map: PlanMap | None


class DeployPlanned(Struct, frozen=True, kw_only=True, tag=True):
    """What a deployment would change."""

    plan: DeployPlan


class DeploymentSeen(Struct, frozen=True, kw_only=True, tag=True):
    """A deployment as it stands now; None when there is none."""

    deployment: Deployment | None


class BroughtSeen(Struct, frozen=True, kw_only=True, tag=True):
    """What lies on the boxes that this desk brought something to."""

    boxes: tuple[Brought, ...]


class LoadStarted(Struct, frozen=True, kw_only=True, tag=True):
    """A load generator began."""

    workload: str
    rate_requests_per_s: float | None
    seconds: float | None
    classes: tuple[LengthClass, ...] = ()
    """The workload's prompt classes."""


class LoadEnded(Struct, frozen=True, kw_only=True, tag=True):
    """A load generator ended with these figures, as seen by the client."""

    workload: str
    figures: Figures


class LoadStopped(Struct, frozen=True, kw_only=True, tag=True):
    """The load was stopped before its time; there are no figures of a whole run."""


class CompareRun(Struct, frozen=True, kw_only=True, tag=True):
    """One mode of a comparison has been run once more."""

    mode: str
    prefill: str
    figures: Figures
    predicted: dict[str, float | None] | None = None
    repeats: int = 1


class CompareVerdict(Struct, frozen=True, kw_only=True, tag=True):
    """What a comparison found."""

    mode: str | None
    sentence: str
    identical_text: bool | None
    divergences: tuple[str, ...] = ()
    """A sentence for each mode whose hand-offs lose precision: how far its texts stray."""


class EntryWritten(Struct, frozen=True, kw_only=True, tag=True):
    """The notebook has a new entry."""

    id: str
    kind: str
    at: str
    sentence: str


class ChoiceMade(Struct, frozen=True, kw_only=True, tag=True):
    """The person chose something at a screen."""

    choices: Choices


Event = (
    StageStarted
    | Progress
    | StageEnded
    | StageFailed
    | BoxFound
    | BoxGone
    | BoxProbed
    | LinkProbed
    | PlanMade
    | PlanMapped
    | DeployPlanned
    | DeploymentSeen
    | BroughtSeen
    | EngineEvent
    | LoadStarted
    | LoadEnded
    | LoadStopped
    | CompareRun
    | CompareVerdict
    | EntryWritten
    | ChoiceMade
)

__all__ = [
    "EngineEvent",
    "FaultSeen",
    "ModeSwitched",
    "RequestDone",
    "StatusSeen",
    "StepSeen",
    "TransferSeen",
    "WorkerBack",
    "WorkerLost",
]
"""The engine's own, which readers of events find here as well; all others are declared above."""


@functools.cache
def _decoder() -> msgspec.json.Decoder[Event]:
    """Made with the first line: it takes as long as all the rest of this module."""
    return msgspec.json.Decoder(Event)


def to_line(event: Event) -> bytes:
    """One event as a JSON line without its newline."""
    return msgspec.json.encode(event)


def from_line(line: bytes | str) -> Event:
    """The event of one JSON line; raises msgspec.MsgspecError."""
    return _decoder().decode(line)
