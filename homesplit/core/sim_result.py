"""What a simulated run tells: a record of each request, and whether too many have missed."""

from __future__ import annotations

from homesplit_engine.words import Timeline, judgement
from msgspec import Struct

from homesplit.core.sim_flight import Flight


class SimRecord(Struct, frozen=True, kw_only=True):
    """What became of one request in the model; None where a part did not happen."""

    timeline: Timeline
    queue_s: float | None
    prefill_s: float | None
    handoff_s: float | None
    handoff_exposed_s: float | None
    cached_tokens: int


class SimResult(Struct, frozen=True, kw_only=True):
    """All requests that were offered, and how long requests were offered."""

    records: tuple[SimRecord, ...]
    window_s: float
    hopeless: bool = False
    """Broken off because too many had missed already: then nothing but that is known."""


class Bound(Struct, frozen=True, kw_only=True):
    """A run is of no more interest once more than `most` are outside these targets."""

    ttft_s: float | None
    tpot_s: float | None
    most: float


class Tally:
    """Those that have ended."""

    def __init__(self, bound: Bound | None) -> None:
        self.ended: list[Flight] = []
        self.hopeless = False
        """Whether more have missed than the bound allows."""
        self._bound = bound
        self._missed = 0

    def add(self, flight: Flight) -> None:
        """One more has ended, which may have missed once too often."""
        self.ended.append(flight)
        bound = self._bound
        if bound is None or flight.outcome == "cancelled":
            return
        inside = judgement(
            _timeline(flight), ttft_target_s=bound.ttft_s, tpot_target_s=bound.tpot_s
        )
        self._missed += inside is False
        self.hopeless = self._missed > bound.most

    def result(self, window_s: float) -> SimResult:
        """The records of all of them, in the order in which they were planned."""
        ordered = sorted(self.ended, key=lambda flight: flight.offered.id)
        records = tuple(map(_record, ordered))
        return SimResult(records=records, window_s=window_s, hopeless=self.hopeless)


def _record(flight: Flight) -> SimRecord:
    return SimRecord(
        timeline=_timeline(flight),
        queue_s=flight.queue_s,
        prefill_s=flight.prefill_s,
        handoff_s=flight.handoff.total_s if flight.handoff else None,
        handoff_exposed_s=flight.handoff.exposed_s if flight.handoff else None,
        cached_tokens=flight.cached_tokens,
    )


def _timeline(flight: Flight) -> Timeline:
    return Timeline(
        request_id=str(flight.offered.id),
        outcome=flight.outcome or "failed",
        start_s=flight.sent_s,
        token_s=flight.told_s,
        prompt_tokens=flight.prompt_tokens,
        output_tokens=len(flight.told_s),
        class_name=flight.offered.class_,
        end_s=_left_s(flight),
    )


def _left_s(flight: Flight) -> float | None:
    """When the user gave up, of a request that was."""
    patience_s = flight.offered.cancel_after_s
    if flight.outcome != "cancelled" or patience_s is None:
        return None
    return flight.sent_s + patience_s
