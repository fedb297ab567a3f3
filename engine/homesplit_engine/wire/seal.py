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
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from homesplit_engine.wire.messages import Ack, Envelope, KvMessage, Raw, encode

KEY_BYTES = 32
TAG_BYTES = 16
_FORWARD, _BACK = 0, 1
_MESSAGE, _FRAME = 0, 1
_NONCE = struct.Struct(">BBxxQ")
"""Direction, part, message number: never the same twice under one key."""


def frame_bytes(sealed: Raw) -> int:
    """How many bytes a sealed frame holds; less than 0 when it is none."""
    return len(sealed) - TAG_BYTES


class SealBroken(Exception):
    """A sealed part was damaged, altered, or sealed with another key."""


def new_seal_key() -> bytes:
    """A key for one hand-off."""
    return secrets.token_bytes(KEY_BYTES)


class Seal:
    """The seal of one hand-off, at either end."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._key = algorithms.AES(key)

    # ------------------------------------------------------------------ the sending end

    def message(self, envelope: Envelope, message: KvMessage, *frame: Raw) -> list[Raw]:
        """The parts of one message; its frame's stretches, if it has one, are read once, here."""
        return self.raw_message(envelope, encode(message), *frame)

    def raw_message(self, envelope: Envelope, message: Raw, *frame: Raw) -> list[Raw]:
        """The same for a message that is encoded already."""
        head = encode(envelope)
        nonce = _NONCE.pack(_FORWARD, _MESSAGE, envelope.number)
        parts: list[Raw] = [head, self._cipher.encrypt(nonce, message, head)]
        if frame:
            nonce = _NONCE.pack(_FORWARD, _FRAME, envelope.number)
            parts.append(self._frame(nonce, head, frame))
        return parts

    def _frame(self, nonce: bytes, head: bytes, stretches: Sequence[Raw]) -> memoryview:
        """All stretches in one frame: sealed as they are copied together."""
        size = sum(map(len, stretches))
        # Not a bytearray: filling that with zeros first takes a third of the sealing's time.
        room: Any = np.empty(size + TAG_BYTES, np.uint8)
        sealed = memoryview(room)
        sealing = Cipher(self._key, modes.GCM(nonce)).encryptor()
        sealing.authenticate_additional_data(head)
        at = 0
        for stretch in stretches:
            at += sealing.update_into(stretch, sealed[at : at + len(stretch)])
        sealing.finalize()
        sealed[size:] = sealing.tag
        return sealed

    def open_answer(self, envelope: Envelope, parts: Sequence[Raw]) -> bytes:
        """The answer's encoded Ack; raises SealBroken."""
        return self._open(_BACK, _MESSAGE, envelope.number, parts[1], parts[0])

    # ------------------------------------------------------------------ the receiving end

    def open_message(self, envelope: Envelope, parts: Sequence[Raw]) -> bytes:
        """The encoded message of [envelope, message, ...]; raises SealBroken."""
        return self._open(_FORWARD, _MESSAGE, envelope.number, parts[1], parts[0])

    def open_frame(self, envelope: Envelope, parts: Sequence[Raw], into: Sequence[Raw]) -> None:
        """The frame of [envelope, message, frame], written into stretches that are its length.

        Raises SealBroken, and only after it has written: what was to be there is not.
        """
        frame = memoryview(parts[2])
        size = frame_bytes(parts[2])
        if size < 0 or size != sum(map(len, into)):
            raise SealBroken
        nonce = _NONCE.pack(_FORWARD, _FRAME, envelope.number)
        opening = Cipher(self._key, modes.GCM(nonce)).decryptor()
        opening.authenticate_additional_data(bytes(parts[0]))
        at = 0
        for stretch in into:
            at += opening.update_into(frame[at : at + len(stretch)], stretch)
        try:
            opening.finalize_with_tag(bytes(frame[size:]))
        except InvalidTag as error:
            raise SealBroken from error

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
