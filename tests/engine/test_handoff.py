"""A hand-off is used whole or not at all: what a bad sender does to a real worker's socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
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
    Envelope,
    Failed,
    Gone,
    HandoffSecret,
    KvMessage,
    Open,
    Reserved,
    Token,
    decode_kv_head,
    decode_kv_reply,
)
from homesplit_engine.wire.seal import Seal, new_seal_key
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.client import ANSWER_S, WorkerProcess, reserve
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

    def peer(self, password: str, name: str = "A") -> zmq.Socket[Any]:
        socket = sockets.kv_connecting_socket(
            self._context, name=name, password=password, max_bytes=10_000, hwm=100
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


def sealed(secret: HandoffSecret, sent: list[Sent]) -> list[list[bytes]]:
    """The parts of each message as they go over the wire."""
    seal = Seal(secret.seal_key)
    made = [
        seal.message(
            Envelope(
                reservation_id=message.reservation_id,
                number=number,
                asks=isinstance(message, Open | Close),
            ),
            message,
            *(() if frame is None else (frame,)),
        )
        for number, (message, frame) in enumerate(sent)
    ]
    return [[bytes(part) for part in parts] for parts in made]


def send(socket: zmq.Socket[Any], secret: HandoffSecret, sent: list[Sent]) -> None:
    for parts in sealed(secret, sent):
        socket.send_multipart(parts)


def answer(socket: zmq.Socket[Any], secret: HandoffSecret, reservation_id: str) -> Ack | Gone:
    """What is said of this reservation.

    Late words about an earlier one reach whoever has the box's name now.
    """
    while True:
        assert socket.poll(int(1000 * ANSWER_S)), f"no answer within {ANSWER_S:.0f} s"
        parts = socket.recv_multipart()
        head = decode_kv_head(parts[0])
        if head.reservation_id != reservation_id:
            continue
        if isinstance(head, Gone):
            return head
        return decode_kv_reply(Seal(secret.seal_key).open_answer(head, parts))


def test_a_hand_off_as_it_must_be_is_committed(decoder: Decoder) -> None:
    reserved = decoder.reserve("good", 1)
    socket = decoder.peer(reserved.secret.password)
    send(socket, reserved.secret, decoder.messages(reserved))
    ack = answer(socket, reserved.secret, reserved.reservation_id)
    assert isinstance(ack, Ack) and ack.committed
    committed = decoder.worker.wait(Committed)
    assert (committed.bytes, committed.tokens) == (LAYERS * LAYER_BYTES * TOKENS, TOKENS)
    assert len(decoder.worker.finish("good")) == 5
    socket.close()


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
    socket = decoder.peer(reserved.secret.password)
    send(socket, reserved.secret, spoil(decoder.messages(reserved)))
    refused_for(decoder, socket, reserved, fault)


def refused_for(decoder: Decoder, socket: zmq.Socket[Any], reserved: Reserved, fault: str) -> None:
    """Sender and router are told the fault, and nothing is held."""
    ack = answer(socket, reserved.secret, reserved.reservation_id)
    assert isinstance(ack, Ack) and not ack.committed
    assert ack.why is not None and fault in ack.why
    failed = decoder.worker.wait(Failed, lambda m: m.request_id == reserved.request_id)
    assert failed.kind == "handoff" and fault in failed.what
    decoder.worker.wait_until_free()
    socket.close()


@pytest.mark.parametrize("part", ["envelope", "header", "frame"])
def test_one_flipped_bit_of_an_opened_hand_off_breaks_its_seal(decoder: Decoder, part: str) -> None:
    reserved = decoder.reserve(f"flipped {part}", 40)
    socket = decoder.peer(reserved.secret.password)
    wire = sealed(reserved.secret, decoder.messages(reserved))
    at = ["envelope", "header", "frame"].index(part)
    # The envelope's last byte is its `asks`: the id and the number stay as they were.
    wire[3][at] = wire[3][at][:-1] + bytes([wire[3][at][-1] ^ 1])
    for parts in wire:
        socket.send_multipart(parts)
    refused_for(decoder, socket, reserved, "message 3 is damaged")


def test_an_aborted_hand_off_is_told_and_freed(decoder: Decoder) -> None:
    reserved = decoder.reserve("aborted", 30)
    socket = decoder.peer(reserved.secret.password)
    abort = Abort(reservation_id=reserved.reservation_id, why="the fan stopped")
    send(socket, reserved.secret, [*decoder.messages(reserved)[:3], (abort, None)])
    failed = decoder.worker.wait(Failed, lambda m: m.request_id == "aborted")
    assert "the fan stopped" in failed.what
    decoder.worker.wait_until_free()
    socket.close()


@pytest.mark.parametrize(
    "sent", [1, 4, 7], ids=["its opening alone", "half its frames", "all but its end"]
)
def test_a_prefill_box_that_dies_after_any_message_is_named_and_everything_is_freed(
    decoder: Decoder, sent: int
) -> None:
    reserved = decoder.reserve(f"dies after {sent}", 50 + sent)
    socket = decoder.peer(reserved.secret.password)
    send(socket, reserved.secret, decoder.messages(reserved)[:sent])
    # Messages are taken in their order: whoever is told of this one was heard before.
    asked = Envelope(reservation_id="unknown", number=0, asks=True)
    socket.send_multipart(Seal(new_seal_key()).raw_message(asked, b""))
    assert isinstance(answer(socket, reserved.secret, "unknown"), Gone)
    socket.close(linger=0)
    failed = decoder.worker.wait(Failed, lambda m: m.request_id == reserved.request_id)
    assert failed.kind == "handoff" and "the connection to A was lost" in failed.what
    decoder.worker.wait_until_free()


def test_a_peer_cannot_fill_another_peers_reservation(decoder: Decoder) -> None:
    reserved = decoder.reserve("mine", 31)
    # Another hand-off's end knows the password and may have seen the reservation's name go by.
    thief = decoder.peer(reserved.secret.password, "C")
    theirs = msgspec.structs.replace(reserved.secret, seal_key=new_seal_key())
    send(thief, theirs, decoder.messages(reserved))
    assert isinstance(answer(thief, theirs, reserved.reservation_id), Gone)
    thief.close()
    socket = decoder.peer(reserved.secret.password)
    send(socket, reserved.secret, decoder.messages(reserved))
    ack = answer(socket, reserved.secret, reserved.reservation_id)
    assert isinstance(ack, Ack) and ack.committed
    decoder.worker.finish("mine")
    socket.close()


def test_a_stranger_is_not_heard_at_all(decoder: Decoder) -> None:
    reserved = decoder.reserve("strange", 32)
    stranger = decoder.peer("a guess")
    send(stranger, reserved.secret, decoder.messages(reserved))
    assert not stranger.poll(500)
    stranger.close()
    socket = decoder.peer(reserved.secret.password)
    send(socket, reserved.secret, decoder.messages(reserved))
    ack = answer(socket, reserved.secret, reserved.reservation_id)
    assert isinstance(ack, Ack) and ack.committed
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
        )
        try:
            ledger.check(chunk, expected_bytes=16, frame_bytes=16)
            ledger.note(chunk)
        except HandoffRefused:
            refused = True
            break
    assert refused is not in_order
