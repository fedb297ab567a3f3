"""What a flight asks of the router that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from homesplit_engine.policy import Decision
from homesplit_engine.router.handover import Way
from homesplit_engine.wire.messages import HandoffTarget, Reserved, ToWorker

if TYPE_CHECKING:
    from homesplit_engine.router.flight import Flight


class Base(Protocol):
    """What a flight asks of the router."""

    detection_s: float

    def place(self, flight: Flight) -> Decision | None:
        """Where a new flight goes; None when no box can be used."""
        ...

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        """Where a flight that lost its box goes on; None when no box can be used."""
        ...

    def has_room(self, box: str, flight: Flight) -> bool:
        """Whether a box will probably keep room for this prompt, so that it may be read at once."""
        ...

    def asked_for_room(self, box: str, *, full: bool) -> None:
        """A box kept room for a prompt, or was full."""
        ...

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        """The hand-off address of a box that reserved room; None when it is gone."""
        ...

    def send(self, box: str, message: ToWorker) -> bool:
        """Whether the message was handed over for a living worker."""
        ...

    def cancel(self, box: str, wire_id: str) -> None:
        """Have a worker forget an attempt."""
        ...

    def listen(self, wire_id: str, flight: Flight) -> None:
        """Bring a flight what is said about this wire id."""
        ...

    def unlisten(self, wire_id: str) -> None:
        """Drop what is still said about this wire id."""
        ...

    def boxes_for(self, flight: Flight) -> int:
        """How many boxes can be used that hold its prompt and answer."""
        ...

    async def until_usable(self, timeout_s: float) -> None:
        """Return when a box can be used, or after the time."""
        ...

    def way(self, flight: Flight, decision: Decision) -> Way:
        """What is known of the way that a flight's hand-off takes."""
        ...

    def slow_handoff(self, decision: Decision, bytes_per_s: float | None) -> None:
        """A hand-off was given up while so much of it arrived a second, None if nobody knows."""
        ...

    def fault(self, box: str | None, kind: str, sentence: str) -> object:
        """Tell the watchers of a fault."""
        ...
