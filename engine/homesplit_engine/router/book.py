"""Keeps the record of every request that has ended, and tells it to watchers and metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from homesplit_engine.events import RequestDone
from homesplit_engine.records import Outcome, RequestRecord
from homesplit_engine.router.board import Board
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.feed import Feed
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.rates import Rates
from homesplit_engine.router.stalls import StepMemory, stall_causes

KEPT_RECORDS, KEPT_TOKENS = 10_000, 500_000
"""Records kept at most, and token times in all of them: about 16 MB, however long the answers."""
LATE_REPORT_S = 1.0
"""How long a finished request's record waits for the sender's account of its hand-off."""


class Book:
    """The last records, newest at the end."""

    def __init__(
        self,
        feed: Feed,
        metrics: Metrics,
        steps: StepMemory,
        board: Board,
        rates: Rates,
        tpot_target_s: float | None,
    ) -> None:
        self.records: deque[RequestRecord] = deque()
        self._tokens = 0
        self.recorded = 0
        """Records ever made: the ring holds the last of them."""
        self._feed = feed
        self._metrics = metrics
        self._steps = steps
        self._board = board
        self._rates = rates
        self._tpot_target_s = tpot_target_s
        self._closing: set[asyncio.Task[None]] = set()

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
        self.records.append(record)
        self.recorded += 1
        self._tokens += len(record.token_s)
        while len(self.records) > KEPT_RECORDS or (
            self._tokens > KEPT_TOKENS and len(self.records) > 1
        ):
            self._tokens -= len(self.records.popleft().token_s)
        target_s = self._tpot_target_s
        causes = stall_causes(record, target_s, self._steps) if target_s is not None else {}
        self._metrics.request(record, causes)
        self._feed.tell(RequestDone(record=record))


def outcome_of(failure: ApiError, flight: Flight) -> Outcome:
    """How a request ended that an error ended."""
    if failure.code == "cancelled":
        return "cancelled"
    return "failed" if flight.story.token_s or failure.status in (500, 504) else "rejected"
