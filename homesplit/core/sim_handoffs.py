"""Hand-offs in the simulator: KV is sent as it is read, and waited for as long as in service."""

from __future__ import annotations

from homesplit_engine.scheduler import PrefillWork

from homesplit.core.handoff import Handoff, Piece
from homesplit.core.load import LoadPlan
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.sim_boxes import SimBoxes
from homesplit.core.sim_events import Events
from homesplit.core.sim_flight import Flight
from homesplit.core.sim_line import Patience
from homesplit.core.sim_placing import Placing
from homesplit.core.sim_policy import SimPolicy
from homesplit.core.sim_worker import SimWorker

SLOWLY_S = 0.5
"""A hand-off that takes longer may be one of a queue that nobody waits for."""


class Handoffs:
    """All hand-offs under way; where the router `gives_up`, answers go on elsewhere."""

    def __init__(
        self,
        scene: Scene,
        boxes: SimBoxes,
        *,
        events: Events,
        policy: SimPolicy,
        placing: Placing,
        gives_up: bool,
    ) -> None:
        self._boxes = boxes
        self._workers = boxes.workers
        self._lines = boxes.lines
        self._events = events
        self._policy = policy
        self._placing = placing
        self._gives_up = gives_up
        self._patience: dict[int, Patience] = {}
        """By request whose hand-off is waited for."""
        self._kv_bytes_per_token = scene.shape.kv_bytes_per_token(scene.kv_dtype)
        self._state_bytes = scene.shape.state_bytes(scene.kv_dtype)

    # ------------------------------------------------------------------ sending

    def piece_read(self, flight: Flight, box: SimWorker, work: PrefillWork) -> None:
        """The box has read a piece of its prompt: at first also what was cached before it."""
        if not flight.pieces and work.start > flight.send_from:
            cached = float((work.start - flight.send_from) * self._kv_bytes_per_token)
            _add(flight, box.start_s, box.start_s, cached)
        start, pieces = work.start, box.pieces(work)
        for left, (tokens, start_s, end_s) in enumerate(pieces, 1 - len(pieces)):
            fresh = max(0, start + tokens - max(start, flight.send_from))
            start += tokens
            state = 0 if left or not work.last else self._state_bytes
            _add(flight, start_s, end_s, float(fresh * self._kv_bytes_per_token + state))

    def prompt_read(self, flight: Flight, now_s: float) -> None:
        """All of its prompt is read: the rest of its KV follows what was given before."""
        line = self._lines[flight.prefill_box, flight.decode_box]
        made = line.send(flight)
        self._is_sent(flight, made, now_s)
        if self._gives_up and made.commit_s > now_s:
            patience = self._patience[flight.offered.id] = Patience(line, flight, now_s)
            self._look_later(flight, patience, now_s)

    def withdraw(self, flight: Flight, now_s: float) -> list[SimWorker]:
        """Nothing more is sent of it, and both boxes free its blocks; these are to be woken."""
        if not flight.prefill_box:
            return []
        self._patience.pop(flight.offered.id, None)
        line = self._lines.get((flight.prefill_box, flight.decode_box))
        behind = line.dropped(flight, now_s) if line is not None else ()
        for other in behind:
            # It goes the sooner for it.
            if other.handoff is not None:
                self._is_sent(other, other.handoff, now_s)
        return self._boxes.forget(flight, now_s)

    def _is_sent(self, flight: Flight, made: Handoff, now_s: float) -> None:
        """What follows from when its KV will be through, as far as is known now."""
        self._boxes.feed(flight.decode_box, now_s, made.wire_end_s)
        commit_s = max(now_s, made.commit_s)
        self._events.at(commit_s, lambda then_s: self._commit(flight, made, then_s))

    def _commit(self, flight: Flight, made: Handoff, now_s: float) -> None:
        if flight.outcome is not None or flight.handoff is not made:
            return
        request_id = str(flight.offered.id)
        self._patience.pop(flight.offered.id, None)
        self._lines[flight.prefill_box, flight.decode_box].committed(flight)
        sender, receiver = self._workers[flight.prefill_box], self._workers[flight.decode_box]
        sender.scheduler.handoff_ended(request_id)
        if sender.plan is None:
            self._boxes.begin(sender, now_s)
        receiver.scheduler.commit(request_id, 0)
        self._boxes.board.writes(flight)
        receiver.joins(flight)
        self._boxes.wake(receiver, now_s)

    # ------------------------------------------------------------------ giving up

    def _look_later(self, flight: Flight, patience: Patience, now_s: float) -> None:
        when_s = patience.next_look_s(now_s, self._policy.read_again_s(flight))
        if flight.handoff is not None and when_s < flight.handoff.commit_s:
            self._events.at(when_s, lambda then_s: self._look(flight, patience, then_s))

    def _look(self, flight: Flight, patience: Patience, now_s: float) -> None:
        """As the router does with each word of the sender's, and when the time is over."""
        if self._patience.get(flight.offered.id) is not patience:
            return
        if patience.is_over(now_s, self._policy.read_again_s(flight)):
            self._give_up(flight, now_s)
        else:
            self._look_later(flight, patience, now_s)

    def _give_up(self, flight: Flight, now_s: float) -> None:
        boxes = self.withdraw(flight, now_s)
        flight.handoff, flight.pieces = None, []
        self._placing.go_on(flight, now_s)
        for box in boxes:
            self._boxes.wake(box, now_s)


def sent_slowly(scene: Scene, arrangement: Arrangement, load: LoadPlan) -> bool:
    """Whether hand-offs may be given up, so that prompts are looked for where they were read."""
    if arrangement.mode not in ("split", "auto"):
        return False
    longest = max((request.prompt_tokens for request in load.requests), default=0)
    count = scene.shape.handoff_bytes(longest, scene.kv_dtype)
    return any(wire.seconds(count) > SLOWLY_S for wire in scene.wires.values())


def _add(flight: Flight, start_s: float, end_s: float, count: float) -> None:
    flight.pieces.append(Piece(start_s=start_s, end_s=end_s, bytes=count))
