"""The server's side of a run: how requests were really served, what stalled them, energy."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from homesplit_engine.records import (
    ModeSwitch,
    RequestRecord,
    StepEvent,
    TransferEvent,
    WorkerStatus,
)
from homesplit_engine.words import Percentiles, percentiles
from msgspec import Struct, field
from msgspec.structs import replace

from homesplit.core import say
from homesplit.core.events import (
    Event,
    ModeSwitched,
    RequestDone,
    StatusSeen,
    StepSeen,
    TransferSeen,
)

CAUSES: tuple[str, ...] = ("prefill", "hand-off", "moved", "own step", "not seen")


WORTH_A_WORD_CORES = 0.1
"""From so much of a core on, other programs' load is told beside the figures."""


class ServerSide(Struct, frozen=True, kw_only=True):
    """What the router's own records say of the requests of one run that count.

    Energy, others' requests and the background are of the whole run.
    """

    requests: int
    """Records seen; fewer than offered where the event stream lost some."""
    served_as_asked: float | None
    """Share of `to_serve` that were served the way the mode says."""
    to_serve: int = 0
    """All of them but those that their own users gave up."""
    not_as_asked: dict[str, int] = field(default_factory=dict[str, int])
    """Those of `to_serve` that were not: `another way`, `refused`, `failed`."""
    served: dict[str, int]
    """How many were served in which way (`colocated`, `split`, `resumed`, `none`)."""
    handoffs: int
    handoff_bytes: int
    handoff_tokens: int
    cached_tokens: int
    moved: int
    """Requests that were moved to another box after a failure."""
    ttft_s: Percentiles
    """From receipt at the router to the first token leaving it."""
    queue_s: Percentiles
    prefill_s: Percentiles
    handoff_s: Percentiles
    handoff_exposed_s: Percentiles
    first_decode_s: Percentiles
    stall_causes: dict[str, int]
    """Gaps beyond the TPOT target by what the step timeline shows during them."""
    energy: Energy
    others: int = 0
    """Requests of others that ended meanwhile: load that is not the run's own."""
    background: dict[str, Background] = field(default_factory=lambda: dict[str, Background]())
    """By box, what other programs took of it meanwhile."""


class Background(Struct, frozen=True, kw_only=True):
    """Cores that programs other than homesplit took on one box during a run."""

    mean_cores: float | None
    most_cores: float | None
    why: str | None = None
    """Why it isn't known, None when it is."""


class Energy(Struct, frozen=True, kw_only=True):
    """Electric energy of all boxes during a run, or why it isn't known."""

    joules: float | None
    why: str | None = None
    by_box: dict[str, float] = field(default_factory=dict[str, float])
    """Mean power of each box that tells it, watts."""
    above_idle_joules: float | None = None
    """The same less what the boxes draw at rest, by their probes."""
    idle_why: str | None = None
    """Why the part at rest could not be taken off, None when it was."""


class Timed(Struct, frozen=True, kw_only=True):
    """Everything the event stream told during one run, on the router's clock."""

    records: tuple[RequestRecord, ...] = ()
    steps: tuple[StepEvent, ...] = ()
    transfers: tuple[TransferEvent, ...] = ()
    statuses: tuple[WorkerStatus, ...] = ()
    switches: tuple[ModeSwitch, ...] = ()
    others: int = 0
    seen_s: dict[str, float] = field(default_factory=dict[str, float])
    """By request, how long its first token took for whoever asked; where somebody told."""


def gather(events: Sequence[Event], run_id: str) -> Timed:
    """Sort a run's events; records are those of this run's requests alone."""
    prefix = f"{run_id}-"
    return Timed(
        records=tuple(
            e.record
            for e in events
            if isinstance(e, RequestDone) and e.record.request_id.startswith(prefix)
        ),
        steps=tuple(_moved_step(e) for e in events if isinstance(e, StepSeen)),
        transfers=tuple(_moved_transfer(e) for e in events if isinstance(e, TransferSeen)),
        statuses=tuple(e.status for e in events if isinstance(e, StatusSeen)),
        switches=tuple(e.switch for e in events if isinstance(e, ModeSwitched)),
        others=sum(
            isinstance(e, RequestDone) and not e.record.request_id.startswith(prefix)
            for e in events
        ),
    )


def _moved_step(seen: StepSeen) -> StepEvent:
    event, offset_s = seen.event, seen.offset_s
    return replace(event, start_s=event.start_s + offset_s, end_s=event.end_s + offset_s)


def _moved_transfer(seen: TransferSeen) -> TransferEvent:
    event, offset_s = seen.event, seen.offset_s
    return replace(event, start_s=event.start_s + offset_s, end_s=event.end_s + offset_s)


def server_side(
    timed: Timed,
    *,
    tpot_target_s: float | None,
    idle_w: Mapping[str, float] | None = None,
    counted: Collection[str] | None = None,
) -> ServerSide | None:
    """The server's figures; None when the router told of no request of this run.

    `idle_w` is the power at rest of each box for which it is known, watts. `counted` are the ids
    of the requests that count: those of warm-up and drain are left out here too. None: all are.
    """
    if not timed.records:
        return None
    records = [r for r in timed.records if counted is None or r.request_id in counted]
    done = [r for r in records if r.outcome == "completed"]
    to_serve = sum(r.outcome != "cancelled" for r in records)
    missed = not_as_asked(records)
    return ServerSide(
        requests=len(records),
        served_as_asked=(to_serve - sum(missed.values())) / to_serve if to_serve else None,
        to_serve=to_serve,
        not_as_asked=missed,
        served={way: sum(r.served == way for r in records) for way in _ways(records)},
        handoffs=sum(bool(r.handoff_bytes) for r in records),
        handoff_bytes=sum(r.handoff_bytes or 0 for r in records),
        handoff_tokens=sum(r.handoff_tokens or 0 for r in records),
        cached_tokens=sum(r.cached_tokens for r in records),
        moved=sum(r.resubmitted > 0 for r in records),
        ttft_s=percentiles(r.token_s[0] - r.received_s if r.token_s else None for r in done),
        queue_s=percentiles(r.queue_s for r in done),
        prefill_s=percentiles(r.prefill_s for r in done),
        handoff_s=percentiles(r.handoff_s for r in done),
        handoff_exposed_s=percentiles(r.handoff_exposed_s for r in done),
        first_decode_s=percentiles(r.first_decode_s for r in done),
        stall_causes=stall_causes(replace(timed, records=tuple(records)), tpot_target_s),
        energy=energy(timed.statuses, idle_w=idle_w),
        others=timed.others,
        background=background(timed.statuses),
    )


def background(statuses: Sequence[WorkerStatus]) -> dict[str, Background]:
    """What other programs took of each box, from its own readings."""
    found: dict[str, Background] = {}
    for box in sorted({s.box for s in statuses}):
        own = [s for s in statuses if s.box == box]
        cores = [s.others_cores for s in own if s.others_cores is not None]
        why = next((s.others_why for s in reversed(own) if s.others_why), "the box told nothing")
        found[box] = Background(
            mean_cores=sum(cores) / len(cores) if cores else None,
            most_cores=max(cores, default=None),
            why=None if cores else why,
        )
    return found


def background_words(box: str, seen: Background) -> str | None:
    """The sentence that a reader of the figures needs, None where the box was quiet."""
    if seen.mean_cores is None or seen.most_cores is None:
        return f"{box}: whether other programs ran beside is not known: {seen.why}"
    if seen.mean_cores < WORTH_A_WORD_CORES:
        return None
    return (
        f"{box}: other programs took {seen.mean_cores:.1f} cores on average, "
        f"{seen.most_cores:.1f} at the most"
    )


def _ways(records: Sequence[RequestRecord]) -> list[str]:
    return sorted({r.served for r in records})


def served_as_asked(record: RequestRecord) -> bool:
    """Whether a request was served the way its mode says: no fallback, no move.

    In `split` the hand-off must have happened; in `auto` any planned way is right. A prompt
    whose KV the decode box held already needs no hand-off.
    """
    match record.mode:
        case "split":
            return record.served == "split"
        case "colocated" | "replica":
            return record.served == "colocated"
        case "auto":
            return record.served in ("colocated", "split")


def not_as_asked(records: Sequence[RequestRecord]) -> dict[str, int]:
    """How many were not served the way the mode says, by what became of them.

    Who gave its request up itself is not among them.
    """
    became = {"completed": "another way", "rejected": "refused", "failed": "failed"}
    told = [
        became[r.outcome]
        for r in records
        if r.outcome in became and not (r.outcome == "completed" and served_as_asked(r))
    ]
    return {what: told.count(what) for what in became.values() if what in told}


def as_asked_words(to_serve: int, missed: Mapping[str, int]) -> str:
    """`17 of 20 requests were served the way the mode says (1 another way, 2 refused)`."""
    verb = "was" if to_serve == 1 else "were"
    said = f"{to_serve - sum(missed.values())} of {say.counted(to_serve, 'request')} {verb} served"
    how = ", ".join(f"{count} {what}" for what, count in missed.items())
    return f"{said} the way the mode says{f' ({how})' if how else ''}"


def stall_causes(timed: Timed, tpot_target_s: float | None) -> dict[str, int]:
    """Count gaps beyond the target by what happened on the decode box meanwhile.

    `prefill`: a step that read somebody's prompt overlaps the gap; `hand-off`: this request's
    own KV was still on its way; `moved`: the request changed boxes; `own step`: the box only
    decoded, too slowly; `not seen`: no step event covers the gap.
    """
    if tpot_target_s is None:
        return {}
    counts = dict.fromkeys(CAUSES, 0)
    steps = sorted(timed.steps, key=_end)
    for record in timed.records:
        times = record.token_s
        for earlier, later in itertools.pairwise(times):
            if later - earlier > tpot_target_s:
                counts[_cause(record, earlier, later, steps, timed.transfers)] += 1
    return {cause: count for cause, count in counts.items() if count}


def _end(step: StepEvent) -> float:
    return step.end_s


def _cause(
    record: RequestRecord,
    earlier: float,
    later: float,
    steps: Sequence[StepEvent],
    transfers: Sequence[TransferEvent],
) -> str:
    own = [t for t in transfers if t.request_id == record.request_id]
    if any(t.start_s < later and t.end_s > earlier for t in own):
        return "hand-off"
    if record.resubmitted:
        return "moved"
    boxes = (record.decode_box, record.prefill_box)
    meanwhile = [
        s for s in _overlapping(steps, earlier, later) if s.box in boxes and s.start_s < later
    ]
    if any(piece.request_id != record.request_id for s in meanwhile for piece in s.prefill):
        return "prefill"
    return "own step" if meanwhile else "not seen"


def _overlapping(steps: Sequence[StepEvent], earlier: float, later: float) -> list[StepEvent]:
    """Steps (sorted by end) that run between the two moments; a binary search finds the first."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if steps[middle].end_s <= earlier:
            low = middle + 1
        else:
            high = middle
    found: list[StepEvent] = []
    for step in steps[low:]:
        found.append(step)
        if step.end_s >= later and len(found) > 8:
            break
    return found


def energy(
    statuses: Sequence[WorkerStatus], *, idle_w: Mapping[str, float] | None = None
) -> Energy:
    """Energy by the trapezium rule over each box's own power readings, whole and above idle."""
    boxes = sorted({s.box for s in statuses})
    if not boxes:
        return Energy(joules=None, why="no box told its status")
    total, at_rest, watts = 0.0, 0.0, dict[str, float]()
    known = idle_w or {}
    for box in boxes:
        told = [s for s in statuses if s.box == box and s.power_w is not None]
        if len(told) < 2:
            why = next((s.power_why for s in statuses if s.box == box and s.power_why), None)
            return Energy(joules=None, why=f"{box}: {why or 'no power reading'}", by_box=watts)
        joules = _trapezium(told)
        span_s = told[-1].clock_s - told[0].clock_s
        total += joules
        at_rest += known.get(box, 0.0) * span_s
        watts[box] = joules / span_s if span_s > 0 else told[0].power_w or 0.0
    lacking = [box for box in boxes if box not in known]
    if lacking:
        why = f"the power at rest of {' and '.join(lacking)} is not known"
        return Energy(joules=total, by_box=watts, idle_why=why)
    return Energy(joules=total, by_box=watts, above_idle_joules=total - at_rest)


def _trapezium(told: Sequence[WorkerStatus]) -> float:
    pairs = itertools.pairwise(told)
    return sum(
        ((a.power_w or 0.0) + (b.power_w or 0.0)) / 2 * (b.clock_s - a.clock_s) for a, b in pairs
    )
