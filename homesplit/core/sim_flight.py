"""Requests on their way in the simulator, and what the router knows of them for each box."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from homesplit_engine.records import Outcome

from homesplit.core.handoff import Handoff, Piece
from homesplit.core.load import OfferedRequest


@dataclass(slots=True, eq=False)
class Flight:
    """One request on its way."""

    offered: OfferedRequest
    sent_s: float
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list[int])
    """The prompt while it is under way; empty where nothing is shared."""
    hashes: list[bytes] = field(default_factory=list[bytes])
    """Names of the full blocks of prompt and answer; empty where nothing is shared."""
    token_s: list[float] = field(default_factory=list[float])
    """When each token left the router."""
    written_s: list[float] | None = None
    """The moments of a box's steps, which give it a token each from number `written_from` on."""
    written_from: int = 0
    told_s: tuple[float, ...] = ()
    """The same once it has ended: long lists that stay are gone through by the collector."""
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
    room_known_s: float = 0.0
    """When the prefill box knows where to send its KV."""
    send_from: int = 0
    """Leading tokens that the decode box holds already, which are not handed over."""

    def take_tokens(self) -> None:
        """Take over the moments of the tokens that its box has written for it up to now."""
        if self.written_s is not None:
            self.token_s += self.written_s[self.written_from :]
            self.written_s = None

    def end(self, outcome: Outcome) -> None:
        """It is over, and lets go of what grew with it."""
        self.outcome = outcome
        self.take_tokens()
        self.told_s = tuple(self.token_s)
        self.tokens, self.hashes, self.token_s, self.pieces = [], [], [], []


@dataclass(slots=True)
class Held:
    """What the router knows to be under way on one box."""

    requests: int = 0
    writing: int = 0
    unread_tokens: int = 0
    handing_over_tokens: int = 0
    known: int = 0
    """Requests that will write here or do."""
    context_tokens: int = 0
    """Their prompts, summed."""


class Board:
    """What is under way on each box, counted as it changes."""

    def __init__(self, boxes: Iterable[str]) -> None:
        self.held = {name: Held() for name in boxes}
        self.flights: dict[str, Flight] = {}

    def join(self, request_id: str, flight: Flight) -> None:
        """From now on the flight is under way on its boxes; once for each."""
        if request_id in self.flights:
            return
        self.flights[request_id] = flight
        reads, writes = self._boxes(flight)
        reads.requests += 1
        reads.unread_tokens += flight.unread
        writes.known += 1
        writes.context_tokens += flight.prompt_tokens
        if reads is not writes:
            writes.requests += 1
            reads.handing_over_tokens += flight.prompt_tokens

    def read(self, flight: Flight) -> None:
        """Its prompt is read to the end."""
        self.held[flight.prefill_box].unread_tokens -= flight.unread
        flight.unread = 0
        if flight.prefill_box == flight.decode_box:
            self.writes(flight)

    def writes(self, flight: Flight) -> None:
        """Its answer is written from now on; once for each."""
        if flight.writing:
            return
        flight.writing = True
        reads, writes = self._boxes(flight)
        writes.writing += 1
        if reads is not writes:
            reads.handing_over_tokens -= flight.prompt_tokens

    def leave(self, request_id: str) -> None:
        """Nothing of it is under way any more."""
        flight = self.flights.pop(request_id, None)
        if flight is None:
            return
        reads, writes = self._boxes(flight)
        reads.requests -= 1
        reads.unread_tokens -= flight.unread
        writes.known -= 1
        writes.context_tokens -= flight.prompt_tokens
        writes.writing -= flight.writing
        if reads is not writes:
            writes.requests -= 1
            reads.handing_over_tokens -= 0 if flight.writing else flight.prompt_tokens

    def _boxes(self, flight: Flight) -> tuple[Held, Held]:
        return self.held[flight.prefill_box], self.held[flight.decode_box]
