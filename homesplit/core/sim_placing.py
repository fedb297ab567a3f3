"""A request's way in, in the simulator: tokenised, let in or refused, placed on its boxes."""

from __future__ import annotations

from collections.abc import Callable

from homesplit_engine.request import Request

from homesplit.core.scene import Scene
from homesplit.core.sim_admission import SimAdmission
from homesplit.core.sim_boxes import SimBoxes
from homesplit.core.sim_events import Events
from homesplit.core.sim_flight import Flight
from homesplit.core.sim_policy import SimPolicy
from homesplit.core.sim_prompts import Prompts

LOOP_TOKENS = 500
"""Prompts of up to about so many tokens (2,000 characters) the router tokenises at once, one after
the other; longer ones in a thread."""


class Placing:
    """The router's part of a request until a box has it; `refused` ends one that none takes."""

    def __init__(
        self,
        scene: Scene,
        boxes: SimBoxes,
        *,
        events: Events,
        prompts: Prompts,
        policy: SimPolicy,
        admission: SimAdmission,
        refused: Callable[[Flight, float], None],
    ) -> None:
        self._scene = scene
        self._boxes = boxes
        self._workers = boxes.workers
        self._board = boxes.board
        self._events = events
        self._prompts = prompts
        self._policy = policy
        self._admission = admission
        self._refused = refused
        self._loop_free_s = 0.0
        """When the router's event loop is through with what it was given."""

    def received(self, flight: Flight, now_s: float) -> None:
        """Tokenised in turn by the router's one event loop; long prompts beside it, in threads."""
        self._prompts.write(flight)
        count = flight.prompt_tokens
        took_s = self._scene.tokenising_s(count)
        ready_s = now_s + took_s
        if count <= LOOP_TOKENS:
            ready_s = self._loop_free_s = max(now_s, self._loop_free_s) + took_s
        self._events.at(ready_s + self._scene.router_s, lambda then_s: self._place(flight, then_s))

    def go_on(self, flight: Flight, now_s: float) -> None:
        """One that lost its boxes is read where the engine's rule says: prompt and first token.

        The box that read the prompt still has it among its prefixes.
        """
        self._board.leave(str(flight.offered.id))
        decision = self._policy.elsewhere(flight)
        flight.prefill_box = flight.decode_box = decision.prefill_box
        request = self._prompts.request(flight, decision.chunk_tokens, now_s)
        request.tokens += [0] * len(flight.token_s)
        flight.unread = len(request.tokens)
        self._submit(flight, request, now_s)

    def _place(self, flight: Flight, now_s: float) -> None:
        if flight.outcome is not None:
            return
        if not self._admission.lets_in(flight.offered.id, flight.prompt_tokens, now_s):
            self._refused(flight, now_s)
            return
        decision = self._policy.place(flight)
        flight.prefill_box, flight.decode_box = decision.prefill_box, decision.decode_box
        flight.unread = flight.prompt_tokens
        request = self._prompts.request(flight, decision.chunk_tokens, now_s)
        if decision.kind == "split":
            self._reserve(flight, request, now_s)
        self._submit(flight, request, now_s)

    def _reserve(self, flight: Flight, request: Request, now_s: float) -> None:
        """The prompt is read at once, while the decode box is asked to keep room for it.

        In service the room is asked for first where that box is known to be full; a refusal then
        costs nothing of what is read here.
        """
        pair = (flight.prefill_box, flight.decode_box)
        held = self._prompts.request(flight, request.chunk_tokens, now_s)
        receiver = self._workers[flight.decode_box]
        receiver.make_way(len(held.tokens), now_s)
        if receiver.scheduler.reserve(held, now_s=now_s) is not None:
            decision = self._policy.elsewhere(flight, avoid=flight.decode_box)
            flight.prefill_box = flight.decode_box = decision.prefill_box
            return
        request.hand_over = True
        flight.send_from = held.cached_tokens
        self._board.join(request.request_id, flight)
        flight.room_known_s = now_s + self._scene.wires[pair].reserving_s

    def _submit(self, flight: Flight, request: Request, now_s: float) -> None:
        if flight.outcome is not None:
            return
        box = self._workers[flight.prefill_box]
        request.arrived_s = now_s
        refused = box.scheduler.add(request, now_s=now_s)
        if refused is not None:
            if flight.decode_box != flight.prefill_box:
                self._workers[flight.decode_box].scheduler.cancel(request.request_id)
            self._refused(flight, now_s)
            return
        self._board.join(request.request_id, flight)
        if box.plan is None:
            self._boxes.begin(box, now_s)
        else:
            box.let_wait(now_s)
