"""One answer on its way: placed, carried on after failures, and recorded.

A flight keeps the decision it got, whatever the mode is switched to. What the workers say
about it waits in its inbox; `next_piece` works through it until there is a token to give.
Each placement is an attempt with a wire id of its own, so that late words about an earlier
one can't be mistaken.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec
from msgspec import Struct

from homesplit_engine.policy import Decision
from homesplit_engine.records import (
    ModeSetting,
    Outcome,
    RequestRecord,
    TransferEvent,
)
from homesplit_engine.router.errors import ApiError, bad_request, busy, unavailable
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffTarget,
    PrefillDone,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    Submit,
    Token,
    ToWorker,
)

MAX_FAILED_ATTEMPTS = 6
"""Moves after failures that a worker told of; moves after a lost worker are not counted."""
REFUSED_PAUSE_S = 0.25
HANDOFF_PATIENCE = 4.0
"""Times the expected hand-off that a commit may take before it is given up."""


class Stage(Enum):
    """Where an attempt stands."""

    RESERVING = "reserving"
    READING = "reading"
    HANDING_OVER = "handing over"
    WRITING = "writing"


class BoxLost(Struct, frozen=True):
    """A box that stopped answering, told to the flights that were on it."""

    why: str


class Cancelled(Struct, frozen=True):
    """Someone other than the client ended this request."""


class GivenToken(Struct, frozen=True):
    """A token, and the answer's finish reason when the worker ended it with this token."""

    token: Token | None
    finish: str | None


Item = (
    Reserved
    | Refused
    | PrefillDone
    | GivenToken
    | HandoffReport
    | Committed
    | Failed
    | BoxLost
    | Cancelled
)


class Attempt:
    """One placement of a flight: what was decided and how far it came."""

    def __init__(self, wire_id: str, decision: Decision, first_index: int, unread: int) -> None:
        self.wire_id = wire_id
        self.decision = decision
        self.stage = Stage.RESERVING if decision.kind == "split" else Stage.READING
        self.first_index = first_index
        self.unread_tokens = unread
        self.early: dict[int, GivenToken] = {}
        """Tokens that came before an earlier one, by index."""
        self.finish: str | None = None
        """The finish reason told while tokens were still missing."""
        self.limit_s: float | None = None
        """When the present stage is given up, on the monotonic clock; None never."""

    @property
    def boxes(self) -> tuple[str, ...]:
        """The boxes that hold something for it."""
        return tuple(dict.fromkeys((self.decision.prefill_box, self.decision.decode_box)))

    def needs(self, box: str) -> bool:
        """Whether losing `box` now loses the attempt."""
        if self.stage is Stage.WRITING:
            return box == self.decision.decode_box
        return box in self.boxes


class Base(Protocol):
    """What a flight asks of the router."""

    detection_s: float

    def place(self, flight: Flight) -> Decision | None:
        """Where a new flight goes; None when no box can be used."""
        ...

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        """Where a flight that lost its box goes on; None when no box can be used."""
        ...

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        """The hand-off address of a box that reserved room; None when it is gone."""
        ...

    def send(self, box: str, message: ToWorker) -> bool:
        """Whether the message was handed over for a living worker."""
        ...

    def cancel(self, box: str, wire_id: str) -> None:
        """Have a worker forget an attempt."""
        ...

    def listen(self, wire_id: str, flight: Flight) -> None:
        """Bring a flight what is said about this wire id."""
        ...

    def unlisten(self, wire_id: str) -> None:
        """Drop what is still said about this wire id."""
        ...

    def usable_boxes(self) -> int:
        """How many boxes can be used."""
        ...

    async def until_usable(self, timeout_s: float) -> None:
        """Return when a box can be used, or after the time."""
        ...

    def expected_handoff_s(self, decision: Decision, tokens: int) -> float | None:
        """How long a hand-off of so many tokens should take; None when never measured."""
        ...

    def fault(self, box: str | None, kind: str, sentence: str) -> None:
        """Tell the watchers of a fault."""
        ...


class Order(Struct, frozen=True, kw_only=True):
    """What is to be answered."""

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    setting: ModeSetting
    received_s: float
    """Receipt of the whole request, on the router's monotonic clock."""
    deadline_s: float
    """When it is given up, on the same clock."""
    tokenise_s: float | None
    wall_time: str
    prefix: Sequence[int] = ()
    """Chained hashes of the prompt, for the guess at what is cached where."""
    internal: bool = False
    """The router's own health check: not recorded."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer."""


class Flight:
    """The life of one answer, from placement to record."""

    def __init__(self, base: Base, order: Order) -> None:
        self.order = order
        self.inbox: asyncio.Queue[tuple[str, str, Item]] = asyncio.Queue()
        """(box, wire id, what it said); at most one entry per token plus a few."""
        self.tokens: list[int] = []
        self.token_s: list[float] = []
        self.attempt: Attempt | None = None
        self.fingerprint: str | None = None
        """Of the box that it was first placed on; it never goes on on another kind."""
        self.finish_reason: str | None = None
        self.cached_tokens = 0
        self.ended = False
        self._base = base
        self._given: deque[GivenToken] = deque()
        self._attempts = 0
        self._failures = 0
        self._refusals = 0
        self._moves = 0
        self._homeless: str | None = None
        """Why it has no box now, for the record."""
        self._why: list[str] = []
        self._first: Decision | None = None
        self._prefilled: PrefillDone | None = None
        self._transfer: TransferEvent | None = None
        self._committed_s: float | None = None
        self._split_committed = False
        self.reported = asyncio.Event()
        """Set once the sender's account of a committed hand-off is here."""

    @property
    def waiting(self) -> bool:
        """Before its first token."""
        return not self.tokens

    @property
    def awaits_report(self) -> bool:
        """Whether the sender's account of a committed hand-off is still to come."""
        return self._split_committed and self._transfer is None

    # -------------------------------------------------------------- giving tokens

    async def next_piece(self) -> GivenToken | None:
        """The next token of the answer; None after the last. Raises ApiError."""
        while not self._given:
            if self.finish_reason is not None:
                return None
            if self.attempt is None:
                await self._place()
            else:
                await self._hear(self.attempt)
        piece = self._given.popleft()
        if piece.token is not None:
            self.token_s.append(time.monotonic())
        return piece

    def stop_here(self) -> None:
        """The answer ends with what was given: a stop string was met."""
        self.finish_reason = "stop"
        self._given.clear()
        del self.tokens[len(self.token_s) :]
        self._withdraw()

    async def _hear(self, attempt: Attempt) -> None:
        """Wait for one item and deal with it, or with the time being over."""
        now_s = time.monotonic()
        limit_s = self.order.deadline_s
        if attempt.limit_s is not None:
            limit_s = min(limit_s, attempt.limit_s)
        try:
            async with asyncio.timeout(max(0.0, limit_s - now_s)):
                box, wire_id, item = await self.inbox.get()
        except TimeoutError:
            self._too_late(attempt)
            return
        if isinstance(item, HandoffReport):
            self.note_transfer(item)
        if isinstance(item, Cancelled):
            raise ApiError(409, "The request was cancelled.", code="cancelled")
        if wire_id == attempt.wire_id or isinstance(item, BoxLost):
            await self._deal(attempt, box, item)

    async def _deal(self, attempt: Attempt, box: str, item: Item) -> None:
        match item:
            case GivenToken():
                self._take(attempt, item)
            case PrefillDone():
                self._note_prefill(attempt, item)
            case Reserved():
                self._reserved(attempt, item)
            case Committed():
                self._commit(attempt)
            case HandoffReport() if not item.event.committed:
                if attempt.stage is not Stage.WRITING:
                    self._failed(attempt, None, f"the hand-off failed: {item.why}", "handoff")
            case Refused():
                await self._refused(attempt, box, item)
            case Failed():
                self._worker_failed(attempt, box, item)
            case BoxLost() if attempt.needs(box):
                self._move(attempt, f"{box} was lost ({item.why})", box, "worker_lost")
            case _:
                pass

    def _take(self, attempt: Attempt, given: GivenToken) -> None:
        """Queue tokens in order, each index once; one that comes too early waits."""
        if given.token is None:
            attempt.finish = given.finish
            self._finish_if_whole(attempt)
            return
        if given.token.index > len(self.tokens):
            attempt.early[given.token.index] = given
            attempt.limit_s = attempt.limit_s or time.monotonic() + self._base.detection_s
            return
        following: GivenToken | None = given
        while following is not None and following.token is not None:
            if following.token.index == len(self.tokens):
                self._accept(attempt, following, following.token)
            following = attempt.early.pop(len(self.tokens), None)
        if not attempt.early and attempt.stage is Stage.WRITING:
            attempt.limit_s = None
        self._finish_if_whole(attempt)

    def _finish_if_whole(self, attempt: Attempt) -> None:
        if attempt.finish is not None and not attempt.early and self.finish_reason is None:
            self.finish_reason = attempt.finish
            self._given.append(GivenToken(token=None, finish=attempt.finish))

    def _accept(self, attempt: Attempt, given: GivenToken, token: Token) -> None:
        self.tokens.append(token.token_id)
        self._given.append(given)
        attempt.unread_tokens = 0
        if given.finish is not None:
            self.finish_reason = given.finish
            if attempt.decision.kind == "split" and not self._split_committed:
                # It ended with the first token: the room kept for it is not needed.
                self._base.cancel(attempt.decision.decode_box, attempt.wire_id)
        elif attempt.stage is Stage.READING:
            self._first_token_came(attempt)

    def _first_token_came(self, attempt: Attempt) -> None:
        if attempt.decision.kind == "colocated":
            attempt.stage = Stage.WRITING
            return
        attempt.stage = Stage.HANDING_OVER
        expected_s = self._base.expected_handoff_s(attempt.decision, len(self.order.token_ids))
        if expected_s is not None:
            patience_s = HANDOFF_PATIENCE * expected_s + 2 * self._base.detection_s
            attempt.limit_s = time.monotonic() + patience_s

    # -------------------------------------------------------------- placing

    async def _place(self) -> None:
        """Find a box for a flight that has none, waiting for one where that makes sense."""
        if self._homeless is None:
            decision = self._base.place(self)
        else:
            decision = self._base.place_again(self, self._homeless, None)
        if decision is None:
            await self._wait_for_box()
            return
        self._start(decision)

    async def _wait_for_box(self) -> None:
        now_s = time.monotonic()
        # A new request is refused soon, so that its client may go elsewhere; one that has
        # been taken in is kept for as long as its deadline allows.
        limit_s = self.order.deadline_s
        if self._homeless is None:
            limit_s = min(limit_s, self.order.received_s + self._base.detection_s)
        if now_s >= limit_s:
            raise unavailable(
                "No box of this deployment answers now. Look at `homesplit status`.",
                retry_after_s=self._base.detection_s,
            )
        await self._base.until_usable(limit_s - now_s)

    def _start(self, decision: Decision) -> None:
        """Begin an attempt: reserve for a hand-off, else submit."""
        number = self._attempts
        self._attempts += 1
        wire_id = self.order.request_id + (f"+{number}" if number else "")
        unread = len(self.order.token_ids) + len(self.tokens)
        attempt = Attempt(wire_id, decision, len(self.tokens), unread)
        self._first = self._first or decision
        self._why.append(decision.why)
        self.attempt = attempt
        self._base.listen(wire_id, self)
        if decision.kind == "split":
            attempt.limit_s = time.monotonic() + self._base.detection_s
            sent = self._base.send(decision.decode_box, self._reserve(attempt))
            box = decision.decode_box
        else:
            sent = self._base.send(decision.prefill_box, self._submit(attempt, None))
            box = decision.prefill_box
        if not sent:
            self._move(attempt, f"{box} takes no message now", box, "worker_lost")

    def _left_s(self) -> float:
        return max(0.001, self.order.deadline_s - time.monotonic())

    def _reserve(self, attempt: Attempt) -> Reserve:
        return Reserve(
            request_id=attempt.wire_id,
            token_ids=self.order.token_ids + self.tokens,
            prompt_tokens=len(self.order.token_ids),
            sampling=self.order.sampling,
            deadline_s=self._left_s(),
            from_box=attempt.decision.prefill_box,
            kv_wire=self.order.setting.kv_wire,
        )

    def _submit(self, attempt: Attempt, handoff: HandoffTarget | None) -> Submit:
        return Submit(
            request_id=attempt.wire_id,
            token_ids=self.order.token_ids + self.tokens,
            prompt_tokens=len(self.order.token_ids),
            sampling=self.order.sampling,
            chunk_tokens=attempt.decision.chunk_tokens,
            deadline_s=self._left_s(),
            handoff=handoff,
        )

    def _reserved(self, attempt: Attempt, reserved: Reserved) -> None:
        if attempt.stage is not Stage.RESERVING:
            return
        attempt.stage, attempt.limit_s = Stage.READING, None
        self.cached_tokens = max(self.cached_tokens, reserved.cached_tokens)
        target = self._base.target(attempt.decision.decode_box, reserved)
        prefill_box = attempt.decision.prefill_box
        if target is not None:
            target = msgspec.structs.replace(target, kv_wire=self.order.setting.kv_wire)
        if target is None or not self._base.send(prefill_box, self._submit(attempt, target)):
            self._move(attempt, f"{prefill_box} takes no message now", prefill_box, "worker_lost")

    # -------------------------------------------------------------- going on after trouble

    def _too_late(self, attempt: Attempt) -> None:
        if time.monotonic() >= self.order.deadline_s:
            raise ApiError(
                504, "The request ran past its deadline.", code="deadline", retry_after_s=1.0
            )
        waited = {
            Stage.RESERVING: "the decode box did not answer the reservation",
            Stage.HANDING_OVER: "the hand-off was not committed in time",
        }
        self._failed(attempt, None, waited.get(attempt.stage, "tokens went missing"), "handoff")

    async def _refused(self, attempt: Attempt, box: str, refused: Refused) -> None:
        match refused.kind:
            case "too_long":
                raise bad_request(refused.what, code="context_length_exceeded", param="messages")
            case "bad_request":
                raise bad_request(refused.what)
            case "deadline" if not self.tokens:
                raise unavailable(refused.what, refused.retry_after_s or 1.0, code="deadline")
            case _:
                pass
        self._refusals += 1
        if not self.tokens and self._refusals >= self._base.usable_boxes():
            raise busy(refused.what, refused.retry_after_s or 1.0)
        if self.tokens:
            # Its client already reads the answer, so it waits for room instead of failing.
            await asyncio.sleep(min(REFUSED_PAUSE_S, self._left_s()))
        self._moves -= 1  # nothing was lost: it had not been taken
        self._move(attempt, f"{box} refused it ({refused.what})", box, f"refused_{refused.kind}")

    def _worker_failed(self, attempt: Attempt, box: str, failed: Failed) -> None:
        if not attempt.needs(box):
            return
        if failed.kind == "numeric":
            raise ApiError(500, f"{box}: {failed.what}", code="numeric")
        if failed.kind == "deadline":
            raise ApiError(504, failed.what, code="deadline", retry_after_s=1.0)
        self._failed(attempt, box, f"{box} failed ({failed.what})", failed.kind)

    def _failed(self, attempt: Attempt, box: str | None, reason: str, kind: str) -> None:
        """Move after a failure that was told; too many of them end the request."""
        self._failures += 1
        if self._failures > MAX_FAILED_ATTEMPTS:
            raise ApiError(500, f"Given up after repeated failures; the last: {reason}", code=kind)
        self._move(attempt, reason, box, kind)

    def _move(self, attempt: Attempt, reason: str, avoid: str | None, kind: str) -> None:
        """Go on elsewhere with the prompt and every token so far."""
        self._base.fault(avoid, kind, f"{self.order.request_id}: {reason}")
        self._withdraw()
        self._moves += 1
        self._homeless = reason
        if self._is_whole():
            return
        decision = self._base.place_again(self, reason, avoid)
        if decision is not None:
            self._start(decision)

    def _is_whole(self) -> bool:
        """The worker was lost between its last token and saying that it was the last."""
        if not self.tokens:
            return False
        if self.tokens[-1] in self.order.stop_ids:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.order.sampling.max_tokens:
            self.finish_reason = "length"
        else:
            return False
        self._given.append(GivenToken(token=None, finish=self.finish_reason))
        return True

    def _withdraw(self) -> None:
        """Have every box of the present attempt forget it."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._base.unlisten(attempt.wire_id)
            for box in attempt.boxes:
                self._base.cancel(box, attempt.wire_id)

    # -------------------------------------------------------------- notes for the record

    def _note_prefill(self, attempt: Attempt, done: PrefillDone) -> None:
        attempt.unread_tokens = 0
        self.cached_tokens = max(self.cached_tokens, done.cached_tokens)
        self._prefilled = self._prefilled or done

    def _commit(self, attempt: Attempt) -> None:
        if attempt.decision.kind != "split":
            return
        attempt.stage = Stage.WRITING
        attempt.limit_s = None
        self._split_committed = True
        self._committed_s = time.monotonic()

    def note_transfer(self, report: HandoffReport) -> None:
        """Keep the sender's account of a committed hand-off for the record."""
        if report.event.committed:
            self._transfer = report.event
            self._split_committed = True
            self.reported.set()

    def end(self) -> None:
        """Nothing more is wanted: what still runs anywhere is cancelled."""
        if self.finish_reason is None:
            self._withdraw()
        self.ended = True

    def record(self, outcome: Outcome, error: str | None) -> RequestRecord:
        """What happened, as far as it is known now."""
        first, prefilled, transfer = self._first, self._prefilled, self._transfer
        return RequestRecord(
            request_id=self.order.request_id,
            mode=self.order.setting.mode,
            served=self._served(),
            prefill=first.prefill if first else self.order.setting.prefill,
            prefill_box=first.prefill_box if first else None,
            decode_box=self._decode_box(),
            why="; ".join(self._why) or "it was never placed",
            outcome=outcome,
            finish_reason=self.finish_reason,
            error=error,
            prompt_tokens=len(self.order.token_ids),
            output_tokens=len(self.token_s),
            cached_tokens=self.cached_tokens,
            received_s=self.order.received_s,
            token_s=tuple(self.token_s),
            tokenise_s=self.order.tokenise_s,
            queue_s=prefilled.queue_s if prefilled else None,
            prefill_s=prefilled.prefill_s if prefilled else None,
            handoff_s=transfer.end_s - transfer.start_s if transfer else None,
            handoff_exposed_s=transfer.exposed_s if transfer else None,
            handoff_bytes=transfer.bytes if transfer else None,
            handoff_tokens=transfer.tokens if transfer else None,
            first_decode_s=self._first_decode_s(),
            resubmitted=self._moves,
            wall_time=self.order.wall_time,
        )

    def _served(self) -> str:
        if not self.token_s:
            return "none"
        if self._moves:
            return "resumed"
        return "split" if self._split_committed else "colocated"

    def _decode_box(self) -> str | None:
        if self.attempt is not None:
            return self.attempt.decision.decode_box
        return self._first.decode_box if self._first else None

    def _first_decode_s(self) -> float | None:
        if len(self.token_s) < 2 or self._moves:
            return None
        began_s = self._committed_s if self._split_committed else self.token_s[0]
        return max(0.0, self.token_s[1] - began_s) if began_s is not None else None


def with_tokens(sampling: SamplingParams, max_tokens: int, seed: int) -> SamplingParams:
    """The sampling parameters with the answer's length and this choice's seed."""
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, seed=seed)
