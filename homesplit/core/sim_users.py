"""Who asks in the simulator: each question at its time, or once the answer before it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homesplit.core.load import OfferedRequest
from homesplit.core.sim_events import Events
from homesplit.core.sim_flight import Flight


class Users:
    """Send the requests of a load; `asks` is the router's door, `leaves` who gives up waiting."""

    def __init__(
        self,
        events: Events,
        *,
        way_s: float,
        until_s: float,
        asks: Callable[[Flight, float], None],
        leaves: Callable[[Flight, float], None],
    ) -> None:
        """A request is `way_s` on its way to the router; from `until_s` on nobody goes on."""
        self._events = events
        self._way_s = way_s
        self._until_s = until_s
        self._asks = asks
        self._leaves = leaves
        self._followers: dict[int, list[OfferedRequest]] = {}

    def take(self, requests: Sequence[OfferedRequest]) -> None:
        """What they will ask."""
        for request in requests:
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(request)
            else:
                self._send(request, (request.send_at_s or 0.0) + request.pause_s)

    def heard(self, number: int, heard_s: float) -> None:
        """The end of this request has come to whoever asked, who goes on."""
        for follower in self._followers.pop(number, ()):
            if heard_s + follower.pause_s < self._until_s:
                self._send(follower, heard_s + follower.pause_s)

    def _send(self, request: OfferedRequest, when_s: float) -> None:
        flight = Flight(offered=request, sent_s=when_s, prompt_tokens=request.prompt_tokens)
        self._events.at(when_s + self._way_s, lambda now_s: self._asks(flight, now_s))
        if request.cancel_after_s is not None:
            left_s = when_s + request.cancel_after_s
            self._events.at(left_s, lambda now_s: self._leaves(flight, now_s))
