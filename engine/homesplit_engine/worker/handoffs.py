"""What the ends of hand-offs change in a worker: the sender's and the receiver's threads call."""

from __future__ import annotations

from collections.abc import Callable

from homesplit_engine.handoff.receiver import Arrived
from homesplit_engine.handoff.sender import HandoffResult, Outgoing
from homesplit_engine.wire.messages import Committed, HandoffReport, ToRouter
from homesplit_engine.worker.intake import FailureKind
from homesplit_engine.worker.state import State


class Handoffs:
    """Commits what has arrived, frees what was sent, and tells the router of both."""

    def __init__(
        self,
        state: State,
        *,
        tell: Callable[[ToRouter], None],
        failed: Callable[[str, FailureKind, str], None],
    ) -> None:
        self._state = state
        self._tell = tell
        self._failed = failed

    def arrived(self, arrived: Arrived) -> bool:
        """A hand-off to this box is whole; False when its request is gone."""
        state = self._state
        with state.changed:
            if not state.scheduler.commit(arrived.request_id, arrived.first_token.token_id):
                return False
            # Told before a step may take it up: the router hears of the commit, then of tokens.
            self._tell(
                Committed(request_id=arrived.request_id, bytes=arrived.bytes, tokens=arrived.tokens)
            )
            state.changed.notify()
        return True

    def not_arrived(self, request_id: str, why: str) -> None:
        """A hand-off to this box can't be used; nothing of it is kept."""
        with self._state.changed:
            self._state.scheduler.cancel(request_id)
        self._failed(request_id, "handoff", why)

    def sent(self, outgoing: Outgoing, result: HandoffResult) -> None:
        """The peer has committed a hand-off from here, or it is off."""
        state = self._state
        with state.changed:
            state.departures.pop(outgoing.request_id, None)
            state.scheduler.cancel(outgoing.request_id)
            state.scheduler.handoff_ended(outgoing.request_id)
            state.changed.notify()
        if outgoing.wanted:
            self._tell(HandoffReport(event=result.event, why=result.why))
