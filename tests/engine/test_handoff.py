"""A hand-off is used whole or not at all: what a bad sender does to a real worker's socket."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from homesplit_engine.config import Keys
from homesplit_engine.handoff.ledger import HandoffRefused, Ledger
from homesplit_engine.keys import make_keys
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import (
    WIRE_VERSION,
    Abort,
    Ack,
    Chunk,
    Close,
    Committed,
    Failed,
    KvMessage,
    Open,
    Reserved,
    Token,
    decode_kv_reply,
    encode,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.client import WorkerProcess, reserve
from tests.engine.tiny import make_model, prompt_of

LAYERS, TOKENS, LAYER_BYTES = 3, 20, 2 * 2 * 8 * 4
Sent = tuple[KvMessage, bytes | None]


class Decoder:
    """A worker B and the keys of its peers; the test is its router and its prefill box A."""

    def __init__(self, folder: Path) -> None:
        self.keys = make_keys(["A", "B", "C"])
        model = make_model(folder / "model")
        self.worker = WorkerProcess(folder, self.keys["B"], self.keys["router"], model)
        self.worker.connect()
        self._context = zmq.Context()

    def peer(self, keys: Keys) -> zmq.Socket[Any]:
        socket = sockets.connecting_socket(
            self._context,
            keys=keys,
            server_key=self.worker.endpoints.public_key,
            max_bytes=10_000,
            hwm=100,
        )
        socket.connect(self.worker.endpoints.kv_endpoint)
        return socket

    def reserve(self, request_id: str, seed: int) -> Reserved:
        self.worker.send(reserve(request_id, prompt_of(TOKENS, seed)))
        return self.worker.wait(Reserved, lambda m: m.request_id == request_id)

    def messages(self, reserved: Reserved) -> list[Sent]:
        """A hand-off as it must be: two token ranges of three layers each."""
        sent: list[Sent] = [
            (
                Open(
                    wire_version=WIRE_VERSION,
                    reservation_id=reserved.reservation_id,
                    request_id=reserved.request_id,
                    from_box="A",
                    fingerprint=self.worker.endpoints.fingerprint,
                    layers=LAYERS,
                    from_token=0,
                    prompt_tokens=TOKENS,
                    dtype="same",
                ),
                None,
            )
        ]
        for start, tokens in ((0, 12), (12, 8)):
            for layer in range(LAYERS):
                frame = bytes([layer + 1]) * (LAYER_BYTES * tokens)
                chunk = Chunk(
                    reservation_id=reserved.reservation_id,
                    sequence=len(sent) - 1,
                    layer=layer,
                    from_token=start,
                    tokens=tokens,
                    bytes=len(frame),
                    checksum=zlib.crc32(frame),
                )
                sent.append((chunk, frame))
        close = Close(
            reservation_id=reserved.reservation_id,
            chunks=len(sent) - 1,
            bytes=LAYERS * LAYER_BYTES * TOKENS,
            first_token=Token(request_id=reserved.request_id, index=0, token_id=5),
        )
        return [*sent, (close, None)]

    def stop(self) -> None:
        self._context.destroy(linger=0)
        self.worker.stop()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    subject = Decoder(tmp_path_factory.mktemp("decoder"))
    yield subject
    subject.stop()


def send(socket: zmq.Socket[Any], sent: list[Sent]) -> None:
    for message, frame in sent:
        socket.send_multipart([encode(message), *([] if frame is None else [frame])])


def answer(socket: zmq.Socket[Any]) -> Ack:
    assert socket.poll(10_000), "no answer within 10 s"
    return decode_kv_reply(socket.recv())


def test_a_hand_off_as_it_must_be_is_committed(decoder: Decoder) -> None:
    reserved = decoder.reserve("good", 1)
    socket = decoder.peer(decoder.keys["A"])
    send(socket, decoder.messages(reserved))
    assert answer(socket).committed
    committed = decoder.worker.wait(Committed)
    assert (committed.bytes, committed.tokens) == (LAYERS * LAYER_BYTES * TOKENS, TOKENS)
    assert len(decoder.worker.finish("good")) == 5
    socket.close()


def _flip(sent: list[Sent]) -> list[Sent]:
    message, frame = sent[3]
    assert frame is not None
    return [*sent[:3], (message, b"\xff" + frame[1:]), *sent[4:]]


def _cut_short(sent: list[Sent]) -> list[Sent]:
    message, frame = sent[3]
    assert frame is not None
    return [*sent[:3], (message, frame[:-4]), *sent[4:]]


def _change(at: int, **changes: Any) -> Callable[[list[Sent]], list[Sent]]:
    def changed(sent: list[Sent]) -> list[Sent]:
        message, frame = sent[at]
        return [*sent[:at], (msgspec.structs.replace(message, **changes), frame), *sent[at + 1 :]]

    return changed


def _renumbered(sent: list[Sent]) -> list[Sent]:
    """The last frame is left out, and the numbers are made to look as if nothing were."""
    close, _ = sent[-1]
    shorter = msgspec.structs.replace(close, chunks=5, bytes=LAYER_BYTES * (2 * 20 + 12))
    return [*sent[:-2], (shorter, None)]


BROKEN: dict[str, tuple[Callable[[list[Sent]], list[Sent]], str]] = {
    "a flipped byte": (_flip, "checksum"),
    "a frame cut short": (_cut_short, "bytes"),
    "a frame left out": (lambda s: s[:3] + s[4:], "frame 2 was to come, frame 3 came"),
    "a frame sent twice": (lambda s: s[:4] + s[3:], "frame 3 was to come, frame 2 came"),
    "two frames exchanged": (lambda s: [*s[:2], s[3], s[2], *s[4:]], "was to come"),
    "an early end": (lambda s: s[:4] + s[-1:], "ends at token"),
    "a hidden gap": (_renumbered, "layer 2 ends at token 12 of 20"),
    "another fingerprint": (_change(0, fingerprint="other"), "fingerprint"),
    "another wire version": (_change(0, wire_version=99), "wire version"),
    "another number of layers": (_change(0, layers=4), "number of layers"),
    "another dtype": (_change(0, dtype="int8"), "dtype"),
    "another prompt length": (_change(0, prompt_tokens=21), "prompt length"),
    "a layer that does not exist": (_change(3, layer=7), "does not exist"),
    "tokens beyond the prompt": (_change(4, tokens=9), "tokens to 21 of 20"),
    "no opening": (lambda s: s[1:], "before the hand-off was opened"),
    "two openings": (lambda s: s[:1] + s, "opened twice"),
    "another's first token": (
        _change(-1, first_token=Token(request_id="x", index=0, token_id=5)),
        "another request",
    ),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_a_broken_hand_off_is_refused_with_its_fault_and_frees_everything(
    decoder: Decoder, case: str
) -> None:
    spoil, fault = BROKEN[case]
    reserved = decoder.reserve(case, 2 + list(BROKEN).index(case))
    socket = decoder.peer(decoder.keys["A"])
    sent = spoil(decoder.messages(reserved))
    send(socket, sent)
    ack = answer(socket)
    assert not ack.committed and ack.why is not None and fault in ack.why
    failed = decoder.worker.wait(Failed, lambda m: m.request_id == case)
    assert failed.kind == "handoff" and fault in failed.what
    decoder.worker.wait_until_free()
    socket.close()


def test_an_aborted_hand_off_is_told_and_freed(decoder: Decoder) -> None:
    reserved = decoder.reserve("aborted", 30)
    socket = decoder.peer(decoder.keys["A"])
    abort = Abort(reservation_id=reserved.reservation_id, why="the fan stopped")
    send(socket, [*decoder.messages(reserved)[:3], (abort, None)])
    failed = decoder.worker.wait(Failed, lambda m: m.request_id == "aborted")
    assert "the fan stopped" in failed.what
    decoder.worker.wait_until_free()
    socket.close()


def test_a_peer_cannot_fill_another_peers_reservation(decoder: Decoder) -> None:
    reserved = decoder.reserve("mine", 31)
    thief = decoder.peer(decoder.keys["C"])
    send(thief, decoder.messages(reserved))
    assert "not held here" in (answer(thief).why or "")
    thief.close()
    socket = decoder.peer(decoder.keys["A"])
    send(socket, decoder.messages(reserved))
    assert answer(socket).committed
    decoder.worker.finish("mine")
    socket.close()


def test_a_stranger_is_not_heard_at_all(decoder: Decoder) -> None:
    reserved = decoder.reserve("strange", 32)
    stranger = decoder.peer(make_keys(["A"])["A"])
    send(stranger, decoder.messages(reserved))
    assert not stranger.poll(500)
    stranger.close()
    socket = decoder.peer(decoder.keys["A"])
    send(socket, decoder.messages(reserved))
    assert answer(socket).committed
    decoder.worker.finish("strange")
    socket.close()


@given(st.permutations([(layer, start) for start in (0, 4) for layer in range(2)]))
def test_a_ledger_closes_only_when_every_layer_came_in_order(
    order: list[tuple[int, int]],
) -> None:
    ledger = Ledger(layers=2, from_token=0, prompt_tokens=8)
    in_order = all(order.index((layer, 0)) < order.index((layer, 4)) for layer in range(2))
    refused = False
    for sequence, (layer, start) in enumerate(order):
        chunk = Chunk(
            reservation_id="r",
            sequence=sequence,
            layer=layer,
            from_token=start,
            tokens=4,
            bytes=16,
            checksum=0,
        )
        try:
            ledger.check(chunk, expected_bytes=16, frame_bytes=16)
            ledger.note(chunk)
        except HandoffRefused:
            refused = True
            break
    assert refused is not in_order
