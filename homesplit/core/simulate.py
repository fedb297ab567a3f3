"""A discrete-event model of the engine: the router's policy, the workers' scheduler, a clock.

The scheduler and the policy are the engine's own code; only the computing (by the cost
model) and the sending (by the hand-off's arithmetic) are replaced.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from homesplit_engine.policy import BoxView, Decision, Question, decide, resume
from homesplit_engine.records import Outcome
from homesplit_engine.request import Phase, Request
from homesplit_engine.scheduler import PrefillWork
from homesplit_engine.words import Timeline, judgement
from msgspec import Struct

from homesplit.core.counted_blocks import PrefixNames
from homesplit.core.handoff import MOST_OPENING, Handoff, Piece
from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.scene import BLOCK_TOKENS, Arrangement, Scene
from homesplit.core.sim_admission import SimAdmission
from homesplit.core.sim_flight import Board, Flight, Held
from homesplit.core.sim_line import Line, Patience
from homesplit.core.sim_worker import SimWorker

IDLE_WAIT_S = 0.25
"""As the worker's: how long it waits where it found nothing to compute and nobody wakes it."""
SLOWLY_S = 0.5
"""A hand-off that takes longer may be one of a queue that nobody waits for."""
LOOP_TOKENS = 500
"""Prompts of up to about so many tokens (2,000 characters) the router tokenises at once, one after
the other; longer ones in a thread."""


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
        leaps: bool = True,
        gives_up: bool = False,
        bound: Bound | None = None,
        before: Sequence[OfferedRequest] = (),
    ) -> None:
        self.scene = scene
        self.setting = arrangement.setting
        self.closed = load.closed
        self.enough = enough
        self.until_s = float("inf") if until_s is None else until_s
        longest = max((r.prompt_tokens + r.output_tokens for r in load.requests), default=1)
        self.bound = bound
        self.missed = 0
        self.hopeless = False
        self.gives_up = gives_up
        shared = _have_prefixes(load) or (gives_up and _sent_slowly(scene, arrangement, load))
        self.shared = shared
        self.names = PrefixNames(BLOCK_TOKENS)
        self.boxes = {
            name: SimWorker(scene.box(name), longest=longest + 1, prefix_cache=shared, leaps=leaps)
            for name in arrangement.boxes
        }
        self.others = {
            name: tuple(other for other in self.boxes.values() if other is not box)
            for name, box in self.boxes.items()
        }
        for (sender, _), wire in scene.wires.items():
            if sender in self.boxes:
                self.boxes[sender].sending = wire.sending
        self.fed = {
            name: [
                (self.boxes[pair[0]], pair, wire)
                for pair, wire in scene.wires.items()
                if pair[1] == name and pair[0] in self.boxes and wire.opening_byte_s > 0
            ]
            for name in self.boxes
        }
        """By receiver whose processor opens what comes: who may send to it."""
        self.felt = any(box.together > 1.0 for box in self.boxes.values())
        """Whether a box takes longer while the other one computes."""
        self.rate = {pair: wire.bytes_per_s for pair, wire in scene.wires.items()}
        self.alike: dict[bool, Decision] = {}
        self.reading_rates: dict[tuple[str, int], float] = {}
        layers = scene.shape.layers
        self.lines = {pair: Line(wire, layers) for pair, wire in scene.wires.items()}
        self.patience: dict[int, Patience] = {}
        """By request whose hand-off is waited for."""
        self.kv_bytes_per_token = scene.shape.kv_bytes_per_token(scene.kv_dtype)
        self.state_bytes = scene.shape.state_bytes(scene.kv_dtype)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.board = Board(self.boxes)
        self.flights = self.board.flights
        self.done: list[Flight] = []
        self.followers: dict[int, list[OfferedRequest]] = {}
        self.number = 0
        self.turn = 0
        self.now_s = 0.0
        self.loop_free_s = 0.0
        """When the router's event loop is through with what it was given."""
        self.admission = self._admission(load, ttft_target_s)
        self._plan(load.requests)
        self._fill(before)

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

    def _fill(self, before: Sequence[OfferedRequest]) -> None:
        """What the boxes hold of questions that were answered before; the last ones stay.

        Of a split the box that reads has the prompts, the one that writes the answers too.
        """
        reads = self.setting.prefill_box if self.setting.mode == "split" else None
        for number, request in enumerate(before):
            runs = _runs(request)
            whole = self.names.of_runs([*runs, (0, request.output_tokens)])
            for place, (name, box) in enumerate(self.boxes.items()):
                if reads is not None:
                    full = request.prompt_tokens // BLOCK_TOKENS
                    box.fill(whole[:full] if name == reads else whole)
                elif place == number % len(self.boxes):
                    box.fill(whole)

    def _send(self, request: OfferedRequest, when_s: float) -> None:
        flight = Flight(offered=request, sent_s=when_s, prompt_tokens=request.prompt_tokens)
        there_s = when_s + self.scene.client_s / 2.0
        self._at(there_s, lambda now_s: self._received(flight, now_s))
        if request.cancel_after_s is not None:
            self._at(when_s + request.cancel_after_s, lambda now_s: self._given_up(flight, now_s))

    def _received(self, flight: Flight, now_s: float) -> None:
        """Tokenised in turn by the router's one event loop; long prompts beside it, in threads."""
        if self.shared:
            runs = _runs(flight.offered)
            flight.tokens = []
            for value, count in runs:
                flight.tokens += [value] * count
            # Answers are zeros here, so that their blocks are known beforehand too.
            flight.hashes = self.names.of_runs([*runs, (0, flight.offered.output_tokens)])
        count = flight.prompt_tokens
        took_s = self.scene.tokenising_s(count)
        ready_s = now_s + took_s
        if count <= LOOP_TOKENS:
            ready_s = self.loop_free_s = max(now_s, self.loop_free_s) + took_s
        self._at(ready_s + self.scene.router_s, lambda then_s: self._place(flight, then_s))

    def run(self) -> SimResult:
        """Run until everything that was offered has ended, or enough has."""
        boxes, events, done, never = tuple(self.boxes.values()), self.events, self.done, math.inf
        enough = never if self.enough is None else self.enough
        while len(done) < enough and not self.hopeless:
            step, ends_s = None, never
            for box in boxes:
                if box.plan is not None and (step is None or box.end_s < ends_s):
                    step, ends_s = box, box.end_s
            if events and (step is None or events[0][0] <= ends_s):
                self.now_s, _, what = heapq.heappop(events)
                what(self.now_s)
            elif step is not None:
                self.now_s = ends_s
                self._step_ended(step)
            else:
                break
        return self._result()

    # ------------------------------------------------------------------ placing

    def _views(self, asking: Flight) -> list[BoxView]:
        """The boxes as the router knows them when `asking` is to be placed."""
        rated = self.setting.mode == "auto"
        prompt_tokens = asking.prompt_tokens
        return [
            BoxView(
                box=name,
                requests=held.requests,
                decoding=held.writing,
                pending_prefill_tokens=held.unread_tokens,
                cached_tokens=self._cached(name, asking),
                handing_over_tokens=held.handing_over_tokens,
                free_tokens=self.boxes[name].scheduler.pool.blocks_available * BLOCK_TOKENS,
                prefill_tokens_per_s=self._reading_rate(name, prompt_tokens) if rated else None,
                decode_step_s=self._writing_step_s(name, held) if rated else None,
            )
            for name, held in self.board.held.items()
        ]

    def _decision(self, flight: Flight) -> Decision:
        """The engine's own policy's."""
        question = Question(
            prompt_tokens=flight.prompt_tokens,
            max_tokens=flight.offered.output_tokens,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )
        if self.setting.mode not in ("colocated", "split"):
            made = decide(
                self.setting, self._views(flight), self.rate, question, self.turn, told=False
            )
            assert made is not None
            return made
        # These place every request alike, whatever is under way, but for answers of one token.
        short = question.max_tokens <= 1
        known = self.alike.get(short)
        if known is None:
            views = [BoxView(box=name) for name in self.boxes]
            known = decide(self.setting, views, self.rate, question, self.turn)
            assert known is not None
            self.alike[short] = known
        return known

    def _cached(self, name: str, asking: Flight) -> int:
        """Leading tokens of a prompt that a box holds; the last one is always computed."""
        if not asking.hashes:
            return 0
        whole = asking.hashes[: (asking.prompt_tokens - 1) // BLOCK_TOKENS]
        return len(self.boxes[name].scheduler.pool.match(whole)) * BLOCK_TOKENS

    def _reading_rate(self, name: str, prompt_tokens: int) -> float:
        """Tokens per second, as the router would have measured them by now."""
        known = self.reading_rates.get((name, prompt_tokens))
        if known is None:
            took_s = self.boxes[name].cost.step_seconds([(0, prompt_tokens)], 0, 0)
            known = self.reading_rates[(name, prompt_tokens)] = prompt_tokens / max(took_s, 1e-9)
        return known

    def _writing_step_s(self, name: str, held: Held) -> float:
        """A step with what the box writes now, over the contexts of what is under way."""
        context = held.context_tokens / held.known if held.known else 0.0
        batch = max(1, held.writing)
        return self.boxes[name].cost.step_seconds([], batch, int(batch * context))

    def _place(self, flight: Flight, now_s: float) -> None:
        if flight.outcome is not None:
            return
        if not self.admission.lets_in(flight.offered.id, flight.prompt_tokens, now_s):
            self._end(flight, "rejected", now_s)
            return
        self.turn += 1
        decision = self._decision(flight)
        flight.prefill_box, flight.decode_box = decision.prefill_box, decision.decode_box
        flight.unread = flight.prompt_tokens
        request = self._request(flight, decision.chunk_tokens, now_s)
        if decision.kind == "split":
            self._reserve(flight, request, now_s)
        else:
            self._submit(flight, request, now_s)

    def _request(self, flight: Flight, chunk_tokens: int | None, now_s: float) -> Request:
        return Request(
            request_id=str(flight.offered.id),
            tokens=list(flight.tokens) if self.shared else [0] * flight.prompt_tokens,
            hashes=flight.hashes,
            prompt_tokens=flight.prompt_tokens,
            max_tokens=flight.offered.output_tokens,
            arrived_s=now_s,
            deadline_s=float("inf"),
            chunk_tokens=chunk_tokens,
        )

    def _reserve(self, flight: Flight, request: Request, now_s: float) -> None:
        """The prompt is read at once, while the decode box is asked to keep room for it.

        In service the room is asked for first where that box is known to be full; a refusal then
        costs nothing of what is read here.
        """
        pair = (flight.prefill_box, flight.decode_box)
        held = self._request(flight, request.chunk_tokens, now_s)
        self.boxes[flight.decode_box].make_way(len(held.tokens), now_s)
        refused = self.boxes[flight.decode_box].scheduler.reserve(held, now_s=now_s)
        if refused is not None:
            views = self._views(flight)
            decision = resume(self.setting, views, refused.what, flight.decode_box)
            assert decision is not None
            flight.prefill_box = flight.decode_box = decision.prefill_box
            self._submit(flight, request, now_s)
            return
        request.hand_over = True
        flight.send_from = held.cached_tokens
        self.board.join(request.request_id, flight)
        flight.room_known_s = now_s + self.scene.wires[pair].reserving_s
        self._submit(flight, request, now_s)

    def _submit(self, flight: Flight, request: Request, now_s: float) -> None:
        if flight.outcome is not None:
            return
        box = self.boxes[flight.prefill_box]
        request.arrived_s = now_s
        refused = box.scheduler.add(request, now_s=now_s)
        if refused is not None:
            if flight.decode_box != flight.prefill_box:
                self.boxes[flight.decode_box].scheduler.cancel(request.request_id)
            self._end(flight, "rejected", now_s)
            return
        self.board.join(request.request_id, flight)
        if box.plan is None:
            self._begin(box, now_s)
        else:
            box.let_wait(now_s)

    def _wake(self, box: SimWorker, now_s: float) -> None:
        if box.plan is None:
            self._begin(box, now_s)
        else:
            box.interrupt(now_s)

    def _begin(self, box: SimWorker, now_s: float) -> None:
        """Start the box's next step; who feels it when it starts or ends work looks anew."""
        was_busy, handed = box.plan is not None, box.handing
        opening = self._opening(box, now_s)
        if not self.felt:
            box.begin(now_s, beside=False, opening=opening)
        else:
            others = self.others[box.name]
            beside = any(other.plan is not None for other in others)
            if box.begin(now_s, beside=beside, opening=opening) != was_busy:
                for other in others:
                    if other.together > 1.0:
                        other.interrupt(now_s)
        if box.handing != handed:
            for other in self.others[box.name]:
                if self.fed[other.name]:
                    other.interrupt(now_s)
        if box.plan is not None:
            for request_id in box.plan.preempted:
                self.flights[request_id].take_tokens()
        elif was_busy and box.scheduler.waiting:
            self._out_of_room(box, now_s)

    def _opening(self, box: SimWorker, now_s: float) -> float:
        """The share of a box's computing that the KV takes which comes now."""
        share = 0.0
        for sender, pair, wire in self.fed[box.name]:
            if self.lines[pair].free_s > now_s:
                share += wire.opening(wire.bytes_per_s)
            elif sender.handing > 0:
                tokens_per_s = self._reading_rate(sender.name, sender.handing) / sender.sending
                share += wire.opening(tokens_per_s * self.kv_bytes_per_token)
        return min(share, MOST_OPENING)

    def _out_of_room(self, box: SimWorker, now_s: float) -> None:
        """The last answer gave up its blocks to nobody: the worker looks again after a while."""
        for flight in self.flights.values():
            if flight.written_s is box.told_s:
                flight.take_tokens()
        self._at(now_s + IDLE_WAIT_S, lambda then_s: self._wake(box, then_s))

    # ------------------------------------------------------------------ steps

    def _step_ended(self, box: SimWorker) -> None:
        plan = box.plan
        assert plan is not None
        now_s = box.end_s
        last_s = box.tell(plan, self.scene.back_s)
        read = box.read(plan)
        for work in read:
            self._piece_read(box, work, last_s)
        outcome = box.finish(plan, read)
        for done in outcome.prefilled:
            flight = self.flights[done.request_id]
            if flight.prefill_s is None:
                # Where it is read again, all of it may be there, and answer too.
                flight.queue_s, flight.prefill_s = done.queue_s, done.prefill_s
                flight.cached_tokens = done.cached_tokens
            self.board.read(flight)
            self.admission.first_token(flight.offered.id, now_s)
        for ended in outcome.ended:
            self._answer_ended(self.flights[ended.request_id], box, now_s)
        for request_id in outcome.handing_over:
            self._hand_over(self.flights[request_id], box, now_s)
        for work in plan.prefill:
            if work.request.phase is Phase.DECODING:
                box.joins(self.flights[work.request.request_id])
        self._begin(box, now_s)

    def _piece_read(self, box: SimWorker, work: PrefillWork, last_s: float) -> None:
        """A first token, and KV to be handed over: at first also what was cached before it."""
        flight = self.flights.get(work.request.request_id)
        if flight is None:
            return
        if work.last:
            flight.token_s.append(last_s)
        if not work.request.hand_over:
            return
        if not flight.pieces and work.start > flight.send_from:
            cached = float((work.start - flight.send_from) * self.kv_bytes_per_token)
            self._piece(flight, box.start_s, box.start_s, cached)
        start, pieces = work.start, box.pieces(work)
        for left, (tokens, start_s, end_s) in enumerate(pieces, 1 - len(pieces)):
            fresh = max(0, start + tokens - max(start, flight.send_from))
            start += tokens
            state = 0 if left or not work.last else self.state_bytes
            self._piece(flight, start_s, end_s, float(fresh * self.kv_bytes_per_token + state))

    def _piece(self, flight: Flight, start_s: float, end_s: float, count: float) -> None:
        flight.pieces.append(Piece(start_s=start_s, end_s=end_s, bytes=count))

    def _hand_over(self, flight: Flight, box: SimWorker, now_s: float) -> None:
        line = self.lines[flight.prefill_box, flight.decode_box]
        made = line.send(flight)
        self._is_sent(flight, made, box, now_s)
        if self.gives_up and made.commit_s > now_s:
            patience = self.patience[flight.offered.id] = Patience(line, flight, now_s)
            self._look_later(flight, patience, now_s)

    def _is_sent(self, flight: Flight, made: Handoff, box: SimWorker, now_s: float) -> None:
        """What follows from when its KV will be through, as far as is known now."""
        if self.fed[flight.decode_box] and made.wire_end_s > now_s:
            # From now on it comes as quickly as the link carries it, and then no more.
            receiver = self.boxes[flight.decode_box]
            self._look_anew(receiver, now_s)
            self._at(made.wire_end_s, lambda then_s: self._look_anew(receiver, then_s))
        commit_s = max(now_s, made.commit_s)
        self._at(commit_s, lambda then_s: self._commit(flight, made, box, then_s))

    def _send_no_more(self, flight: Flight, now_s: float) -> None:
        """What has not left yet does not leave any more, and who waits behind goes sooner."""
        line = self.lines.get((flight.prefill_box, flight.decode_box))
        if line is None:
            return
        box = self.boxes[flight.prefill_box]
        for other in line.dropped(flight, now_s):
            if other.handoff is not None:
                self._is_sent(other, other.handoff, box, now_s)

    # ------------------------------------------------------------------ giving hand-offs up

    def _look_later(self, flight: Flight, patience: Patience, now_s: float) -> None:
        when_s = patience.next_look_s(now_s, self._read_again_s(flight))
        if flight.handoff is not None and when_s < flight.handoff.commit_s:
            self._at(when_s, lambda then_s: self._look(flight, patience, then_s))

    def _look(self, flight: Flight, patience: Patience, now_s: float) -> None:
        """As the router does with each word of the sender's, and when the time is over."""
        if self.patience.get(flight.offered.id) is not patience:
            return
        if patience.is_over(now_s, self._read_again_s(flight)):
            self._go_on_elsewhere(flight, now_s)
        else:
            self._look_later(flight, patience, now_s)

    def _read_again_s(self, flight: Flight) -> float:
        """What its prompt would wait and be read for where it would go on now."""
        views = self._views(flight)
        again = resume(self.setting, views, "")
        assert again is not None
        waiting = next(v.pending_prefill_tokens for v in views if v.box == again.prefill_box)
        rate = self._reading_rate(again.prefill_box, flight.prompt_tokens)
        return (waiting + flight.prompt_tokens) / rate

    def _go_on_elsewhere(self, flight: Flight, now_s: float) -> None:
        """The hand-off is given up: prompt and first token are read where the engine's rule says.

        The box that read the prompt still has it among its prefixes.
        """
        request_id, boxes = str(flight.offered.id), self._forgotten(flight, now_s)
        self.board.leave(request_id)
        decision = resume(self.setting, self._views(flight), "the hand-off was given up")
        assert decision is not None
        flight.prefill_box = flight.decode_box = decision.prefill_box
        flight.handoff, flight.pieces = None, []
        request = self._request(flight, decision.chunk_tokens, now_s)
        request.tokens += [0] * len(flight.token_s)
        flight.unread = len(request.tokens)
        self._submit(flight, request, now_s)
        for box in boxes:
            self._wake(box, now_s)

    def _forgotten(self, flight: Flight, now_s: float) -> list[SimWorker]:
        """Both boxes forget the request and free its blocks."""
        if not flight.prefill_box:
            return []
        self.patience.pop(flight.offered.id, None)
        self._send_no_more(flight, now_s)
        names = dict.fromkeys((flight.prefill_box, flight.decode_box))
        boxes = [self.boxes[name] for name in names]
        for box in boxes:
            box.interrupt(now_s)
            if flight.written_s is box.told_s:
                # The steps before the one that is under way are over, and their tokens told.
                flight.take_tokens()
                flight.token_s += box.before_last(self.scene.back_s)
            box.cancel(str(flight.offered.id))
        return boxes

    def _look_anew(self, box: SimWorker, now_s: float) -> None:
        """What slows the box's steps is another from now on: it counts from its next step."""
        box.interrupt(now_s)

    def _commit(self, flight: Flight, made: Handoff, sender: SimWorker, now_s: float) -> None:
        if flight.outcome is not None or flight.handoff is not made:
            return
        request_id = str(flight.offered.id)
        self.patience.pop(flight.offered.id, None)
        self.lines[flight.prefill_box, flight.decode_box].committed(flight)
        sender.scheduler.handoff_ended(request_id)
        if sender.plan is None:
            self._begin(sender, now_s)
        receiver = self.boxes[flight.decode_box]
        receiver.scheduler.commit(request_id, 0)
        self.board.writes(flight)
        receiver.joins(flight)
        self._wake(receiver, now_s)

    def _given_up(self, flight: Flight, now_s: float) -> None:
        """The user closes the connection."""
        if flight.outcome is not None:
            return
        boxes = self._forgotten(flight, now_s)
        self._end(flight, "cancelled", now_s)
        for box in boxes:
            self._wake(box, now_s)

    def _answer_ended(self, flight: Flight, box: SimWorker, now_s: float) -> None:
        if flight.decode_box != box.name and flight.prefill_box == box.name:
            # The answer was one token long: the room kept for it is not needed.
            self.boxes[flight.decode_box].scheduler.cancel(str(flight.offered.id))
        self._end(flight, "completed", now_s)

    def _end(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        self.board.leave(str(flight.offered.id))
        flight.outcome = outcome
        flight.take_tokens()
        flight.told_s = tuple(flight.token_s)
        flight.tokens, flight.hashes, flight.token_s, flight.pieces = [], [], [], []
        self.admission.first_token(flight.offered.id, now_s)
        self.done.append(flight)
        if self.bound is not None:
            self._count(flight, self.bound)
        # Who asked goes on once the end has come to them.
        heard_s = now_s + self.scene.back_s
        for follower in self.followers.pop(flight.offered.id, ()):
            if heard_s + follower.pause_s < self.until_s:
                self._send(follower, heard_s + follower.pause_s)

    def _count(self, flight: Flight, bound: Bound) -> None:
        """Whether it missed, which may be one too many."""
        if flight.outcome == "cancelled":
            return
        inside = judgement(
            _timeline(flight), ttft_target_s=bound.ttft_s, tpot_target_s=bound.tpot_s
        )
        self.missed += inside is False
        self.hopeless = self.missed > bound.most

    # ------------------------------------------------------------------ result

    def _result(self) -> SimResult:
        ordered = sorted(self.done, key=lambda flight: flight.offered.id)
        records = tuple(
            SimRecord(
                timeline=_timeline(flight),
                queue_s=flight.queue_s,
                prefill_s=flight.prefill_s,
                handoff_s=flight.handoff.total_s if flight.handoff else None,
                handoff_exposed_s=flight.handoff.exposed_s if flight.handoff else None,
                cached_tokens=flight.cached_tokens,
            )
            for flight in ordered
        )
        return SimResult(records=records, window_s=self.now_s, hopeless=self.hopeless)


def _runs(request: OfferedRequest) -> list[tuple[int, int]]:
    """The prompt's tokens, as (value, how many in a row)."""
    found: list[tuple[int, int]] = []
    replies = list(request.replies)
    for part in request.prompt:
        found.append((part.seed & 0x7FFFFFFF, part.tokens))
        if replies and part.seed + 1 == replies[0].seed:
            # The engine's own answers are what is cached, and the model writes zeros.
            found.append((0, replies.pop(0).tokens))
    return found


def _have_prefixes(load: LoadPlan) -> bool:
    return any(
        len(request.prompt) > 1 or request.shared_group is not None for request in load.requests
    )


def _sent_slowly(scene: Scene, arrangement: Arrangement, load: LoadPlan) -> bool:
    """Whether hand-offs may be given up, so that prompts are looked for where they were read."""
    if arrangement.mode not in ("split", "auto"):
        return False
    longest = max((request.prompt_tokens for request in load.requests), default=0)
    count = scene.shape.handoff_bytes(longest, scene.kv_dtype)
    return any(wire.seconds(count) > SLOWLY_S for wire in scene.wires.values())


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


def simulate(
    scene: Scene,
    arrangement: Arrangement,
    load: LoadPlan,
    *,
    enough: int | None = None,
    until_s: float | None = None,
    ttft_target_s: float | None = None,
    gives_up: bool = False,
    bound: Bound | None = None,
    before: Sequence[OfferedRequest] = (),
) -> SimResult:
    """Run `load` through `arrangement`.

    `enough` ends a closed loop after so many requests; from `until_s` on, no user asks the
    next question, as in a measured run. With a TTFT target the router refuses under overload.
    Where it `gives_up`, hand-offs end as in service once they take too long, and their answers go
    on elsewhere; else each is waited for, so that a slower link is never the better one. With a
    `bound` the run ends where it is plain that it lies outside. Of the questions `before` the boxes
    hold what they would.
    """
    sent = scene.sending(arrangement.setting.kv_wire)
    return Simulation(
        sent,
        arrangement,
        load,
        enough=enough,
        until_s=until_s,
        ttft_target_s=ttft_target_s,
        gives_up=gives_up,
        bound=bound,
        before=before,
    ).run()
