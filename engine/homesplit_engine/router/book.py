"""Keeps the record of every request that has ended, and tells it to watchers and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque

import msgspec

from homesplit_engine.events import RequestDone
from homesplit_engine.records import Outcome, RequestRecord
from homesplit_engine.router.board import Board
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.feed import Feed
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.rates import Rates
from homesplit_engine.router.stalls import StepMemory, stall_causes

KEPT_RECORDS, KEPT_BYTES = 10_000, 8 * 2**20
"""Records kept at most, and what all of them may take: 5,000 of answers of 110 tokens."""
LATE_REPORT_S = 1.0
"""How long a finished request's record waits for the sender's account of its hand-off."""


class Book:
    """The last records, packed (a token's time takes 9 bytes so, and 32 as an object)."""

    def __init__(
        self,
        feed: Feed,
        metrics: Metrics,
        steps: StepMemory,
        board: Board,
        rates: Rates,
        tpot_target_s: float | None,
    ) -> None:
        self._packed: deque[bytes] = deque()
        """Newest at the end."""
        self._bytes = 0
        self.recorded = 0
        """Records ever made: the ring holds the last of them."""
        self._feed = feed
        self._metrics = metrics
        self._steps = steps
        self._board = board
        self._rates = rates
        self._tpot_target_s = tpot_target_s
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def oldest(self) -> int:
        """The number of the oldest record that is still kept."""
        return self.recorded - len(self._packed)

    def page(self, since: int, most: int) -> list[RequestRecord]:
        """At most so many of the records that are kept, from number `since` on, oldest first."""
        begin = max(0, since - self.oldest)
        return [
            msgspec.msgpack.decode(raw, type=RequestRecord)
            for raw in itertools.islice(self._packed, begin, begin + most)
        ]

    def close(self) -> None:
        """Wait for no more accounts."""
        for task in list(self._closing):
            task.cancel()

    def enter(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        """Record now, or a little later when the hand-off's account is still on its way."""
        if outcome == "completed" and flight.story.awaits_report:
            task = asyncio.create_task(self._enter_later(flight, outcome, error))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        else:
            self._enter(flight, outcome, error)

    async def _enter_later(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_REPORT_S):
                await flight.story.reported.wait()
        self._enter(flight, outcome, error)

    def _enter(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        if flight.attempt is not None:
            self._board.unlisten(flight.attempt.wire_id)
        if flight.order.internal:
            return
        record = flight.record(outcome, error)
        if outcome == "completed":
            self._rates.learn_answer(record.output_tokens)
        self.note(record)

    def note(self, record: RequestRecord) -> None:
        """Keep a record and tell it."""
        packed = msgspec.msgpack.encode(record)
        self._packed.append(packed)
        self.recorded += 1
        self._bytes += len(packed)
        while len(self._packed) > KEPT_RECORDS or (
            self._bytes > KEPT_BYTES and len(self._packed) > 1
        ):
            self._bytes -= len(self._packed.popleft())
        target_s = self._tpot_target_s
        causes = stall_causes(record, target_s, self._steps) if target_s is not None else {}
        self._metrics.request(record, causes)
        self._feed.tell(RequestDone(record=record))


def outcome_of(failure: ApiError, flight: Flight) -> Outcome:
    """How a request ended that an error ended."""
    if failure.code == "cancelled":
        return "cancelled"
    return "failed" if flight.story.token_s or failure.status in (500, 504) else "rejected"
