"""What the router says to a worker, and what becomes of it: the control thread's work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Literal

from homesplit_engine.handoff.departure import Departure
from homesplit_engine.handoff.receiver import Incoming, Receiver
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Refusal
from homesplit_engine.wire.messages import (
    Cancel,
    Failed,
    HandoffSecret,
    HandoffTarget,
    Hello,
    Ping,
    Pong,
    Refused,
    Reserve,
    Reserved,
    SendTo,
    Stop,
    Submit,
    ToRouter,
    ToWorker,
)
from homesplit_engine.wire.seal import new_seal_key
from homesplit_engine.worker.about import About
from homesplit_engine.worker.asked import refused, request_of, wrong_range, wrong_with
from homesplit_engine.worker.state import State

FailureKind = Literal["handoff", "deadline", "engine", "numeric", "out_of_blocks"]
RESUME_CHUNK_TOKENS = 256
"""Chunk in which a handed-over request is read again here, should it lose its blocks."""


class Intake:
    """Takes requests in, cancels them, and ends those whose time is over."""

    def __init__(
        self,
        state: State,
        *,
        about: About,
        runner: Runner,
        receiver: Receiver,
        senders: Senders,
        kv_password: str,
        failed: Callable[[str, FailureKind, str], None],
    ) -> None:
        """`failed` tells the router of a request that can't go on: id, kind, reason."""
        self._state = state
        self._about = about
        self._runner = runner
        self._receiver = receiver
        self._senders = senders
        self._kv_password = kv_password
        self._failed = failed

    def hear(self, message: ToWorker) -> Sequence[ToRouter]:
        """What is answered at once to one message."""
        match message:
            case Ping():
                return [Pong(ping_id=message.ping_id, status=self._about.status())]
            case Hello():
                # Whoever greets has lost, or never had, what was asked before.
                self.cancel_all()
                return [self._about.ready()]
            case Submit():
                return self._submit(message)
            case SendTo():
                return self._send_to(message)
            case Reserve():
                return self._reserve(message)
            case Cancel():
                self._cancel(message.request_id)
            case Stop():
                self._state.stop_soon()
        return []

    def cancel_all(self) -> None:
        """Forgets every request: nobody waits for them any more."""
        with self._state.changed:
            ids = self._state.scheduler.request_ids()
        for request_id in ids:
            self._cancel(request_id)

    def end_overdue(self) -> None:
        """Cancels the requests whose deadline has passed, and says so."""
        with self._state.changed:
            now_s = time.monotonic()
            late = [request.request_id for request in self._state.scheduler.overdue(now_s)]
            late = list(dict.fromkeys(late + self._state.lost_without_target(now_s)))
        for request_id in late:
            self._cancel(request_id)
            self._failed(request_id, "deadline", "its deadline passed")

    def _submit(self, message: Submit) -> Sequence[ToRouter]:
        state, target = self._state, message.handoff
        now_s = time.monotonic()
        request = self._request(message, now_s, message.chunk_tokens)
        request.hand_over = target is not None or message.handoff_follows
        refusal = wrong_with(message, state.loaded.vocab_size)
        if refusal is None and target is not None:
            what = self._foreign(target)
            if what is not None:
                return [Refused(request_id=message.request_id, kind="fingerprint", what=what)]
            refusal = self._no_way_to(target.endpoint)
        with state.changed:
            if refusal is None:
                refusal = state.scheduler.add(request, now_s=now_s)
            if refusal is None and request.hand_over:
                departure = self._departure(request)
                if target is not None:
                    departure.send_to(target)
            state.changed.notify()
        return [] if refusal is None else [refused(message.request_id, refusal)]

    def _departure(self, request: Request) -> Departure:
        departure = Departure(
            self._senders,
            request_id=request.request_id,
            prompt_tokens=len(request.tokens),
            layers=self._state.loaded.kv_shape.layers,
            deadline_s=request.deadline_s,
        )
        self._state.departures[request.request_id] = departure
        return departure

    def _send_to(self, message: SendTo) -> Sequence[ToRouter]:
        """Sends what is read here where it is wanted; a request that is gone wants nothing."""
        state, name, target = self._state, message.request_id, message.target
        with state.changed:
            departure = state.departures.get(name)
        if departure is None:
            return []
        what = self._foreign(target) or wrong_range(target, departure.prompt_tokens)
        refusal = None if what else self._no_way_to(target.endpoint)
        what = what if refusal is None else refusal.what
        if what is not None:
            self._cancel(name)
            return [failed_message(name, "handoff", what)]
        with state.changed:
            # A step may have ended it meanwhile; then its blocks are another's.
            if state.departures.get(name) is departure:
                departure.send_to(target)
        return []

    def _foreign(self, target: HandoffTarget) -> str | None:
        """Why KV from here means nothing there."""
        if target.fingerprint == self._state.loaded.fingerprint:
            return None
        return f"{target.box} holds another model or settings than {self._state.config.box}"

    def _no_way_to(self, endpoint: str) -> Refusal | None:
        """Why nothing can be handed over now: this process may open nothing more."""
        try:
            self._senders.open(endpoint)
        except (OSError, RuntimeError) as error:
            return Refusal(kind="full", what=f"no connection to another box can be made: {error}")
        return None

    def _reserve(self, message: Reserve) -> Sequence[ToRouter]:
        state = self._state
        now_s = time.monotonic()
        request = self._request(message, now_s, RESUME_CHUNK_TOKENS)
        if message.kv_wire != "same":
            request.kv_salt = message.kv_wire.encode()
        refusal = wrong_with(message, state.loaded.vocab_size)
        if refusal is None and message.from_box not in state.keys.allowed:
            refusal = Refusal(kind="bad_request", what=f"{message.from_box} is no peer of this box")
        with state.changed:
            if refusal is None:
                refusal = state.scheduler.reserve(request, now_s=now_s)
            if refusal is not None:
                return [refused(message.request_id, refusal)]
            secret = HandoffSecret(password=self._kv_password, seal_key=new_seal_key())
            incoming = Incoming(
                reservation_id=uuid.uuid4().hex,
                request_id=message.request_id,
                from_box=message.from_box,
                seal_key=secret.seal_key,
                place=self._runner.place(request),
                cached_tokens=request.cached_tokens,
                prompt_tokens=len(request.tokens),
                wire=message.kv_wire,
            )
        self._receiver.expect(incoming)
        return [
            Reserved(
                request_id=message.request_id,
                reservation_id=incoming.reservation_id,
                cached_tokens=request.cached_tokens,
                secret=secret,
            )
        ]

    def _request(
        self, message: Submit | Reserve, now_s: float, chunk_tokens: int | None
    ) -> Request:
        return request_of(
            message,
            now_s=now_s,
            chunk_tokens=chunk_tokens,
            eos_token_ids=self._state.loaded.eos_token_ids,
        )

    def _cancel(self, request_id: str) -> None:
        # The receiver lets go first: blocks must not be freed under its writing hand.
        self._receiver.drop(request_id)
        with self._state.changed:
            self._state.scheduler.cancel(request_id)
            self._state.let_go(request_id, "cancelled")


def failed_message(request_id: str, kind: FailureKind, what: str) -> Failed:
    """How the router is told that a request can't go on here."""
    return Failed(request_id=request_id, kind=kind, what=what)
