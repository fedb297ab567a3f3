"""What one worker computes next, as a value. No torch, no clock, no I/O: time comes in.

The same code runs in a worker and in the desk's simulator. The caller's loop is

    plan = scheduler.schedule(now_s)
    if plan is not None:
        outcome = scheduler.finish_step(plan, {request_id: token_id, ...}, now_s=later_s)

One plan is in flight at a time. Requests enter by `add` (read here) or by `reserve` and
`commit` (read by a peer, whose KV is handed over); they leave by ending, `cancel`, `fail`,
`expire`, or, where they were handed over to a peer, by `handoff_ended`.

A *whole* prompt (`chunk_tokens` None) gets a step of its own, for which every decoding
request waits. A *chunked* one is read beside the decoding requests, `chunk_tokens` a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from homesplit_engine.pages import BlockPool, blocks_for
from homesplit_engine.request import Phase, Request

PACK_TOKENS = 256
"""Whole prompts share a step up to this many tokens: tiny ones gain, long ones would wait."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one worker takes on."""

    max_batch_requests: int = 64
    max_step_tokens: int = 8192
    max_waiting: int = 256
    max_context: int = 2048


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a request was not taken; nothing is held for it."""

    kind: Literal["full", "too_long", "deadline", "bad_request"]
    what: str
    retry_after_s: float | None = None


class PrefillWork(Struct, frozen=True, kw_only=True):
    """Compute tokens [start, start + tokens) of a request; sample after them if `last`."""

    request: Request
    start: int
    tokens: int
    last: bool


class StepPlan(Struct, frozen=True, kw_only=True):
    """One step: pieces of prompts, and one token for each decoding request."""

    step: int
    prefill: tuple[PrefillWork, ...] = ()
    decode: tuple[Request, ...] = ()
    preempted: tuple[str, ...] = ()
    """Requests whose blocks were taken back for this step; they are read again later."""
    context_tokens: int = 0
    """Cached tokens that the decoding requests attend to, summed."""


class Sampled(Struct, frozen=True, kw_only=True):
    """One output token that a step made."""

    request_id: str
    index: int
    token_id: int


class Prefilled(Struct, frozen=True, kw_only=True):
    """A prompt was read to its end: waiting and computing seconds."""

    request_id: str
    queue_s: float
    prefill_s: float
    cached_tokens: int


class Ended(Struct, frozen=True, kw_only=True):
    """A request ended in good order."""

    request_id: str
    reason: Literal["stop", "length"]


class StepOutcome(Struct, frozen=True, kw_only=True):
    """What a finished step changed. Requests cancelled meanwhile do not appear."""

    tokens: tuple[Sampled, ...] = ()
    prefilled: tuple[Prefilled, ...] = ()
    ended: tuple[Ended, ...] = ()
    handing_over: tuple[str, ...] = ()
    """Prompts that are read and now wait for the peer's commit. (One whose answer ended with
    its first token is in `ended` instead; its blocks too wait for `handoff_ended`.)"""


class Scheduler:
    """Decides each step of one worker and owns every request and block on it."""

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._decoding: list[Request] = []
        self._reserved: dict[str, Request] = {}
        self._handing_over: dict[str, Request] = {}
        self._in_flight: StepPlan | None = None
        self._steps = 0
        self.block_shortages = 0
        """How often a request had to wait or give way for want of KV blocks."""

    # ------------------------------------------------------------------ looking

    @property
    def waiting(self) -> int:
        """Requests not yet admitted."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Requests being read."""
        return len(self._prefilling)

    @property
    def running(self) -> int:
        """Requests being read or decoded."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def reserved(self) -> int:
        """Reservations whose KV has not been committed."""
        return len(self._reserved)

    @property
    def handing_over(self) -> int:
        """Requests read here whose peer has not committed."""
        return len(self._handing_over)

    def request(self, request_id: str) -> Request | None:
        """The request of this id, None when it is not (or no longer) here."""
        return self._requests.get(request_id)

    def request_ids(self) -> tuple[str, ...]:
        """The ids of all requests on this worker."""
        return tuple(self._requests)

    def decoding_requests(self) -> tuple[Request, ...]:
        """The requests that get one token a step, oldest first."""
        return tuple(self._decoding)

    # ------------------------------------------------------------------ coming

    def add(self, request: Request, *, now_s: float) -> Refusal | None:
        """Takes a request that is to be read here; None when it was taken."""
        refusal = self._unfit(request, now_s)
        if refusal is None and len(self._waiting) >= self.limits.max_waiting:
            refusal = Refusal(
                kind="full", what=f"{len(self._waiting)} requests are waiting already"
            )
        if refusal is None:
            request.phase = Phase.WAITING
            self._requests[request.request_id] = request
            self._waiting.append(request)
        return refusal

    def reserve(self, request: Request, *, now_s: float) -> Refusal | None:
        """Keeps blocks for a request that a peer reads; None when they are kept.

        Afterwards `request.cached_tokens` says how many leading tokens are here already and
        `request.blocks` where the rest belongs.
        """
        refusal = self._unfit(request, now_s)
        if refusal is None and not self._has_seat():
            refusal = Refusal(kind="full", what=f"all {self.limits.max_batch_requests} seats taken")
        if refusal is None and not self._admit(request, now_s):
            refusal = Refusal(
                kind="full",
                what=f"{self._blocks_for(request)} KV blocks needed, "
                f"{self.pool.blocks_available} available",
            )
        if refusal is None:
            request.phase = Phase.RESERVED
            self._requests[request.request_id] = request
            self._reserved[request.request_id] = request
        return refusal

    def commit(self, request_id: str, first_token: int) -> bool:
        """The KV of a reserved request is whole: it decodes from the next step on.

        False when the reservation is gone (cancelled, expired); then nothing changes.
        """
        request = self._reserved.pop(request_id, None)
        if request is None:
            return False
        request.computed = len(request.tokens)
        self._remember(request)
        request.tokens.append(first_token)
        request.prefill_told = True
        request.phase = Phase.DECODING
        self._decoding.append(request)
        return True

    # ------------------------------------------------------------------ going

    def cancel(self, request_id: str) -> Request | None:
        """Forgets a request and frees its blocks (after the step in flight); None if unknown.

        Blocks of a request whose hand-off has begun stay until `handoff_ended`: a sender may
        still be reading them.
        """
        request = self._requests.get(request_id)
        if request is None or request.phase is Phase.ENDED:
            return None
        if request.phase is Phase.HANDING_OVER:
            return request
        begun = request.hand_over and request.phase is Phase.PREFILLING
        self._drop_from_lists(request)
        if begun:
            self._keep_for_sender(request)
            return request
        request.phase = Phase.ENDED
        if not self._computing(request):
            self._free(request)
        return request

    def spoil(self, request_id: str) -> Request | None:
        """As `cancel`, for KV that is no numbers: it is not taken up as a prefix again either."""
        request = self._requests.get(request_id)
        if request is not None:
            self.pool.forget(request.blocks)
        return self.cancel(request_id)

    def handoff_ended(self, request_id: str) -> None:
        """The peer has committed, refused, or is given up: the blocks are free."""
        request = self._handing_over.pop(request_id, None)
        if request is not None:
            request.phase = Phase.ENDED
            if not self._computing(request):
                self._free(request)

    def overdue(self, now_s: float) -> tuple[Request, ...]:
        """The requests whose deadline has passed; changes nothing.

        Those being handed over are left to their hand-off's own deadline.
        """
        return tuple(
            request
            for request in self._requests.values()
            if request.deadline_s <= now_s
            and request.phase not in (Phase.HANDING_OVER, Phase.ENDED)
        )

    def expire(self, now_s: float) -> tuple[Request, ...]:
        """Cancels and returns the requests whose deadline has passed."""
        late = self.overdue(now_s)
        for request in late:
            self.cancel(request.request_id)
        return late

    # ------------------------------------------------------------------ stepping

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next step, None when there is nothing to compute."""
        plan = self._whole_step(now_s) or self._mixed_step(now_s)
        if plan is not None:
            self._steps += 1
            self._in_flight = plan
        return plan

    def finish_step(
        self, plan: StepPlan, sampled: Mapping[str, int], *, now_s: float
    ) -> StepOutcome:
        """Takes in what a step computed: `sampled` maps request id to its new token.

        Every `last` prefill and every decode of the plan needs a token, unless the request
        was cancelled meanwhile.
        """
        self._in_flight = None
        tokens: list[Sampled] = []
        prefilled: list[Prefilled] = []
        ended: list[Ended] = []
        handing_over: list[str] = []
        for request, count, last in _work_of(plan):
            if request.phase is Phase.ENDED:
                self._free(request)
            if request.phase not in (Phase.PREFILLING, Phase.DECODING):
                continue
            request.computed += count
            self._remember(request)
            if not last:
                continue
            if not request.prefill_told:
                prefilled.append(self._prefilled(request, now_s))
            token_id = sampled[request.request_id]
            tokens.append(
                Sampled(
                    request_id=request.request_id, index=request.output_tokens, token_id=token_id
                )
            )
            request.tokens.append(token_id)
            self._after_token(request, ended, handing_over)
        return StepOutcome(
            tokens=tuple(tokens),
            prefilled=tuple(prefilled),
            ended=tuple(ended),
            handing_over=tuple(handing_over),
        )

    # ------------------------------------------------------------------ inside

    def _computing(self, request: Request) -> bool:
        """Whether the step in flight computes something of this request."""
        plan = self._in_flight
        return plan is not None and (
            request in plan.decode or any(work.request is request for work in plan.prefill)
        )

    def _unfit(self, request: Request, now_s: float) -> Refusal | None:
        if request.request_id in self._requests:
            return Refusal(kind="bad_request", what="a request of this id is here already")
        if not request.tokens or request.max_tokens < 1:
            return Refusal(kind="bad_request", what="an empty prompt or no token to write")
        if request.deadline_s <= now_s:
            return Refusal(kind="deadline", what="its deadline has passed")
        longest = request.prompt_tokens + request.max_tokens
        if longest > self.limits.max_context:
            return Refusal(
                kind="too_long",
                what=f"{request.prompt_tokens} prompt tokens and up to {request.max_tokens} "
                f"output tokens exceed the context of {self.limits.max_context}",
            )
        needed = blocks_for(longest, self.pool.block_tokens)
        if needed > self.pool.blocks_total:
            return Refusal(
                kind="too_long",
                what=f"{needed} KV blocks needed, this worker has {self.pool.blocks_total}",
            )
        return None

    def _has_seat(self) -> bool:
        return self.running + self.reserved < self.limits.max_batch_requests

    def _blocks_for(self, request: Request) -> int:
        return blocks_for(len(request.tokens), self.pool.block_tokens)

    def _admit(self, request: Request, now_s: float) -> bool:
        """Gives a request the blocks of its known tokens, or changes nothing."""
        size = self.pool.block_tokens
        # At least one token must be computed, to have logits to sample from.
        reusable = (len(request.tokens) - 1) // size if self.pool.prefix_cache else 0
        matched = self.pool.match(request.block_hashes(reusable, size))
        fresh = self._blocks_for(request) - len(matched)
        if fresh > self.pool.available_beside(matched):
            self.block_shortages += 1
            return False
        self.pool.take(matched)
        whole = blocks_for(request.prompt_tokens + request.max_tokens, size)
        room = 0 if request.hand_over else whole - len(matched) - fresh
        after = matched[-1] if matched else None
        request.blocks = matched + self.pool.allocate(fresh, after=after, room=max(0, room))
        request.computed = request.cached_tokens = len(matched) * size
        request.remembered = len(matched)
        request.admitted_s = now_s
        if request.first_admitted_s is None:
            request.first_admitted_s = now_s
        return True

    def _admit_waiting(self, now_s: float) -> Request | None:
        """Admits the first waiting request if a seat and its blocks are there."""
        if not self._waiting or not self._has_seat() or not self._admit(self._waiting[0], now_s):
            return None
        request = self._waiting.popleft()
        request.phase = Phase.PREFILLING
        self._prefilling.append(request)
        return request

    def _whole_step(self, now_s: float) -> StepPlan | None:
        """A step of whole prompts alone, None when the next prompt is not such a one."""
        if not self._prefilling and not self._waiting:
            return None
        budget = self.limits.max_step_tokens
        works: list[PrefillWork] = []
        for request in self._prefilling:
            if request.chunk_tokens is None and budget > 0:
                works.append(_slice(request, budget))
                budget -= works[-1].tokens
        spent = sum(work.tokens for work in works)
        while self._waiting and self._waiting[0].chunk_tokens is None:
            left = min(budget, PACK_TOKENS - spent) if works else budget
            if works and len(self._waiting[0].tokens) > left:
                break
            request = self._admit_waiting(now_s)
            if request is None:
                break
            works.append(_slice(request, budget))
            budget -= works[-1].tokens
            spent += works[-1].tokens
        return StepPlan(step=self._steps, prefill=tuple(works)) if works else None

    def _mixed_step(self, now_s: float) -> StepPlan | None:
        """Every decoding request and one chunk's worth of prompt."""
        preempted = self._make_room()
        decode = tuple(self._decoding)
        works: list[PrefillWork] = []
        budget = self.limits.max_step_tokens - len(decode)
        chunk_left: int | None = None
        for request in self._chunked_prompts(now_s, preempted):
            # The first prompt's chunk size bounds what all prompts together add to this step.
            chunk_left = request.chunk_tokens if chunk_left is None else chunk_left
            take = min(budget, chunk_left or 0, request.chunk_tokens or 0)
            if take <= 0:
                break
            works.append(_slice(request, take))
            budget -= works[-1].tokens
            chunk_left = (chunk_left or 0) - works[-1].tokens
            if chunk_left <= 0:
                break
        if not works and not decode:
            return None
        return StepPlan(
            step=self._steps,
            prefill=tuple(works),
            decode=decode,
            preempted=tuple(preempted),
            context_tokens=sum([request.computed for request in decode]),
        )

    def _chunked_prompts(self, now_s: float, preempted: list[str]) -> Iterable[Request]:
        """Prompts under way, then, where nobody was just thrown out, newly admitted ones."""
        if self._prefilling:
            yield from [r for r in self._prefilling if r.chunk_tokens is not None]
        while not preempted and self._waiting and self._waiting[0].chunk_tokens is not None:
            request = self._admit_waiting(now_s)
            if request is None:
                return
            yield request

    def _make_room(self) -> list[str]:
        """A slot for the next token of each decoding request; the newest give way."""
        preempted: list[str] = []
        size = self.pool.block_tokens
        full = [r for r in self._decoding if len(r.tokens) > len(r.blocks) * size]
        for request in full:
            while len(request.tokens) > len(request.blocks) * size and (
                request.phase is Phase.DECODING
            ):
                if self.pool.blocks_available:
                    request.blocks += self.pool.allocate(1, after=request.blocks[-1])
                    continue
                victim = self._newest()
                self._preempt(victim)
                preempted.append(victim.request_id)
        return preempted

    def _newest(self) -> Request:
        """Who gives way: the newest, but nobody whose KV a sender is reading."""
        candidates = self._decoding + [r for r in self._prefilling if not r.hand_over]
        return max(candidates, key=lambda request: request.arrived_s)

    def _preempt(self, request: Request) -> None:
        """Takes back a request's blocks; it is read again, its tokens so far included."""
        self._drop_from_lists(request)
        self.pool.release(request.blocks)
        request.blocks = []
        request.place = None
        request.computed = request.remembered = 0
        request.preemptions += 1
        self.block_shortages += 1
        request.phase = Phase.WAITING
        self._waiting.appendleft(request)

    def _after_token(self, request: Request, ended: list[Ended], handing_over: list[str]) -> None:
        """Moves a request on once its new token is known."""
        reason = request.end_reason()
        if reason is not None:
            self._drop_from_lists(request)
            if request.hand_over:
                self._keep_for_sender(request)
            else:
                request.phase = Phase.ENDED
                self._free(request)
            ended.append(
                Ended(
                    request_id=request.request_id, reason="stop" if reason == "stop" else "length"
                )
            )
        elif request.hand_over:
            self._drop_from_lists(request)
            self._keep_for_sender(request)
            handing_over.append(request.request_id)
        elif request.phase is Phase.PREFILLING:
            self._prefilling.remove(request)
            request.phase = Phase.DECODING
            self._decoding.append(request)

    def _keep_for_sender(self, request: Request) -> None:
        """Keeps the blocks until `handoff_ended`: a sender may still be reading them."""
        request.phase = Phase.HANDING_OVER
        self._handing_over[request.request_id] = request

    def _prefilled(self, request: Request, now_s: float) -> Prefilled:
        request.prefill_told = True
        admitted = request.first_admitted_s
        admitted = request.arrived_s if admitted is None else admitted
        return Prefilled(
            request_id=request.request_id,
            queue_s=admitted - request.arrived_s,
            prefill_s=now_s - admitted,
            cached_tokens=request.cached_tokens,
        )

    def _remember(self, request: Request) -> None:
        """Tells the pool which blocks are full and what prefix they hold."""
        if not self.pool.prefix_cache:
            return
        size = self.pool.block_tokens
        full = request.computed // size
        if full > request.remembered:
            hashes = request.block_hashes(full, size)
            for index in range(request.remembered, full):
                self.pool.remember(request.blocks[index], hashes[index])
            request.remembered = full

    def _drop_from_lists(self, request: Request) -> None:
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        elif request.phase is Phase.PREFILLING:
            self._prefilling.remove(request)
        elif request.phase is Phase.DECODING:
            self._decoding.remove(request)
        elif request.phase is Phase.RESERVED:
            del self._reserved[request.request_id]

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        self._requests.pop(request.request_id, None)


def _slice(request: Request, most: int) -> PrefillWork:
    tokens = min(request.uncomputed, most)
    return PrefillWork(
        request=request,
        start=request.computed,
        tokens=tokens,
        last=tokens == request.uncomputed,
    )


def _work_of(plan: StepPlan) -> Iterable[tuple[Request, int, bool]]:
    for work in plan.prefill:
        yield work.request, work.tokens, work.last
    for request in plan.decode:
        yield request, 1, True
