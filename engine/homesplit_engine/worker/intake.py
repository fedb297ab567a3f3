"""What the router says to a worker, and what becomes of it: the control thread's work."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Literal

from homesplit_engine.handoff.receiver import Incoming, Receiver
from homesplit_engine.handoff.sender import Outgoing
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Refusal
from homesplit_engine.wire.messages import (
    Cancel,
    Failed,
    HandoffSecret,
    Hello,
    Ping,
    Pong,
    Refused,
    Reserve,
    Reserved,
    Stop,
    Submit,
    ToRouter,
    ToWorker,
)
from homesplit_engine.wire.seal import new_seal_key
from homesplit_engine.worker.about import About
from homesplit_engine.worker.asked import refused, request_of, wrong_with
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
            late = self._state.scheduler.overdue(time.monotonic())
        for request in late:
            self._cancel(request.request_id)
            self._failed(request.request_id, "deadline", "its deadline passed")

    def _submit(self, message: Submit) -> Sequence[ToRouter]:
        state, target = self._state, message.handoff
        now_s = time.monotonic()
        request = self._request(message, now_s, message.chunk_tokens)
        request.hand_over = target is not None
        refusal = wrong_with(message, state.loaded.vocab_size)
        if (
            refusal is None
            and target is not None
            and target.fingerprint != state.loaded.fingerprint
        ):
            what = f"{target.box} holds another model or settings than {state.config.box}"
            return [Refused(request_id=message.request_id, kind="fingerprint", what=what)]
        if refusal is None and target is not None:
            refusal = self._no_way_to(target.endpoint)
        with state.changed:
            if refusal is None:
                refusal = state.scheduler.add(request, now_s=now_s)
            if refusal is None and target is not None:
                state.outgoing[request.request_id] = Outgoing(
                    request_id=request.request_id,
                    target=target,
                    prompt_tokens=len(request.tokens),
                    deadline_s=request.deadline_s,
                )
            state.changed.notify()
        return [] if refusal is None else [refused(message.request_id, refusal)]

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
            request = self._state.scheduler.cancel(request_id)
            self._state.let_go(request, "cancelled", self._senders)


def failed_message(request_id: str, kind: FailureKind, what: str) -> Failed:
    """How the router is told that a request can't go on here."""
    return Failed(request_id=request_id, kind=kind, what=what)
