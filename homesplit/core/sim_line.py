"""Hand-offs on one direction of a link in the simulator, and how long the router waits for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from homesplit_engine.router.handover import Handover, Way

from homesplit.core.handoff import Handoff, Wire, hand_over
from homesplit.core.prng import Prng
from homesplit.core.sim_flight import Flight

DETECTION_S = 2.0
"""As the router's settings have it: a box that has been silent this long counts as lost."""
TOLD_S = 0.5
"""As often a box tells what it still has to send: four times within the detection time."""
LATE_S = 0.12
"""By so much at the most its words are heard late, behind what the processor computes that says or
hears them: of a look of one second that is what a rate seems to change by. Taken from two of the
lab's cells on 20 Mbit/s, where the router's box reads; where it writes, words were about 50 ms late
and a few more hand-offs waited for (`tests/bench/results/decisions.md`)."""


@dataclass(slots=True, eq=False)
class _Place:
    """One hand-off's place in the line."""

    flight: Flight
    made: Handoff
    gone: bool = False
    """Given up before its turn: the sender counts it for those behind until it comes to it."""


@dataclass(slots=True)
class Line:
    """One direction: hand-offs are sent in the order in which their prompts were read."""

    wire: Wire
    layers: int
    free_s: float = 0.0
    """When all that was given to it is through."""
    places: list[_Place] = field(default_factory=list[_Place])
    """Those not committed yet, in order."""

    def send(self, flight: Flight) -> Handoff:
        """Its prompt is read: when its KV is through, behind all that was given before."""
        made = self._made(flight)
        self.places.append(_Place(flight, made))
        return made

    def committed(self, flight: Flight) -> None:
        """Its KV is all there."""
        self.places.remove(self._of(flight))
        while self.places and self.places[0].gone:
            del self.places[0]

    def dropped(self, flight: Flight, now_s: float) -> tuple[Flight, ...]:
        """It is sent no more; those behind it, which are through the sooner for it."""
        if not any(each.flight is flight and not each.gone for each in self.places):
            return ()
        place = self._of(flight)
        if place.made.wire_end_s <= now_s:
            self.places.remove(place)
            return ()
        at = self.places.index(place)
        place.gone = True
        if place.made.begin_s <= now_s:
            del self.places[at]
        before = [each.made.wire_end_s for each in self.places[:at] if not each.gone]
        self.free_s = max(now_s, before[-1] if before else now_s)
        behind = [each for each in self.places[at:] if not each.gone]
        for each in behind:
            each.made = self._made(each.flight)
        return tuple(each.flight for each in behind)

    def left_bytes(self, flight: Flight, now_s: float) -> int:
        """What the sender tells to be left until the last of it is through, of others as well."""
        ghosts, waiting = 0.0, False
        for each in self.places:
            if each.flight is flight and not each.gone:
                own = max(0.0, each.made.wire_end_s - now_s) * self.wire.bytes_per_s
                return round(own + ghosts)
            if not each.gone:
                waiting = waiting or each.made.wire_end_s > now_s
            elif waiting:
                ghosts += each.made.bytes
        return 0

    def _of(self, flight: Flight) -> _Place:
        return next(each for each in self.places if each.flight is flight and not each.gone)

    def _made(self, flight: Flight) -> Handoff:
        free_s = max(self.free_s, flight.room_known_s)
        made = hand_over(flight.pieces, self.wire, layers=self.layers, free_s=free_s)
        flight.handoff, self.free_s = made, made.wire_end_s
        return made


class Patience:
    """The router's own rule over one hand-off: how long its client waits for the second token."""

    def __init__(self, line: Line, flight: Flight, now_s: float) -> None:
        """Its first token came now."""
        self._line = line
        self._flight = flight
        self._handover = Handover(DETECTION_S)
        self._lateness = Prng(flight.offered.id)
        self._handover.seen(line.left_bytes(flight, now_s), now_s)
        self._handover.first_token_came(now_s)

    def next_look_s(self, now_s: float, read_s: float) -> float:
        """When the sender tells next how far it is, or when the time is over by then."""
        told_s = (math.floor(now_s / TOLD_S) + 1) * TOLD_S
        until_s = self._handover.until_s(self._way(read_s))
        return told_s if until_s is None else max(now_s, min(told_s, until_s))

    def is_over(self, now_s: float, read_s: float) -> bool:
        """Whether it is given up now; `read_s` is what reading its prompt again would take."""
        late_s = LATE_S * self._lateness.uniform()
        left = self._line.left_bytes(self._flight, now_s - late_s)
        self._handover.seen(left, now_s)
        way = self._way(read_s)
        if left and self._handover.look(way, now_s) is not None:
            return True
        until_s = self._handover.until_s(way)
        return until_s is not None and now_s >= until_s

    def _way(self, read_s: float) -> Way:
        rate = self._line.wire.bytes_per_s
        return Way(whole_bytes=None, link_bytes_per_s=rate, read_s=read_s)
