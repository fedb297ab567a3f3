"""The boxes beside each other in the simulator: who begins a step when, and what slows it."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.core.handoff import MOST_OPENING
from homesplit.core.scene import Scene
from homesplit.core.sim_events import Events
from homesplit.core.sim_flight import Board, Flight
from homesplit.core.sim_line import Line
from homesplit.core.sim_worker import SimWorker

IDLE_WAIT_S = 0.25
"""As the worker's: how long it waits where it found nothing to compute and nobody wakes it."""


class SimBoxes:
    """All boxes of an arrangement, the lines between them, and what is under way on them."""

    def __init__(
        self,
        scene: Scene,
        names: Sequence[str],
        events: Events,
        *,
        longest: int,
        prefix_cache: bool,
        leaps: bool,
    ) -> None:
        """No request is longer than `longest`; see `SimWorker` for `prefix_cache` and `leaps`."""
        self.workers = workers = {
            name: SimWorker(
                scene.box(name), longest=longest, prefix_cache=prefix_cache, leaps=leaps
            )
            for name in names
        }
        for (sender, _), wire in scene.wires.items():
            if sender in workers:
                workers[sender].sending = wire.sending
        layers = scene.shape.layers
        self.lines = lines = {pair: Line(wire, layers) for pair, wire in scene.wires.items()}
        self.board = Board(workers)
        self._events = events
        self._back_s = scene.back_s
        self._kv_bytes_per_token = scene.shape.kv_bytes_per_token(scene.kv_dtype)
        self._others = {
            name: tuple(other for other in workers.values() if other is not box)
            for name, box in workers.items()
        }
        self._fed = {
            name: [
                (workers[pair[0]], line)
                for pair, line in lines.items()
                if pair[1] == name and pair[0] in workers and line.wire.opening_byte_s > 0
            ]
            for name in workers
        }
        """By receiver whose processor opens what comes: who may send to it, and over what."""
        self._felt = any(box.together > 1.0 for box in workers.values())
        """Whether a box takes longer while the other one computes."""

    def begin(self, box: SimWorker, now_s: float) -> None:
        """Start the box's next step; who feels it when it starts or ends work looks anew."""
        was_busy, handed = box.plan is not None, box.handing
        opening = self._opening(box, now_s)
        if not self._felt:
            box.begin(now_s, beside=False, opening=opening)
        else:
            others = self._others[box.name]
            beside = any(other.plan is not None for other in others)
            if box.begin(now_s, beside=beside, opening=opening) != was_busy:
                for other in others:
                    if other.together > 1.0:
                        other.interrupt(now_s)
        if box.handing != handed:
            for other in self._others[box.name]:
                if self._fed[other.name]:
                    other.interrupt(now_s)
        if box.plan is not None:
            for request_id in box.plan.preempted:
                self.board.flights[request_id].take_tokens()
        elif was_busy and box.scheduler.waiting:
            self._out_of_room(box, now_s)

    def wake(self, box: SimWorker, now_s: float) -> None:
        """There may be something new for it to compute, or for its next step."""
        if box.plan is None:
            self.begin(box, now_s)
        else:
            box.interrupt(now_s)

    def feed(self, name: str, now_s: float, until_s: float) -> None:
        """From now on KV comes to this box as quickly as its link carries it, and then no more."""
        if self._fed[name] and until_s > now_s:
            receiver = self.workers[name]
            _look_anew(receiver, now_s)
            self._events.at(until_s, lambda then_s: _look_anew(receiver, then_s))

    def forget(self, flight: Flight, now_s: float) -> list[SimWorker]:
        """Its boxes give it up and free its blocks; these are to be woken."""
        names = dict.fromkeys((flight.prefill_box, flight.decode_box))
        boxes = [self.workers[name] for name in names]
        for box in boxes:
            box.interrupt(now_s)
            if flight.written_s is box.told_s:
                # The steps before the one that is under way are over, and their tokens told.
                flight.take_tokens()
                flight.token_s += box.before_last(self._back_s)
            box.cancel(str(flight.offered.id))
        return boxes

    def _opening(self, box: SimWorker, now_s: float) -> float:
        """The share of a box's computing that the KV takes which comes now."""
        share = 0.0
        for sender, line in self._fed[box.name]:
            if line.free_s > now_s:
                share += line.wire.opening(line.wire.bytes_per_s)
            elif sender.handing > 0:
                tokens_per_s = sender.reading_rate(sender.handing) / sender.sending
                share += line.wire.opening(tokens_per_s * self._kv_bytes_per_token)
        return min(share, MOST_OPENING)

    def _out_of_room(self, box: SimWorker, now_s: float) -> None:
        """The last answer gave up its blocks to nobody: the worker looks again after a while."""
        for flight in self.board.flights.values():
            if flight.written_s is box.told_s:
                flight.take_tokens()
        self._events.at(now_s + IDLE_WAIT_S, lambda then_s: self.wake(box, then_s))


def _look_anew(box: SimWorker, now_s: float) -> None:
    """What slows the box's steps is another from now on: it counts from its next step."""
    box.interrupt(now_s)
