"""A discrete-event model of the engine: the router's policy, the workers' scheduler, a clock.

The scheduler and the policy are the engine's own code; only the computing (by the cost
model) and the sending (by the hand-off's arithmetic) are replaced. Who asks is in `sim_users`, a
request's way in in `sim_placing`, what `auto` knows in `sim_policy`, the steps of one box in
`sim_worker` and of boxes beside each other in `sim_boxes`, hand-offs in `sim_handoffs`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from homesplit_engine.records import Outcome
from homesplit_engine.request import Phase

from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.scene import BLOCK_TOKENS, Arrangement, Scene
from homesplit.core.sim_admission import admission
from homesplit.core.sim_boxes import SimBoxes
from homesplit.core.sim_events import Events
from homesplit.core.sim_flight import Flight
from homesplit.core.sim_handoffs import Handoffs, sent_slowly
from homesplit.core.sim_placing import Placing
from homesplit.core.sim_policy import SimPolicy
from homesplit.core.sim_prompts import Prompts, have_prefixes
from homesplit.core.sim_result import Bound, SimResult, Tally
from homesplit.core.sim_users import Users
from homesplit.core.sim_worker import SimWorker


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
        setting = arrangement.setting
        shared = have_prefixes(load) or (gives_up and sent_slowly(scene, arrangement, load))
        longest = max((r.prompt_tokens + r.output_tokens for r in load.requests), default=1)
        self.enough = enough
        self.back_s = scene.back_s
        self.events = Events()
        self.boxes = SimBoxes(
            scene,
            arrangement.boxes,
            self.events,
            longest=longest + 1,
            prefix_cache=shared,
            leaps=leaps,
        )
        self.board = self.boxes.board
        self.tally = Tally(bound)
        self.admission = admission(setting, self.boxes.workers, load, ttft_target_s)
        prompts = Prompts(shared=shared)
        policy = SimPolicy(scene, setting, self.boxes)
        placing = Placing(
            scene,
            self.boxes,
            events=self.events,
            prompts=prompts,
            policy=policy,
            admission=self.admission,
            refused=lambda flight, now_s: self._end(flight, "rejected", now_s),
        )
        self.handoffs = Handoffs(
            scene,
            self.boxes,
            events=self.events,
            policy=policy,
            placing=placing,
            gives_up=gives_up,
        )
        self.users = Users(
            self.events,
            way_s=scene.client_s / 2.0,
            until_s=math.inf if until_s is None else until_s,
            asks=placing.received,
            leaves=self._left,
        )
        self.users.take(load.requests)
        reads = setting.prefill_box if setting.mode == "split" else None
        _fill(self.boxes.workers, before, prompts, reads)

    def run(self) -> SimResult:
        """Run until everything that was offered has ended, or enough has."""
        boxes, events, tally = tuple(self.boxes.workers.values()), self.events.coming, self.tally
        ended, now_s, never = tally.ended, 0.0, math.inf
        enough = never if self.enough is None else self.enough
        while len(ended) < enough and not tally.hopeless:
            step, ends_s = None, never
            for box in boxes:
                if box.plan is not None and (step is None or box.end_s < ends_s):
                    step, ends_s = box, box.end_s
            if events and (step is None or events[0][0] <= ends_s):
                now_s, _, what = heapq.heappop(events)
                what(now_s)
            elif step is not None:
                now_s = ends_s
                self._step_ended(step)
            else:
                break
        return tally.result(now_s)

    def _step_ended(self, box: SimWorker) -> None:
        plan = box.plan
        assert plan is not None
        now_s, flights = box.end_s, self.board.flights
        last_s = box.tell(plan, self.back_s)
        read = box.read(plan)
        for work in read:
            flight = flights.get(work.request.request_id)
            if flight is None:
                continue
            if work.last:
                flight.token_s.append(last_s)
            if work.request.hand_over:
                self.handoffs.piece_read(flight, box, work)
        outcome = box.finish(plan, read)
        for done in outcome.prefilled:
            flight = flights[done.request_id]
            if flight.prefill_s is None:
                # Where it is read again, all of it may be there, and answer too.
                flight.queue_s, flight.prefill_s = done.queue_s, done.prefill_s
                flight.cached_tokens = done.cached_tokens
            self.board.read(flight)
            self.admission.first_token(flight.offered.id, now_s)
        for ended in outcome.ended:
            self._answer_ended(flights[ended.request_id], box, now_s)
        for request_id in outcome.handing_over:
            self.handoffs.prompt_read(flights[request_id], now_s)
        for work in plan.prefill:
            if work.request.phase is Phase.DECODING:
                box.joins(flights[work.request.request_id])
        self.boxes.begin(box, now_s)

    def _answer_ended(self, flight: Flight, box: SimWorker, now_s: float) -> None:
        if flight.decode_box != box.name and flight.prefill_box == box.name:
            # The answer was one token long: the room kept for it is not needed.
            receiver = self.boxes.workers[flight.decode_box]
            receiver.scheduler.cancel(str(flight.offered.id))
        self._end(flight, "completed", now_s)

    def _left(self, flight: Flight, now_s: float) -> None:
        """The user closes the connection."""
        if flight.outcome is not None:
            return
        boxes = self.handoffs.withdraw(flight, now_s)
        self._end(flight, "cancelled", now_s)
        for box in boxes:
            self.boxes.wake(box, now_s)

    def _end(self, flight: Flight, outcome: Outcome, now_s: float) -> None:
        self.board.leave(str(flight.offered.id))
        flight.end(outcome)
        self.admission.first_token(flight.offered.id, now_s)
        self.tally.add(flight)
        self.users.heard(flight.offered.id, now_s + self.back_s)


def _fill(
    boxes: dict[str, SimWorker],
    before: Sequence[OfferedRequest],
    prompts: Prompts,
    reads: str | None,
) -> None:
    """What the boxes hold of questions that were answered before; the last ones stay.

    Of a split the box that `reads` has the prompts, the one that writes the answers too.
    """
    for number, request in enumerate(before):
        whole = prompts.names(request)
        for place, (name, box) in enumerate(boxes.items()):
            if reads is not None:
                full = request.prompt_tokens // BLOCK_TOKENS
                box.fill(whole[:full] if name == reads else whole)
            elif place == number % len(boxes):
                box.fill(whole)


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
