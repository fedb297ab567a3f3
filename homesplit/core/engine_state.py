"""What the running boxes have told, and how their events are folded into it.

Everything that grows with time is a ring with a bound: a minute of a hundred requests a
second fits, and a day holds no more memory than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

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
from homesplit_engine.records import (
    Fault,
    ModeSetting,
    ModeSwitch,
    RequestRecord,
    WorkerStatus,
)
from homesplit_engine.words import Timeline, longest_gap_s, tpot_s, ttft_s, ttst_s
from msgspec import Struct, field
from msgspec.structs import replace

MAX_STEPS = 1500
MAX_TRANSFERS = 6000
MENDED = "mended"
"""The kind of a fault that tells the end of one that was made on purpose."""
MAX_RECORDS = 60
MAX_REQUESTS = 10_000
MAX_MARKS = 40

_T = TypeVar("_T")


class Done(Struct, frozen=True, kw_only=True):
    """A finished request, boiled down to what the charts need; times on the router's clock."""

    request_id: str
    at_s: float
    """When it ended, or was received if it never had a token."""
    received_s: float
    mode: str
    served: str
    outcome: str
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    ttst_s: float | None
    tpot_s: float | None
    longest_gap_s: float | None


class Engine(Struct, frozen=True, kw_only=True):
    """What the running boxes have told, newest last; times on the router's clock."""

    latest_s: float | None = None
    """The newest moment that any event spoke of."""
    first_s: float | None = None
    setting: ModeSetting | None = None
    steps: tuple[StepSeen, ...] = ()
    transfers: tuple[TransferSeen, ...] = ()
    records: tuple[RequestRecord, ...] = ()
    requests: tuple[Done, ...] = ()
    statuses: dict[str, WorkerStatus] = field(default_factory=dict[str, WorkerStatus])
    offsets: dict[str, float] = field(default_factory=dict[str, float])
    lost: tuple[str, ...] = ()
    switches: tuple[ModeSwitch, ...] = ()
    faults: tuple[Fault, ...] = ()
    total_steps: int = 0
    """All that were ever told, also those that the ring has dropped."""
    total_transfers: int = 0
    total_requests: int = 0
    total_handoffs: int = 0
    total_handoff_bytes: int = 0


def ring(items: tuple[_T, ...], new: Iterable[_T], bound: int) -> tuple[_T, ...]:
    """`items` with `new` at the end, the oldest dropped beyond `bound`."""
    longer = (*items, *new)
    return longer[-bound:] if len(longer) > bound else longer


def after(engine: Engine, told: Iterable[EngineEvent]) -> Engine:
    """The engine's state after these events, one after the other."""
    fold = _Fold(engine)
    for event in told:
        fold.take(event)
    return fold.made()


class _Fold:
    """Gathers what events add, so that a hundred of them make one new state and not a hundred."""

    def __init__(self, engine: Engine) -> None:
        self._before = engine
        self._steps: list[StepSeen] = []
        self._transfers: list[TransferSeen] = []
        self._records: list[RequestRecord] = []
        self._latest_s, self._first_s = engine.latest_s, engine.first_s
        self._offsets, self._statuses = dict(engine.offsets), dict(engine.statuses)
        self._lost, self._setting = set(engine.lost), engine.setting
        self._switches, self._faults = list(engine.switches), list(engine.faults)

    def take(self, event: EngineEvent) -> None:
        """One more event."""
        match event:
            case StepSeen(event=step, offset_s=offset_s):
                self._steps.append(event)
                self._offsets[step.box] = offset_s
                self._seen(step.end_s + offset_s)
            case TransferSeen(event=moved, offset_s=offset_s):
                self._transfers.append(event)
                self._seen(moved.end_s + offset_s)
            case RequestDone(record=record):
                self._records.append(record)
                self._seen(_ended_s(record))
            case StatusSeen(status=status):
                self._statuses[status.box] = status
                offset = self._offsets.get(status.box)
                if offset is not None:
                    self._seen(status.clock_s + offset)
            case _:
                self._take_seldom(event)

    def _take_seldom(self, event: EngineEvent) -> None:
        match event:
            case WorkerLost(box=box, at_s=at_s):
                self._lost.add(box)
                self._seen(at_s)
            case WorkerBack(box=box, at_s=at_s):
                self._lost.discard(box)
                self._seen(at_s)
            case ModeSwitched(switch=switch):
                # The desk that asked for it and the router's own stream both tell of a switch.
                if switch not in self._switches[-2:]:
                    self._switches.append(switch)
                self._setting = switch.setting
                self._seen(switch.at_s)
            case FaultSeen(fault=fault):
                # What lasts is told again to whoever begins to watch again.
                if fault not in self._faults[-MAX_MARKS:]:
                    self._faults.append(fault)
                self._seen(fault.at_s)
            case _:
                return

    def _seen(self, at_s: float) -> None:
        if self._latest_s is None or at_s > self._latest_s:
            self._latest_s = at_s
        if self._first_s is None:
            self._first_s = at_s

    def made(self) -> Engine:
        """The state with all of it."""
        before = self._before
        dones = [boiled_down(record) for record in self._records]
        moved = [one.event for one in self._transfers]
        return replace(
            before,
            latest_s=self._latest_s,
            first_s=self._first_s,
            setting=self._setting,
            steps=ring(before.steps, self._steps, MAX_STEPS),
            transfers=ring(before.transfers, self._transfers, MAX_TRANSFERS),
            records=ring(before.records, self._records, MAX_RECORDS),
            requests=ring(before.requests, dones, MAX_REQUESTS),
            statuses=self._statuses,
            offsets=self._offsets,
            lost=tuple(sorted(self._lost)),
            switches=tuple(self._switches[-MAX_MARKS:]),
            faults=tuple(self._faults[-MAX_MARKS:]),
            total_steps=before.total_steps + len(self._steps),
            total_transfers=before.total_transfers + len(self._transfers),
            total_requests=before.total_requests + len(dones),
            total_handoffs=before.total_handoffs + sum(one.committed for one in moved),
            total_handoff_bytes=before.total_handoff_bytes + sum(one.bytes for one in moved),
        )


def _ended_s(record: RequestRecord) -> float:
    return record.token_s[-1] if record.token_s else record.received_s


def boiled_down(record: RequestRecord) -> Done:
    """A request's record without its token times, in the measuring words."""
    line = Timeline(
        request_id=record.request_id,
        outcome=record.outcome,
        start_s=record.received_s,
        token_s=record.token_s,
        output_tokens=record.output_tokens,
    )
    return Done(
        request_id=record.request_id,
        at_s=_ended_s(record),
        received_s=record.received_s,
        mode=record.mode,
        served=record.served,
        outcome=record.outcome,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        ttft_s=ttft_s(line),
        ttst_s=ttst_s(line),
        tpot_s=tpot_s(line),
        longest_gap_s=longest_gap_s(line),
    )
