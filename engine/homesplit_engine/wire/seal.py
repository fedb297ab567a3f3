"""Seals one hand-off's messages, so that only its two ends can read, make or alter one.

AES-256-GCM (NIST SP 800-38D) with a key that the decode box draws for this hand-off alone and that
reaches the prefill box by the router's CURVE sockets. ZeroMQ's own CURVE would do as well but
costs four times the processor time a byte (`tests/bench/results/handoff.md`), which on a link of
2.5 Gbit/s is the difference between the wire's rate and half of it.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from homesplit_engine.wire.messages import Ack, Envelope, KvMessage, Raw, encode

KEY_BYTES = 32
TAG_BYTES = 16
_FORWARD, _BACK = 0, 1
_MESSAGE, _FRAME = 0, 1
_NONCE = struct.Struct(">BBxxQ")
"""Direction, part, message number: never the same twice under one key."""


class SealBroken(Exception):
    """A sealed part was damaged, altered, or sealed with another key."""


def new_seal_key() -> bytes:
    """A key for one hand-off."""
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """The seal of one hand-off, at either end."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    # ------------------------------------------------------------------ the sending end

    def message(
        self, envelope: Envelope, message: KvMessage, frame: Raw | None = None
    ) -> list[bytes]:
        """The parts of one message; a frame's bytes are read once, here."""
        return self.raw_message(envelope, encode(message), frame)

    def raw_message(
        self, envelope: Envelope, message: Raw, frame: Raw | None = None
    ) -> list[bytes]:
        """The same for a message that is encoded already."""
        head = encode(envelope)
        nonce = _NONCE.pack(_FORWARD, _MESSAGE, envelope.number)
        parts = [head, self._cipher.encrypt(nonce, message, head)]
        if frame is not None:
            nonce = _NONCE.pack(_FORWARD, _FRAME, envelope.number)
            parts.append(self._cipher.encrypt(nonce, frame, head))
        return parts

    def open_answer(self, envelope: Envelope, parts: Sequence[Raw]) -> bytes:
        """The answer's encoded Ack; raises SealBroken."""
        return self._open(_BACK, _MESSAGE, envelope.number, parts[1], parts[0])

    # ------------------------------------------------------------------ the receiving end

    def open_message(self, envelope: Envelope, parts: Sequence[Raw]) -> bytes:
        """The encoded message of [envelope, message, ...]; raises SealBroken."""
        return self._open(_FORWARD, _MESSAGE, envelope.number, parts[1], parts[0])

    def open_frame(self, envelope: Envelope, parts: Sequence[Raw], into: bytearray) -> memoryview:
        """The frame of [envelope, message, frame], written into `into`, which grows if it must.

        Raises SealBroken. The view is good until the next frame is opened into the same place.
        """
        size = len(parts[2]) - TAG_BYTES
        if size < 0:
            raise SealBroken
        if len(into) < size:
            into.extend(bytes(size - len(into)))
        room = memoryview(into)[:size]
        nonce = _NONCE.pack(_FORWARD, _FRAME, envelope.number)
        try:
            self._cipher.decrypt_into(nonce, parts[2], parts[0], room)
        except InvalidTag as error:
            raise SealBroken from error
        return room

    def answer(self, envelope: Envelope, ack: Ack) -> list[bytes]:
        """The parts of the answer to the message of this envelope; a hand-off has one answer."""
        head = encode(Envelope(reservation_id=envelope.reservation_id, number=envelope.number))
        nonce = _NONCE.pack(_BACK, _MESSAGE, envelope.number)
        return [head, self._cipher.encrypt(nonce, encode(ack), head)]

    def _open(self, way: int, part: int, number: int, sealed: Raw, head: Raw) -> bytes:
        try:
            return self._cipher.decrypt(_NONCE.pack(way, part, number), sealed, head)
        except InvalidTag as error:
            raise SealBroken from error
