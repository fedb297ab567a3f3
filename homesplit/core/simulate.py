"""A discrete-event model of the engine: the router's policy, the workers' scheduler, a clock.

The scheduler and the policy are the engine's own code; only the computing (by the cost
model) and the sending (by the hand-off's arithmetic) are replaced. Stretches of steps in
which a box only writes answers are taken in one leap; an event that comes meanwhile ends
the leap after the step it falls into, as it would have in service.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from homesplit_engine.pages import BlockPool, blocks_for
from homesplit_engine.policy import BoxView, Question, decide, resume
from homesplit_engine.records import Outcome
from homesplit_engine.request import Request
from homesplit_engine.scheduler import Limits, PrefillWork, Scheduler, StepOutcome, StepPlan
from homesplit_engine.words import Timeline
from msgspec import Struct

from homesplit.core.cost import StepClock
from homesplit.core.counted_blocks import CountedBlocks, PrefixNames
from homesplit.core.handoff import Handoff, Piece, hand_over
from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.scene import (
    BLOCK_TOKENS,
    MAX_BATCH,
    MAX_STEP_TOKENS,
    MAX_WAITING,
    Arrangement,
    Scene,
    SimBox,
)
from homesplit.core.sim_admission import SimAdmission

_MOST_BLOCKS = 20_000
LOOP_TOKENS = 500
"""Prompts of up to about so many tokens (2,000 characters) the router tokenises at once, one after
the other; longer ones in a thread."""
_NOTHING = StepOutcome()


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


@dataclass(slots=True)
class _Flight:
    """One request on its way."""

    offered: OfferedRequest
    sent_s: float
    tokens: list[int]
    hashes: list[bytes]
    """Names of the full blocks of prompt and answer; empty where nothing is shared."""
    token_s: list[float] = field(default_factory=list[float])
    """When each token left the router."""
    outcome: Outcome | None = None
    prefill_box: str = ""
    decode_box: str = ""
    pieces: list[Piece] = field(default_factory=list[Piece])
    queue_s: float | None = None
    prefill_s: float | None = None
    handoff: Handoff | None = None
    cached_tokens: int = 0
    writing: bool = False
    unread: int = 0
    send_from: int = 0
    """Leading tokens that the decode box holds already, which are not handed over."""


class _Box:
    """One worker: its scheduler and the step (or leap of steps) in flight."""

    def __init__(self, box: SimBox, *, longest: int, prefix_cache: bool) -> None:
        room = max(1, box.kv_tokens // BLOCK_TOKENS)
        most = max(_MOST_BLOCKS, 8 * blocks_for(longest, BLOCK_TOKENS))
        blocks = min(room, most)
        pool = (
            BlockPool(blocks, BLOCK_TOKENS) if prefix_cache else CountedBlocks(blocks, BLOCK_TOKENS)
        )
        limits = Limits(
            max_batch_requests=MAX_BATCH,
            max_step_tokens=MAX_STEP_TOKENS,
            max_waiting=MAX_WAITING,
            max_context=longest,
        )
        self.name = box.name
        self.cost = StepClock(box.cost)
        self.together = box.together
        self.scheduler = Scheduler(pool, limits)
        self.plan: StepPlan | None = None
        self.start_s = 0.0
        self.end_s = 0.0
        self.steps = 1
        self.first_s = 0.0
        self.growth_s = 0.0

    def begin(self, now_s: float, *, beside: bool) -> bool:
        """Start the next step or leap, perhaps beside the other box's; False when there is none."""
        plan = self.scheduler.schedule(now_s)
        self.plan = plan
        if plan is None:
            return False
        batch, context = len(plan.decode), plan.context_tokens
        pieces = [(work.start, work.tokens) for work in plan.prefill]
        self.start_s = now_s
        self.first_s = self.cost.step_seconds(pieces, batch, context)
        self.steps = 1 if pieces else self._leap_length(plan)
        self.growth_s = 0.0
        if self.steps > 1:
            last = self.cost.step_seconds([], batch, context + batch * (self.steps - 1))
            self.growth_s = (last - self.first_s) / (self.steps - 1)
        if beside:
            self.first_s *= self.together
            self.growth_s *= self.together
        self.end_s = now_s + self.after(self.steps)
        return True

    def after(self, steps: int) -> float:
        """Seconds from the start to the end of so many steps of this leap."""
        return steps * self.first_s + self.growth_s * steps * (steps - 1) / 2.0

    def _leap_length(self, plan: StepPlan) -> int:
        """Steps until the first answer ends, or 1 where blocks are short."""
        steps = min([r.max_tokens + r.prompt_tokens - len(r.tokens) for r in plan.decode])
        if steps <= 1:
            return 1
        pool = self.scheduler.pool
        size = pool.block_tokens
        if len(plan.decode) * (steps // size + 1) <= pool.blocks_available:
            return steps
        more = sum(
            max(0, blocks_for(len(request.tokens) + steps, size) - len(request.blocks))
            for request in plan.decode
        )
        return steps if more <= pool.blocks_available else 1

    def interrupt(self, now_s: float) -> bool:
        """Cut a leap at the end of the step that `now_s` falls into; True when it was cut."""
        if self.plan is None or self.steps <= 1 or now_s >= self.end_s:
            return False
        low, high = 1, self.steps
        while low < high:
            middle = (low + high) // 2
            if self.start_s + self.after(middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        if low == self.steps:
            return False
        self.steps = low
        self.end_s = self.start_s + self.after(low)
        return True

    def finish(self, plan: StepPlan) -> StepOutcome:
        """Take in the step or leap: the scheduler is told of what it must act on.

        An answer that goes on only grows by its tokens, which needs nobody's decision.
        """
        steps, ahead = self.steps, self.steps - 1
        pool = self.scheduler.pool
        size = pool.block_tokens
        grown = [0] * steps
        ending: list[Request] = []
        for request in plan.decode:
            tokens, blocks = request.tokens, request.blocks
            known = len(tokens) + ahead
            if known > len(blocks) * size:
                blocks += pool.allocate(blocks_for(known, size) - len(blocks), after=blocks[-1])
            if known + 1 < request.prompt_tokens + request.max_tokens:
                tokens += grown
                request.computed += steps
            else:
                tokens += grown[1:]
                request.computed += ahead
                ending.append(request)
        if not ending and not plan.prefill:
            return _NOTHING
        sampled = {request.request_id: 0 for request in ending}
        sampled.update({work.request.request_id: 0 for work in plan.prefill if work.last})
        left = plan
        if len(ending) < len(plan.decode):
            left = StepPlan(step=plan.step, prefill=plan.prefill, decode=tuple(ending))
        return self.scheduler.finish_step(left, sampled, now_s=self.end_s)


class Simulation:
    """One run of one arrangement over one load."""

    def __init__(
        self,
        scene: Scene,
        arrangement: Arrangement,
        load: LoadPlan,
        *,
        enough: int | None,
        until_s: float | None = None,
        ttft_target_s: float | None = None,
    ) -> None:
        self.scene = scene
        self.setting = arrangement.setting
        self.closed = load.closed
        self.enough = enough
        self.until_s = float("inf") if until_s is None else until_s
        longest = max((r.prompt_tokens + r.output_tokens for r in load.requests), default=1)
        shared = any(
            len(request.prompt) > 1 or request.shared_group is not None for request in load.requests
        )
        self.shared = shared
        self.names = PrefixNames(BLOCK_TOKENS)
        self.boxes = {
            name: _Box(scene.box(name), longest=longest + 1, prefix_cache=shared)
            for name in arrangement.boxes
        }
        self.others = {
            name: tuple(other for other in self.boxes.values() if other is not box)
            for name, box in self.boxes.items()
        }
        self.rate = {pair: wire.bytes_per_s for pair, wire in scene.wires.items()}
        self.free_s = dict.fromkeys(scene.wires, 0.0)
        self.kv_bytes_per_token = scene.shape.kv_bytes_per_token(scene.kv_dtype)
        self.state_bytes = scene.shape.state_bytes(scene.kv_dtype)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.flights: dict[str, _Flight] = {}
        self.done: list[_Flight] = []
        self.followers: dict[int, list[OfferedRequest]] = {}
        self.number = 0
        self.turn = 0
        self.now_s = 0.0
        self.loop_free_s = 0.0
        """When the router's event loop is through with what it was given."""
        self.admission = self._admission(load, ttft_target_s)
        self._plan(load.requests)

    def _admission(self, load: LoadPlan, ttft_target_s: float | None) -> SimAdmission:
        """The router's judges, who know how fast the boxes that read do so."""
        if ttft_target_s is None or not load.requests:
            return SimAdmission(None)
        mean = sum(r.prompt_tokens for r in load.requests) / len(load.requests)
        only = self.setting.prefill_box if self.setting.mode == "split" else None
        reading = [box for name, box in self.boxes.items() if only in (None, name)]
        rate = sum(1.0 / box.cost.step_seconds([(0, round(mean))], 0, 0) for box in reading)
        return SimAdmission(ttft_target_s, prompt_tokens=mean, read_s=1.0 / rate)

    # ------------------------------------------------------------------ events

    def _at(self, when_s: float, what: Callable[[float], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (when_s, self.number, what))

    def _plan(self, requests: Sequence[OfferedRequest]) -> None:
        for request in requests:
            if request.after is not None:
                self.followers.setdefault(request.after, []).append(request)
            else:
                self._send(request, (request.send_at_s or 0.0) + request.pause_s)

    def _send(self, request: OfferedRequest, when_s: float) -> None:
        tokens = self._tokens(request)
        # Answers are zeros here, so that their blocks are known beforehand too.
        whole = tokens + [0] * request.output_tokens if self.shared else []
        flight = _Flight(offered=request, sent_s=when_s, tokens=tokens, hashes=self.names.of(whole))
        self._at(when_s, lambda now_s: self._received(flight, now_s))

    def _received(self, flight: _Flight, now_s: float) -> None:
        """Tokenised in turn by the router's one event loop; long prompts beside it, in threads."""
        count = len(flight.tokens)
        took_s = self.scene.tokenising_s(count)
        ready_s = now_s + took_s
        if count <= LOOP_TOKENS:
            ready_s = self.loop_free_s = max(now_s, self.loop_free_s) + took_s
        self._at(ready_s + self.scene.router_s, lambda then_s: self._place(flight, then_s))

    def _tokens(self, request: OfferedRequest) -> list[int]:
        if not self.shared:
            return [0] * request.prompt_tokens
        tokens: list[int] = []
        replies = list(request.replies)
        for part in request.prompt:
            tokens.extend([part.seed & 0x7FFFFFFF] * part.tokens)
            if replies and part.seed + 1 == replies[0].seed:
                reply = replies.pop(0)
                # The engine's own answers are what is cached, and the model writes zeros.
                tokens.extend([0] * reply.tokens)
        return tokens

    def run(self) -> SimResult:
        """Run until everything that was offered has ended, or enough has."""
        boxes = tuple(self.boxes.values())
        while True:
            step: _Box | None = None
            for box in boxes:
                if box.plan is not None and (step is None or box.end_s < step.end_s):
                    step = box
            if self.events and (step is None or self.events[0][0] <= step.end_s):
                self.now_s, _, what = heapq.heappop(self.events)
                what(self.now_s)
            elif step is not None:
                self.now_s = step.end_s
                self._step_ended(step)
            else:
                break
            if self.enough is not None and len(self.done) >= self.enough:
                break
        return self._result()

    # ------------------------------------------------------------------ placing

    def _views(self, asking: _Flight, *, counted: bool = False) -> list[BoxView]:
        """The boxes as the router knows them when `asking` is to be placed."""
        if self.setting.mode in ("colocated", "split") and not counted:
            # These place every request alike, whatever is under way.
            return [BoxView(box=name) for name in self.boxes]
        # Requests, of these writing, tokens unread and to be handed over; contexts and their sum.
        held = {name: [0, 0, 0, 0, 0, 0] for name in self.boxes}
        for flight in self.flights.values():
            reads, writes = held[flight.prefill_box], held[flight.decode_box]
            reads[0] += 1
            reads[2] += flight.unread
            writes[1] += flight.writing
            writes[4] += 1
            writes[5] += len(flight.tokens)
            if reads is not writes:
                writes[0] += 1
                reads[3] += 0 if flight.writing else len(flight.tokens)
        rated = self.setting.mode == "auto"
        prompt_tokens = len(asking.tokens)
        return [
            BoxView(
                box=name,
                requests=held[name][0],
                decoding=held[name][1],
                pending_prefill_tokens=held[name][2],
                cached_tokens=self._cached(name, asking),
                handing_over_tokens=held[name][3],
                free_tokens=self.boxes[name].scheduler.pool.blocks_available * BLOCK_TOKENS,
                prefill_tokens_per_s=self._reading_rate(name, prompt_tokens) if rated else None,
                decode_step_s=self._writing_step_s(name, held[name]) if rated else None,
            )
            for name in self.boxes
        ]

    def _cached(self, name: str, asking: _Flight) -> int:
        """Leading tokens of a prompt that a box holds; the last one is always computed."""
        whole = asking.hashes[: (len(asking.tokens) - 1) // BLOCK_TOKENS]
        return len(self.boxes[name].scheduler.pool.match(whole)) * BLOCK_TOKENS

    def _reading_rate(self, name: str, prompt_tokens: int) -> float:
        """Tokens per second, as the router would have measured them by now."""
        cost = self.boxes[name].cost
        return prompt_tokens / max(cost.step_seconds([(0, prompt_tokens)], 0, 0), 1e-9)

    def _writing_step_s(self, name: str, held: Sequence[int]) -> float:
        """A step with what the box writes now, over the contexts of what is under way."""
        _, writing, _, _, known, summed = held
        batch, context = max(1, writing), summed / known if known else 0.0
        return self.boxes[name].cost.step_seconds([], batch, int(batch * context))

    def _place(self, flight: _Flight, now_s: float) -> None:
        if not self.admission.lets_in(flight.offered.id, len(flight.tokens), now_s):
            self._end(flight, "rejected", now_s)
            return
        self.turn += 1
        question = Question(
            prompt_tokens=len(flight.tokens),
            max_tokens=flight.offered.output_tokens,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )
        views = self._views(flight)
        decision = decide(self.setting, views, self.rate, question, self.turn)
        assert decision is not None
        flight.prefill_box, flight.decode_box = decision.prefill_box, decision.decode_box
        flight.unread = len(flight.tokens)
        request = self._request(flight, decision.chunk_tokens, now_s)
        if decision.kind == "split":
            self._reserve(flight, request, now_s)
        else:
            self._submit(flight, request, now_s)

    def _request(self, flight: _Flight, chunk_tokens: int | None, now_s: float) -> Request:
        return Request(
            request_id=str(flight.offered.id),
            tokens=list(flight.tokens),
            hashes=flight.hashes,
            prompt_tokens=len(flight.tokens),
            max_tokens=flight.offered.output_tokens,
            arrived_s=now_s,
            deadline_s=float("inf"),
            chunk_tokens=chunk_tokens,
        )

    def _reserve(self, flight: _Flight, request: Request, now_s: float) -> None:
        """Room on the decode box first, then the prompt goes to the prefill box."""
        pair = (flight.prefill_box, flight.decode_box)
        held = self._request(flight, request.chunk_tokens, now_s)
        refused = self.boxes[flight.decode_box].scheduler.reserve(held, now_s=now_s)
        if refused is not None:
            views = self._views(flight, counted=True)
            decision = resume(self.setting, views, refused.what, flight.decode_box)
            assert decision is not None
            flight.prefill_box = flight.decode_box = decision.prefill_box
            self._submit(flight, request, now_s)
            return
        request.hand_over = True
        flight.send_from = held.cached_tokens
        self.flights[request.request_id] = flight
        wait_s = self.scene.wires[pair].round_trip_s
        self._at(now_s + wait_s, lambda then_s: self._submit(flight, request, then_s))

    def _submit(self, flight: _Flight, request: Request, now_s: float) -> None:
        box = self.boxes[flight.prefill_box]
        request.arrived_s = now_s
        refused = box.scheduler.add(request, now_s=now_s)
        if refused is not None:
            if flight.decode_box != flight.prefill_box:
                self.boxes[flight.decode_box].scheduler.cancel(request.request_id)
            self._end(flight, "rejected", now_s)
            return
        self.flights[request.request_id] = flight
        self._wake(box, now_s)

    def _wake(self, box: _Box, now_s: float) -> None:
        if box.plan is None:
            self._begin(box, now_s)
        else:
            box.interrupt(now_s)

    def _begin(self, box: _Box, now_s: float) -> None:
        """Start the box's next step; who feels it when it starts or ends work looks anew."""
        others = self.others[box.name]
        was_busy = box.plan is not None
        beside = any(other.plan is not None for other in others)
        if box.begin(now_s, beside=beside) != was_busy:
            for other in others:
                if other.together > 1.0:
                    other.interrupt(now_s)

    # ------------------------------------------------------------------ steps

    def _step_ended(self, box: _Box) -> None:
        plan = box.plan
        assert plan is not None
        now_s = box.end_s
        self._tell_times(box, plan)
        for work in plan.prefill:
            if work.request.hand_over:
                self._piece_read(box, work)
        outcome = box.finish(plan)
        for done in outcome.prefilled:
            flight = self.flights[done.request_id]
            flight.queue_s, flight.prefill_s = done.queue_s, done.prefill_s
            flight.cached_tokens = done.cached_tokens
            flight.unread = 0
            self.admission.first_token(flight.offered.id, now_s)
            flight.writing = flight.prefill_box == flight.decode_box
        for ended in outcome.ended:
            self._answer_ended(self.flights[ended.request_id], box, now_s)
        for request_id in outcome.handing_over:
            self._hand_over(self.flights[request_id], box, now_s)
        self._begin(box, now_s)

    def _tell_times(self, box: _Box, plan: StepPlan) -> None:
        """Note when the tokens of the step or leap are out: at its end, and each before it."""
        router_s = self.scene.router_s
        times = [box.end_s + router_s]
        if box.steps > 1:
            began_s, each_s, half_s = box.start_s + router_s, box.first_s, box.growth_s / 2.0
            before = range(1, box.steps)
            times = [began_s + i * (each_s + half_s * (i - 1)) for i in before] + times
        for request in plan.decode:
            self.flights[request.request_id].token_s += times
        for work in plan.prefill:
            if work.last:
                self.flights[work.request.request_id].token_s.append(times[-1])

    def _piece_read(self, box: _Box, work: PrefillWork) -> None:
        """KV that is to be handed over: what was read, and at first what was cached before it."""
        flight = self.flights[work.request.request_id]
        if not flight.pieces and work.start > flight.send_from:
            cached = float((work.start - flight.send_from) * self.kv_bytes_per_token)
            self._piece(flight, box.start_s, box.start_s, cached)
        fresh = max(0, work.start + work.tokens - max(work.start, flight.send_from))
        count = float(fresh * self.kv_bytes_per_token + (self.state_bytes if work.last else 0))
        self._piece(flight, box.start_s, box.end_s, count)

    def _piece(self, flight: _Flight, start_s: float, end_s: float, count: float) -> None:
        flight.pieces.append(Piece(start_s=start_s, end_s=end_s, bytes=count))

    def _hand_over(self, flight: _Flight, box: _Box, now_s: float) -> None:
        pair = (flight.prefill_box, flight.decode_box)
        request_id = str(flight.offered.id)
        made = hand_over(
            flight.pieces,
            self.scene.wires[pair],
            layers=self.scene.shape.layers,
            free_s=self.free_s[pair],
        )
        self.free_s[pair] = made.wire_end_s
        flight.handoff = made
        commit_s = max(now_s, made.commit_s)
        self._at(commit_s, lambda then_s: self._commit(flight, box, request_id, then_s))

    def _commit(self, flight: _Flight, sender: _Box, request_id: str, now_s: float) -> None:
        sender.scheduler.handoff_ended(request_id)
        if sender.plan is None:
            self._begin(sender, now_s)
        receiver = self.boxes[flight.decode_box]
        receiver.scheduler.commit(request_id, 0)
        flight.writing = True
        self._wake(receiver, now_s)

    def _answer_ended(self, flight: _Flight, box: _Box, now_s: float) -> None:
        if flight.decode_box != box.name and flight.prefill_box == box.name:
            # The answer was one token long: the room kept for it is not needed.
            self.boxes[flight.decode_box].scheduler.cancel(str(flight.offered.id))
        self._end(flight, "completed", now_s)

    def _end(self, flight: _Flight, outcome: Outcome, now_s: float) -> None:
        self.flights.pop(str(flight.offered.id), None)
        flight.outcome = outcome
        self.admission.first_token(flight.offered.id, now_s)
        self.done.append(flight)
        for follower in self.followers.pop(flight.offered.id, ()):
            if now_s + follower.pause_s < self.until_s:
                self._send(follower, now_s + follower.pause_s)

    # ------------------------------------------------------------------ result

    def _result(self) -> SimResult:
        ordered = sorted(self.done, key=lambda flight: flight.offered.id)
        records = tuple(
            SimRecord(
                timeline=Timeline(
                    request_id=str(flight.offered.id),
                    outcome=flight.outcome or "failed",
                    start_s=flight.sent_s,
                    token_s=tuple(flight.token_s),
                    prompt_tokens=len(flight.tokens),
                    output_tokens=len(flight.token_s),
                    class_name=flight.offered.class_,
                ),
                queue_s=flight.queue_s,
                prefill_s=flight.prefill_s,
                handoff_s=flight.handoff.total_s if flight.handoff else None,
                handoff_exposed_s=flight.handoff.exposed_s if flight.handoff else None,
                cached_tokens=flight.cached_tokens,
            )
            for flight in ordered
        )
        return SimResult(records=records, window_s=self.now_s)


def simulate(
    scene: Scene,
    arrangement: Arrangement,
    load: LoadPlan,
    *,
    enough: int | None = None,
    until_s: float | None = None,
    ttft_target_s: float | None = None,
) -> SimResult:
    """Run `load` through `arrangement`.

    `enough` ends a closed loop after so many requests; from `until_s` on, no user asks the
    next question, as in a measured run. With a TTFT target the router refuses under overload.
    """
    sent = scene.sending(arrangement.setting.kv_wire)
    return Simulation(
        sent, arrangement, load, enough=enough, until_s=until_s, ttft_target_s=ttft_target_s
    ).run()
