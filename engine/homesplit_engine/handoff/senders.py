"""One sender for each peer, so that a peer that stands still holds up nobody else's hand-offs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq

from homesplit_engine.cache import KvPool
from homesplit_engine.handoff.sender import HandoffResult, Outgoing, Sender
from homesplit_engine.records import LinkSeen, Sending
from homesplit_engine.wire.messages import Token


class Senders:
    """The sending side of one worker; every method may be called from any thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        box: str,
        fingerprint: str,
        pool: KvPool,
        ended: Callable[[Outgoing, HandoffResult], None],
    ) -> None:
        self._make: Callable[[], Sender] = lambda: Sender(
            context, box=box, fingerprint=fingerprint, pool=pool, ended=ended
        )
        self._lock = threading.Lock()
        self._senders: dict[str, Sender] = {}
        """By the peer's endpoint: as many as there are boxes beside this one."""

    def stop_soon(self) -> None:
        """Asks all threads to end; hand-offs under way are not told."""
        for sender in self._all():
            sender.stop_soon()

    def join(self) -> None:
        """Waits for the threads' end."""
        for sender in self._all():
            sender.join()

    def open(self, endpoint: str) -> None:
        """Have a sender for this peer; raises OSError or RuntimeError when no more can be had."""
        self._of(endpoint)

    def sending(self) -> tuple[Sending, ...]:
        """The hand-offs under way."""
        return tuple(one for sender in self._all() for one in sender.sending())

    def links(self) -> tuple[LinkSeen, ...]:
        """The connections to peers."""
        return tuple(one for sender in self._all() for one in sender.links())

    def _all(self) -> list[Sender]:
        with self._lock:
            return list(self._senders.values())

    def layer_done(self, outgoing: Outgoing, layer: int, start: int, end: int) -> None:
        """K and V of tokens [start, end) of one layer are in the pool."""
        self._to(outgoing).layer_done(outgoing, layer, start, end)

    def prefilled(self, outgoing: Outgoing, first_token: Token, now_s: float) -> None:
        """The prompt is read to its end: everything has been noted by `layer_done`."""
        self._to(outgoing).prefilled(outgoing, first_token, now_s)

    def give_up(self, outgoing: Outgoing, why: str) -> None:
        """Stops a hand-off; `ended` follows."""
        self._to(outgoing).give_up(outgoing, why)

    def _to(self, outgoing: Outgoing) -> Sender:
        return self._of(outgoing.target.endpoint)

    def _of(self, endpoint: str) -> Sender:
        with self._lock:
            sender = self._senders.get(endpoint)
            if sender is None:
                sender = self._make()
                sender.start()
                self._senders[endpoint] = sender
            return sender
