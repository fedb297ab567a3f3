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
from collections.abc import Coroutine
from typing import Any

import msgspec

from homesplit_engine.policy import Decision
from homesplit_engine.records import Outcome, RequestRecord, Sending
from homesplit_engine.router.attempt import (
    Attempt,
    BoxLost,
    Cancelled,
    GivenToken,
    Item,
    Order,
    Stage,
    Stopping,
    reserve_of,
    submit_of,
)
from homesplit_engine.router.base import Base
from homesplit_engine.router.errors import ApiError, bad_request, busy, unavailable
from homesplit_engine.router.handover import Handover, Late, Way
from homesplit_engine.router.patience import wait_listening
from homesplit_engine.router.story import Story
from homesplit_engine.router.wire_ids import new_wire_id
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffTarget,
    PrefillDone,
    Refused,
    Reserved,
    SendTo,
    Submit,
    Token,
)

MAX_FAILED_ATTEMPTS = 6
"""Moves after failures that a worker told of; moves after a lost worker are not counted."""
REFUSED_PAUSE_S = 0.25
UNSENT_PAUSE_S = 0.05
"""Before another try, when a box took no message: its loss is known by then or soon after."""
UNREAD_S = 0.01
"""For what has come and is not read yet."""
RETURN_S = 5.0
"""When a router that was stopped may be back, at the earliest."""


class Flight:
    """The life of one answer, from placement to record."""

    def __init__(self, base: Base, order: Order) -> None:
        self.order = order
        self.inbox: asyncio.Queue[tuple[str, str, Item]] = asyncio.Queue()
        """(box, wire id, what it said); an entry per token, and one per status of a hand-off."""
        self.tokens: list[int] = []
        self.attempt: Attempt | None = None
        self.fingerprint: str | None = None
        """Of the box that it was first placed on; it never goes on on another kind."""
        self.finish_reason: str | None = None
        self.ended = False
        self._base = base
        self._given: deque[GivenToken] = deque()
        self._failures = 0
        self._refusals = 0
        self._homeless: str | None = None
        """Why it has no box now, for the record."""
        self._avoid: str | None = None
        """The box that it was moved off last."""
        self.story = Story(order)

    @property
    def waiting(self) -> bool:
        """Before its first token."""
        return not self.tokens

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
            self.story.token_s.append(time.monotonic())
        return piece

    def stop_here(self) -> None:
        """The answer ends with what was given: a stop string was met."""
        self.finish_reason = "stop"
        self._given.clear()
        del self.tokens[len(self.story.token_s) :]
        self._withdraw()

    async def _hear(self, attempt: Attempt) -> None:
        """Wait for one item and deal with it, or with the time being over."""
        now_s = time.monotonic()
        limit_s = self.order.deadline_s
        for stage_s in (attempt.limit_s, attempt.room_by_s):
            limit_s = limit_s if stage_s is None else min(limit_s, stage_s)
        try:
            async with asyncio.timeout(max(0.0, limit_s - now_s)):
                box, wire_id, item = await self.inbox.get()
        except TimeoutError:
            # A router that had no core for a while has not read yet what was said in time.
            await asyncio.sleep(UNREAD_S)
            if self.inbox.empty():
                self._too_late(attempt)
            return
        self._obey(item)
        if wire_id == attempt.wire_id or isinstance(item, BoxLost):
            await self._deal(attempt, box, item)

    def _obey(self, item: Item) -> None:
        """What concerns the request wherever it is; raises ApiError when it is to end."""
        match item:
            case HandoffReport():
                self.story.transferred(item)
            case Cancelled():
                raise ApiError(409, "The request was cancelled.", code="cancelled")
            case Stopping():
                raise unavailable(
                    "The router was told to stop in the middle of this answer. Ask again.",
                    retry_after_s=RETURN_S,
                    code="router_stopped",
                )
            case _:
                pass

    async def _deal(self, attempt: Attempt, box: str, item: Item) -> None:
        match item:
            case GivenToken():
                self._take(attempt, item)
            case PrefillDone():
                attempt.unread_tokens = 0
                self.story.prefilled(item)
            case Reserved():
                self._reserved(attempt, item)
            case Committed():
                self._commit(attempt)
            case HandoffReport() if not item.event.committed:
                if attempt.stage is not Stage.WRITING:
                    self._failed(attempt, None, f"the hand-off failed: {item.why}", "handoff")
            case Sending():
                self._handoff_seen(attempt, item)
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
            if attempt.decision.kind == "split" and not self.story.split_committed:
                # It ended with the first token: the room kept for it is not needed.
                self._base.cancel(attempt.decision.decode_box, attempt.wire_id)
        elif attempt.stage is Stage.READING:
            self._first_token_came(attempt)

    def _first_token_came(self, attempt: Attempt) -> None:
        if attempt.decision.kind == "colocated":
            attempt.stage = Stage.WRITING
            return
        attempt.stage = Stage.HANDING_OVER
        handover = self._handover(attempt)
        handover.first_token_came(time.monotonic())
        attempt.limit_s = handover.until_s(self._way(attempt))

    def _handover(self, attempt: Attempt) -> Handover:
        if attempt.handover is None:
            attempt.handover = Handover(self._base.detection_s)
        return attempt.handover

    def _way(self, attempt: Attempt) -> Way:
        """What is known of its hand-off's way now: more may wait to be read than before."""
        return self._base.way(self, attempt.decision)

    def _handoff_seen(self, attempt: Attempt, sending: Sending) -> None:
        """Go on elsewhere as soon as it is plain that the hand-off would take too long."""
        if attempt.stage not in (Stage.READING, Stage.HANDING_OVER):
            return
        now_s, handover = time.monotonic(), self._handover(attempt)
        left = sending.left_bytes
        handover.seen(left + sending.ahead_bytes if left else 0, now_s)
        if attempt.stage is Stage.READING:
            return
        way = self._way(attempt)
        late = handover.look(way, now_s)
        attempt.limit_s = handover.until_s(way)
        if late is not None:
            self._give_handoff_up(attempt, late)

    def _give_handoff_up(self, attempt: Attempt, late: Late) -> None:
        box = attempt.decision.decode_box
        given_up = f"the hand-off from {attempt.decision.prefill_box} to {box} was given up"
        if late.room_s is None:
            self._base.slow_handoff(attempt.decision, self._handover(attempt).bytes_per_s())
            self._failed(attempt, None, f"{given_up}: {late.why}", "handoff")
            return
        room = f"{box} answered the reservation only {late.room_s:.1f} s after the first token"
        self._failed(attempt, box, f"{given_up}: {room}; {late.why}", "late_room")

    # -------------------------------------------------------------- placing

    async def _place(self) -> None:
        """Find a box for a flight that has none, waiting for one where that makes sense."""
        while not self.inbox.empty():
            # What was said up to now is about earlier attempts, and boxes that were lost then.
            self._obey(self.inbox.get_nowait()[2])
        self._check_deadline()
        if self._homeless is None:
            decision = self._base.place(self)
        else:
            decision = self._base.place_again(self, self._homeless, self._avoid)
        if decision is None:
            await self._wait_for_box()
        elif not self._start(decision):
            await self._wait(asyncio.sleep(UNSENT_PAUSE_S))

    async def _wait_for_box(self) -> None:
        now_s = time.monotonic()
        # A new request is refused soon, so that its client may go elsewhere; one that has
        # been taken in is kept for as long as its deadline allows.
        limit_s = self.order.deadline_s
        if self._homeless is None:
            limit_s = min(limit_s, self.order.received_s + self._base.detection_s)
        if now_s >= limit_s:
            raise unavailable(
                "No box of this deployment that can take it answers now. "
                "Look at `homesplit status`.",
                retry_after_s=self._base.detection_s,
            )
        await self._wait(self._base.until_usable(limit_s - now_s))

    async def _wait(self, what: Coroutine[Any, Any, None]) -> None:
        """Wait without a box; raises ApiError when the request is to end meanwhile."""
        await wait_listening(what, self.inbox, lambda heard: self._obey(heard[2]))

    def _start(self, decision: Decision) -> bool:
        """Begin an attempt; False when a box takes no message.

        A prompt that is handed over is read at once, while the other box is asked to keep room for
        it: who was to wait for that waited for a box that is busy. Only where that is known to be
        full its answer is waited for, so that little is read in vain.
        """
        wire_id = new_wire_id(self.order.request_id)
        unread = len(self.order.token_ids) + len(self.tokens)
        attempt = Attempt(wire_id, decision, len(self.tokens), unread)
        self.attempt = attempt
        self._base.listen(wire_id, self)
        if decision.kind == "split":
            attempt.room_by_s = time.monotonic() + self._base.detection_s
            if not self._base.has_room(decision.decode_box, self):
                attempt.stage = Stage.RESERVING
            reserve = reserve_of(self.order, attempt, self.tokens, self._left_s())
            if not self._base.send(decision.decode_box, reserve):
                self._not_taken(attempt, decision.decode_box)
                return False
        if attempt.stage is Stage.READING:
            submit = self._submit(attempt, None)
            if not self._base.send(decision.prefill_box, submit):
                self._not_taken(attempt, decision.prefill_box)
                return False
        self.story.placed(decision)
        return True

    def _not_taken(self, attempt: Attempt, box: str) -> None:
        """The box took no message: nothing was lost, and it is told once."""
        self.attempt = None
        self._base.unlisten(attempt.wire_id)
        if box != attempt.decision.decode_box:
            self._base.cancel(attempt.decision.decode_box, attempt.wire_id)
        reason = f"{box} takes no message now"
        if reason != self._homeless:
            self._base.fault(box, "worker_lost", f"{self.order.request_id}: {reason}")
        self._homeless, self._avoid = reason, box

    def _left_s(self) -> float:
        return max(0.001, self.order.deadline_s - time.monotonic())

    def _submit(self, attempt: Attempt, handoff: HandoffTarget | None) -> Submit:
        return submit_of(self.order, attempt, self.tokens, self._left_s(), handoff)

    def _reserved(self, attempt: Attempt, reserved: Reserved) -> None:
        if attempt.room_by_s is None:
            return
        attempt.room_by_s = None
        decode_box, prefill_box = attempt.decision.decode_box, attempt.decision.prefill_box
        self._base.asked_for_room(decode_box, full=False)
        self._handover(attempt).room_came(time.monotonic())
        self.story.cached(reserved.cached_tokens)
        target = self._base.target(decode_box, reserved)
        if target is None:
            self._move(attempt, f"{decode_box} is not used any more", decode_box, "worker_lost")
            return
        target = msgspec.structs.replace(target, kv_wire=self.order.setting.kv_wire)
        message: Submit | SendTo = SendTo(request_id=attempt.wire_id, target=target)
        if attempt.stage is Stage.RESERVING:
            attempt.stage = Stage.READING
            message = self._submit(attempt, target)
        if not self._base.send(prefill_box, message):
            self._move(attempt, f"{prefill_box} takes no message now", prefill_box, "worker_lost")

    # -------------------------------------------------------------- going on after trouble

    def _check_deadline(self) -> None:
        if time.monotonic() >= self.order.deadline_s:
            raise ApiError(
                504, "The request ran past its deadline.", code="deadline", retry_after_s=1.0
            )

    def _too_late(self, attempt: Attempt) -> None:
        self._check_deadline()
        limit_s, room_by_s = attempt.limit_s, attempt.room_by_s
        if room_by_s is not None and (limit_s is None or room_by_s <= limit_s):
            box = attempt.decision.decode_box
            self._failed(attempt, box, f"{box} did not answer the reservation", "late_room")
            return
        if attempt.stage is Stage.HANDING_OVER:
            late = self._handover(attempt).not_committed(time.monotonic())
            self._give_handoff_up(attempt, late)
            return
        self._failed(attempt, None, "tokens went missing", "handoff")

    async def _refused(self, attempt: Attempt, box: str, refused: Refused) -> None:
        param = self.order.prompt_field
        # The box that only writes is asked for nothing but room, also where a commit came first.
        placed = attempt.decision
        no_room = placed.kind == "split" and box == placed.decode_box
        if no_room and refused.kind == "full":
            self._base.asked_for_room(box, full=True)
        match refused.kind:
            case "too_long" if not self.tokens and self._refusals + 1 >= self._base.boxes_for(self):
                # It was not known what this box holds; another may have room for it.
                raise bad_request(refused.what, code="context_length_exceeded", param=param)
            case "bad_request" if not (no_room and self.tokens):
                raise bad_request(refused.what, param=param)
            case "deadline" if not self.tokens:
                raise unavailable(refused.what, refused.retry_after_s or 1.0, code="deadline")
            case _:
                pass
        self._refusals += 1
        if not self.tokens and self._refusals >= self._base.boxes_for(self):
            raise busy(refused.what, refused.retry_after_s or 1.0)
        if self.tokens and self._refusals > 1:
            # Its client already reads the answer, so it waits for room instead of failing.
            await asyncio.sleep(min(REFUSED_PAUSE_S, self._left_s()))
        self.story.moves -= 1  # nothing was lost: it had not been taken
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
        """Have it go on elsewhere, with the prompt and every token so far."""
        self._base.fault(avoid, kind, f"{self.order.request_id}: {reason}")
        self._withdraw()
        self.story.moves += 1
        self._homeless, self._avoid = reason, avoid
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        """Where the worker was lost between its last token and saying that it was the last."""
        if self.tokens and self.tokens[-1] in self.order.stop_ids:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.order.sampling.max_tokens:
            self.finish_reason = "length"
        else:
            return
        self._given.append(GivenToken(token=None, finish=self.finish_reason))

    def _withdraw(self) -> None:
        """Have every box of the present attempt forget it."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._base.unlisten(attempt.wire_id)
            for box in attempt.boxes:
                self._base.cancel(box, attempt.wire_id)

    def _commit(self, attempt: Attempt) -> None:
        if attempt.decision.kind != "split":
            return
        attempt.stage = Stage.WRITING
        # Who has committed has kept room, whatever is still to be heard of that.
        attempt.limit_s = attempt.room_by_s = None
        self.story.committed()

    # -------------------------------------------------------------- the end

    def end(self) -> None:
        """Nothing more is wanted: what still runs anywhere is cancelled."""
        while not self.inbox.empty():
            # The sender's account may have come when nobody waited for a word any more.
            item = self.inbox.get_nowait()[2]
            if isinstance(item, HandoffReport):
                self.story.transferred(item)
        if self.finish_reason is None:
            self._withdraw()
        self.ended = True

    def record(self, outcome: Outcome, error: str | None) -> RequestRecord:
        """What happened, as far as it is known now."""
        placed = self.attempt.decision if self.attempt else None
        return self.story.record(outcome, error, self.finish_reason, placed)
