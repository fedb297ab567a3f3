"""The flights that have not ended, and what they add up to on each box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homesplit_engine.policy import BoxView
from homesplit_engine.router.attempt import Stage
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.link import WorkerLink
from homesplit_engine.router.prefixes import PrefixMemory
from homesplit_engine.router.rates import Rates
from homesplit_engine.status import RequestCounts


class Board:
    """Every flight by its request id, and by the wire ids under which workers speak of it."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._by_wire_id: dict[str, Flight] = {}
        self._claimed: set[str] = set()

    def claim(self, request_id: str) -> bool:
        """Whether this id may be used from now on: two requests at a time never share one."""
        if request_id in self._claimed:
            return False
        self._claimed.add(request_id)
        return True

    def release(self, request_id: str) -> None:
        """A claimed id may be used by another request."""
        self._claimed.discard(request_id)

    def __iter__(self) -> Iterator[Flight]:
        """Every flight; the board may change meanwhile."""
        return iter(list(self._flights.values()))

    def add(self, flight: Flight) -> None:
        """A request was taken in."""
        self._flights[flight.order.request_id] = flight

    def remove(self, flight: Flight) -> None:
        """A request has ended."""
        del self._flights[flight.order.request_id]

    def named(self, request_id: str) -> list[Flight]:
        """The flights of one request: of all its choices."""
        return [
            flight
            for known, flight in self._flights.items()
            if known == request_id or known.startswith(f"{request_id}/")
        ]

    def listen(self, wire_id: str, flight: Flight) -> None:
        """Bring a flight what is said about this wire id."""
        self._by_wire_id[wire_id] = flight

    def unlisten(self, wire_id: str) -> None:
        """Drop what is still said about this wire id."""
        self._by_wire_id.pop(wire_id, None)

    def listening(self, wire_id: str) -> Flight | None:
        """Whom it concerns what is said about this wire id."""
        return self._by_wire_id.get(wire_id)

    # -------------------------------------------------------------- sums

    def counts(self) -> RequestCounts:
        """Clients' requests writing an answer, and before their first token."""
        waiting = [flight.waiting for flight in self if not flight.order.internal]
        return RequestCounts(running=len(waiting) - sum(waiting), waiting=sum(waiting))

    def tokens_waiting(self) -> int:
        """Prompt tokens of the requests that still wait for their first token."""
        return sum(len(flight.order.token_ids) for flight in self._clients_waiting())

    def waiting_on(self, box: str) -> tuple[int, int]:
        """The requests that this box is to read, and their prompt tokens."""
        here = [flight for flight in self._clients_waiting() if _reads(flight, box)]
        return len(here), sum(len(flight.order.token_ids) for flight in here)

    def _clients_waiting(self) -> Iterator[Flight]:
        return (flight for flight in self if flight.waiting and not flight.order.internal)

    def anyone_waits_beside(self, flight: Flight, box: str | None = None) -> bool:
        """Whether another request stands before its first token, on `box` where one is named."""
        others = (other for other in self if other.waiting and other is not flight)
        return any(box is None or _reads(other, box) for other in others)

    def promised_tokens_beside(self, asking: Flight, box: str) -> int:
        """Prompt tokens of the others that are to be written there and are not yet."""
        return sum(
            _still_to_send(flight)
            for flight in self
            if flight is not asking
            and flight.attempt is not None
            and flight.attempt.decision.decode_box == box
        )

    def handing_over(self) -> int:
        """Requests that share the link now, or soon will."""
        return sum(
            flight.attempt is not None
            and flight.attempt.decision.kind == "split"
            and flight.attempt.stage in (Stage.READING, Stage.HANDING_OVER)
            for flight in self
        )

    def view(
        self,
        link: WorkerLink,
        rates: Rates,
        prefixes: PrefixMemory,
        prefix: Sequence[int] = (),
        asking: Flight | None = None,
    ) -> BoxView:
        """A box as the policy sees it, without the flight that asks."""
        box = link.box
        requests = decoding = pending = sending = 0
        for flight in self:
            attempt = flight.attempt
            if attempt is None or flight is asking or box not in attempt.boxes:
                continue
            requests += 1
            if attempt.decision.decode_box == box and attempt.stage is Stage.WRITING:
                decoding += 1
            if attempt.decision.prefill_box == box:
                pending += attempt.unread_tokens
                sending += _still_to_send(flight)
        return BoxView(
            box=box,
            requests=requests,
            decoding=decoding,
            pending_prefill_tokens=pending,
            cached_tokens=prefixes.cached_tokens(box, prefix),
            prefill_tokens_per_s=rates.prefill_tokens_per_s.get(box),
            decode_step_s=rates.decode_step_s.get(box),
            handing_over_tokens=sending,
            free_tokens=link.status.blocks_free * link.ready.block_tokens
            if link.status is not None and link.ready is not None
            else None,
        )


def _reads(flight: Flight, box: str) -> bool:
    return flight.attempt is not None and flight.attempt.decision.prefill_box == box


def _still_to_send(flight: Flight) -> int:
    """Prompt tokens of a split request that is not committed yet."""
    attempt = flight.attempt
    if attempt is None or attempt.decision.kind != "split" or attempt.stage is Stage.WRITING:
        return 0
    return len(flight.order.token_ids)
