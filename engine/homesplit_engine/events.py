"""What the router tells its watchers, one JSON object a line; the desk reads these very types."""

from __future__ import annotations

from msgspec import Struct

from homesplit_engine.records import (
    Fault,
    ModeSwitch,
    RequestRecord,
    StepEvent,
    TransferEvent,
    WorkerStatus,
)


class StepSeen(Struct, frozen=True, kw_only=True, tag=True):
    """An engine step; `offset_s` moves the box's clock to the router's (add it)."""

    event: StepEvent
    offset_s: float = 0.0


class TransferSeen(Struct, frozen=True, kw_only=True, tag=True):
    """A hand-off ended; `offset_s` moves the box's clock to the router's (add it)."""

    event: TransferEvent
    offset_s: float = 0.0


class RequestDone(Struct, frozen=True, kw_only=True, tag=True):
    """A request has ended, one way or another."""

    record: RequestRecord


class StatusSeen(Struct, frozen=True, kw_only=True, tag=True):
    """A worker's status."""

    status: WorkerStatus


class WorkerLost(Struct, frozen=True, kw_only=True, tag=True):
    """A worker no longer answers."""

    box: str
    at_s: float


class WorkerBack(Struct, frozen=True, kw_only=True, tag=True):
    """A worker answers (again)."""

    box: str
    at_s: float


class ModeSwitched(Struct, frozen=True, kw_only=True, tag=True):
    """The routing policy was changed."""

    switch: ModeSwitch


class FaultSeen(Struct, frozen=True, kw_only=True, tag=True):
    """A fault that was met."""

    fault: Fault


EngineEvent = (
    StepSeen
    | TransferSeen
    | RequestDone
    | StatusSeen
    | WorkerLost
    | WorkerBack
    | ModeSwitched
    | FaultSeen
)
