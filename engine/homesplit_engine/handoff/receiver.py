"""Takes KV in: a thread that writes frames into reserved blocks and commits only the whole.

A hand-off is refused, and its reservation freed, at the first thing that is not as it must
be: another fingerprint, a missing, repeated or damaged frame, a wrong size. Whoever has not the
reservation's key, and frames for a reservation that is gone, are not heard.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from homesplit_engine.cache import KvPool, Place
from homesplit_engine.handoff.layout import Piece, as_it_lies, piece_bytes, unpack
from homesplit_engine.handoff.ledger import HandoffRefused, Ledger
from homesplit_engine.records import KvWire
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import (
    MAX_FRAME_BYTES,
    WIRE_VERSION,
    Abort,
    Ack,
    Chunk,
    Close,
    Envelope,
    Gone,
    KvMessage,
    Open,
    ProtocolError,
    Raw,
    Token,
    decode_kv_head,
    decode_kv_message,
    encode,
)
from homesplit_engine.wire.seal import Seal, SealBroken, frame_bytes

IDLE_S = 60.0
"""A hand-off that has begun and sends nothing for this long is given up."""

_IN_A_ROW = 64
"""Messages that are dealt with before the thread looks at anything else."""


class Arrived(Struct, frozen=True, kw_only=True):
    """A hand-off that is whole."""

    request_id: str
    first_token: Token
    bytes: int
    tokens: int


class Incoming:
    """One reservation on the receiving side."""

    def __init__(
        self,
        *,
        reservation_id: str,
        request_id: str,
        from_box: str,
        seal_key: bytes,
        place: Place,
        cached_tokens: int,
        prompt_tokens: int,
        wire: KvWire = "same",
    ) -> None:
        self.reservation_id = reservation_id
        self.request_id = request_id
        self.from_box = from_box
        self.seal = Seal(seal_key)
        self.place = place
        self.cached_tokens = cached_tokens
        self.prompt_tokens = prompt_tokens
        self.wire: KvWire = wire
        self.ledger: Ledger | None = None
        self.heard_s: float | None = None
        self.connection: int | None = None
        """The file descriptor that its messages come by."""


class Receiver:
    """The receiving thread of one worker."""

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        host: str,
        port: int,
        fingerprint: str,
        pool: KvPool,
        arrived: Callable[[Arrived], bool],
        failed: Callable[[str, str], None],
    ) -> None:
        """`arrived` answers whether the request could be taken; `failed` gets id and reason."""
        self._fingerprint = fingerprint
        self._pool = pool
        self._arrived = arrived
        self._failed = failed
        self._incoming: dict[str, Incoming] = {}
        self._lock = threading.Lock()
        """Held while bytes are written, so that nobody frees blocks under the writing hand."""
        self._socket = sockets.kv_listening_socket(
            context, max_bytes=MAX_FRAME_BYTES, hwm=sockets.KV_HWM
        )
        self._room = bytearray()
        """Where a frame is opened, over and over: it stays in the processor's cache."""
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.endpoint = sockets.bind(self._socket, host, port)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-receiver", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Asks the thread to close its socket and end."""
        self._stopping.set()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(sockets.JOIN_S)

    def expect(self, incoming: Incoming) -> None:
        """A reservation was made; its KV may come from now on."""
        with self._lock:
            self._incoming[incoming.reservation_id] = incoming

    def drop(self, request_id: str) -> None:
        """Forgets a request's reservation; afterwards nothing is written into its blocks."""
        with self._lock:
            for incoming in list(self._incoming.values()):
                if incoming.request_id == request_id:
                    del self._incoming[incoming.reservation_id]

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while not self._stopping.is_set():
            poller.poll(200)
            for _ in range(_IN_A_ROW):
                if not self._take_next():
                    break
            self._give_up_idle()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _take_next(self) -> bool:
        """Deals with the next message; False when none is there."""
        # First what was lost: its descriptor may be another connection's by the next message.
        while sockets.has_news(self._monitor):
            self._lose(int(recv_monitor_message(self._monitor)["value"]))
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self._take(frames)
        return True

    def _take(self, frames: list[zmq.Frame]) -> None:
        if not 3 <= len(frames) <= 4:
            return
        parts = [part.buffer for part in frames[1:]]
        try:
            envelope = decode_kv_head(parts[0])
        except ProtocolError:
            return
        if isinstance(envelope, Envelope):
            answer = self.answer(envelope, parts, int(frames[1].get(zmq.SRCFD)))
            if answer is not None:
                self._reply(frames[0], answer)

    def answer(
        self, envelope: Envelope, parts: Sequence[Raw], connection: int
    ) -> list[bytes] | None:
        """Deals with one sealed message; the parts of what is said to it, None for nothing."""
        with self._lock:
            incoming = self._incoming.get(envelope.reservation_id)
        gone = [encode(Gone(reservation_id=envelope.reservation_id))] if envelope.asks else None
        if incoming is None:
            return gone
        try:
            message = self._unsealed(incoming, envelope, parts)
            ack = self._handle(message, envelope, parts, connection)
        except SealBroken:
            if incoming.connection != connection:
                # Not from whoever opened the hand-off: it has no say in it.
                return gone
            why = f"message {envelope.number} is damaged: its seal does not hold"
            ack = self._refuse(envelope, why)
        except HandoffRefused as refusal:
            ack = self._refuse(envelope, str(refusal))
        except ProtocolError:
            return None
        if isinstance(ack, Gone):
            return gone
        return None if ack is None else incoming.seal.answer(envelope, ack)

    def _unsealed(self, incoming: Incoming, envelope: Envelope, parts: Sequence[Raw]) -> KvMessage:
        message = decode_kv_message(incoming.seal.open_message(envelope, parts))
        if message.reservation_id != incoming.reservation_id:
            raise HandoffRefused("a message speaks of another reservation")
        return message

    def _refuse(self, envelope: Envelope, why: str) -> Ack:
        self._fail(envelope.reservation_id, why)
        return Ack(reservation_id=envelope.reservation_id, committed=False, why=why)

    def _handle(
        self, message: KvMessage, envelope: Envelope, parts: Sequence[Raw], connection: int
    ) -> Ack | Gone | None:
        """Deals with one message; raises HandoffRefused when the hand-off must not go on."""
        with self._lock:
            incoming = self._incoming.get(message.reservation_id)
            if incoming is None:
                return Gone(reservation_id=message.reservation_id)
            if incoming.connection not in (None, connection):
                # All of a hand-off comes by one connection: who repeats it has no say in it.
                raise SealBroken
            if isinstance(message, Chunk):
                self._write(incoming, message, envelope, parts)
            # After the frame: if its seal is broken, it need not be from who opened the hand-off.
            incoming.heard_s = time.monotonic()
            incoming.connection = connection
            arrived: Arrived | None = None
            match message:
                case Open():
                    incoming.ledger = self._opened(incoming, message)
                    return None
                case Chunk():
                    return None
                case Abort():
                    why = message.why
                case Close():
                    arrived = _whole(incoming, message)
                    del self._incoming[message.reservation_id]
                    why = ""
        # Outside the lock: the worker takes its own to commit or to free.
        if arrived is not None:
            return self._commit(message.reservation_id, arrived)
        self._fail(message.reservation_id, f"{incoming.from_box} gave it up: {why}")
        return None

    def _opened(self, incoming: Incoming, message: Open) -> Ledger:
        ours = {
            "wire version": WIRE_VERSION,
            "fingerprint": self._fingerprint,
            "request": incoming.request_id,
            "box": incoming.from_box,
            "number of layers": self._pool.shape.layers,
            "first token": incoming.cached_tokens,
            "prompt length": incoming.prompt_tokens,
            "dtype": incoming.wire,
        }
        theirs = {
            "wire version": message.wire_version,
            "fingerprint": message.fingerprint,
            "request": message.request_id,
            "box": message.from_box,
            "number of layers": message.layers,
            "first token": message.from_token,
            "prompt length": message.prompt_tokens,
            "dtype": message.dtype,
        }
        for name, value in ours.items():
            if theirs[name] != value:
                raise HandoffRefused(f"its {name} is {theirs[name]}, expected was {value}")
        if incoming.ledger is not None:
            raise HandoffRefused("it was opened twice")
        return Ledger(
            layers=message.layers,
            from_token=message.from_token,
            prompt_tokens=message.prompt_tokens,
        )

    def _write(
        self,
        incoming: Incoming,
        chunk: Chunk,
        envelope: Envelope,
        parts: Sequence[Raw],
    ) -> None:
        if incoming.ledger is None or len(parts) < 3:
            raise HandoffRefused("a frame came before the hand-off was opened, or without data")
        piece = Piece(
            layer=chunk.layer,
            layers=chunk.layers,
            start=chunk.from_token,
            end=chunk.from_token + chunk.tokens,
        )
        in_range = 0 <= piece.layer <= piece.layer + piece.layers <= self._pool.shape.layers
        expected = piece_bytes(self._pool.shape, piece, incoming.wire) if in_range else 0
        size = frame_bytes(parts[2])
        incoming.ledger.check(chunk, expected_bytes=expected, frame_bytes=size)
        # Straight into the reserved blocks: should the seal not hold, then this piece is still to
        # come, and nothing is committed without it.
        into = as_it_lies(self._pool, incoming.place, piece, incoming.wire)
        if into is not None:
            incoming.seal.open_frame(envelope, parts, into)
        else:
            room = self._room_for(size)
            incoming.seal.open_frame(envelope, parts, [room])
            unpack(self._pool, incoming.place, piece, room, incoming.wire)
        incoming.ledger.note(chunk)

    def _room_for(self, size: int) -> memoryview:
        if len(self._room) < size:
            self._room.extend(bytes(size - len(self._room)))
        return memoryview(self._room)[:size]

    def _commit(self, reservation_id: str, arrived: Arrived) -> Ack:
        if self._arrived(arrived):
            return Ack(reservation_id=reservation_id, committed=True)
        return Ack(
            reservation_id=reservation_id,
            committed=False,
            why="the request was cancelled or its deadline has passed",
        )

    def _fail(self, reservation_id: str, why: str) -> None:
        with self._lock:
            incoming = self._incoming.pop(reservation_id, None)
        if incoming is not None:
            self._failed(incoming.request_id, why)

    def _reply(self, identity: zmq.Frame, answer: list[bytes]) -> None:
        # A peer that is gone needs no answer; one that reads none waits out its own time.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([identity.bytes, *answer], zmq.NOBLOCK)

    def _lose(self, connection: int) -> None:
        """Every hand-off that was coming by this connection has failed."""
        with self._lock:
            lost = [one for one in self._incoming.values() if one.connection == connection]
        for incoming in lost:
            self._fail(
                incoming.reservation_id,
                f"the connection to {incoming.from_box} was lost in the middle of the hand-off",
            )

    def _give_up_idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            idle = [
                incoming.reservation_id
                for incoming in self._incoming.values()
                if incoming.heard_s is not None and now - incoming.heard_s > IDLE_S
            ]
        for reservation_id in idle:
            self._fail(reservation_id, f"nothing came for {IDLE_S:.0f} s")


def _whole(incoming: Incoming, close: Close) -> Arrived:
    if incoming.ledger is None:
        raise HandoffRefused("it was closed before it was opened")
    incoming.ledger.close(close)
    if close.first_token.request_id != incoming.request_id:
        raise HandoffRefused("its first token belongs to another request")
    return Arrived(
        request_id=incoming.request_id,
        first_token=close.first_token,
        bytes=incoming.ledger.bytes,
        tokens=incoming.prompt_tokens - incoming.cached_tokens,
    )
