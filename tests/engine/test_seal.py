"""A hand-off's seal: only its two ends read, make or alter what goes between them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from homesplit_engine.wire.messages import (
    Abort,
    Ack,
    Chunk,
    Envelope,
    HandoffSecret,
    Raw,
    decode_kv_message,
    decode_kv_reply,
)
from homesplit_engine.wire.seal import TAG_BYTES, Seal, SealBroken, frame_bytes, new_seal_key
from hypothesis import given
from hypothesis import strategies as st

CHUNK = Chunk(reservation_id="v", sequence=0, layer=0, from_token=0, tokens=4, bytes=64)
FRAME = bytes(range(64))


def envelope(number: int = 3, name: str = "v") -> Envelope:
    return Envelope(reservation_id=name, number=number)


def opened(seal: Seal, head: Envelope, parts: Sequence[Raw]) -> bytes:
    room = bytearray(max(0, frame_bytes(parts[2])))
    seal.open_frame(head, parts, [room])
    return bytes(room)


def test_what_one_end_seals_the_other_opens() -> None:
    key = new_seal_key()
    here, there = Seal(key), Seal(key)
    parts = here.message(envelope(), CHUNK, FRAME)
    assert decode_kv_message(there.open_message(envelope(), parts)) == CHUNK
    assert opened(there, envelope(), parts) == FRAME
    ack = Ack(reservation_id="v", committed=True)
    assert decode_kv_reply(here.open_answer(envelope(), there.answer(envelope(), ack))) == ack


def test_neither_header_nor_frame_can_be_read_on_the_way() -> None:
    parts = Seal(new_seal_key()).message(envelope(), CHUNK, FRAME)
    assert FRAME not in b"".join(parts) and b"from_token" not in b"".join(parts)
    assert len(parts[2]) == len(FRAME) + TAG_BYTES


@given(st.data())
def test_one_bit_anywhere_breaks_it(data: st.DataObject) -> None:
    seal = Seal(new_seal_key())
    parts = seal.message(envelope(), CHUNK, FRAME)
    at = data.draw(st.sampled_from(range(3)))
    place = data.draw(st.sampled_from(range(len(parts[at]))))
    bit = data.draw(st.sampled_from([1 << n for n in range(8)]))
    damaged = bytearray(parts[at])
    damaged[place] ^= bit
    parts[at] = bytes(damaged)
    with pytest.raises(SealBroken):
        seal.open_message(envelope(), parts)
        opened(seal, envelope(), parts)


def test_parts_do_not_fit_another_message_another_hand_off_or_another_way() -> None:
    seal = Seal(new_seal_key())
    parts = seal.message(envelope(3), CHUNK, FRAME)
    for other in (
        lambda: seal.open_message(envelope(4), parts),
        lambda: opened(seal, envelope(4), parts),
        lambda: seal.open_answer(envelope(3), parts),
        lambda: Seal(new_seal_key()).open_message(envelope(3), parts),
        lambda: seal.open_message(
            envelope(3), [seal.message(envelope(3, "w"), CHUNK)[0], *parts[1:]]
        ),
    ):
        with pytest.raises(SealBroken):
            other()


def test_a_frame_shorter_than_a_tag_is_broken_and_not_a_crash() -> None:
    seal = Seal(new_seal_key())
    head, body = seal.message(envelope(), CHUNK)
    for size in range(TAG_BYTES + 1):
        with pytest.raises(SealBroken):
            seal.open_frame(envelope(), [head, body, bytes(size)], [bytearray(1)])
        with pytest.raises(SealBroken):
            seal.open_message(envelope(), [head, bytes(size)])


def test_the_same_words_look_different_each_time() -> None:
    abort = Abort(reservation_id="v", why="")
    first, second = (bytes(Seal(new_seal_key()).message(envelope(), abort)[1]) for _ in range(2))
    third = bytes(Seal(new_seal_key()).message(envelope(1), abort)[1])
    assert len({first, second, third}) == 3


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_a_frame_may_be_sealed_from_stretches_and_opened_into_others(
    stretches: list[bytes], data: st.DataObject
) -> None:
    seal, frame = Seal(new_seal_key()), b"".join(stretches)
    parts = seal.message(envelope(), CHUNK, *stretches)
    cut = data.draw(st.integers(0, len(frame)))
    into = [bytearray(cut), bytearray(len(frame) - cut)]
    seal.open_frame(envelope(), parts, into)
    assert b"".join(into) == frame
    with pytest.raises(SealBroken):
        seal.open_frame(envelope(), parts, [*into, bytearray(1)])


def test_a_secret_is_not_printed() -> None:
    secret = HandoffSecret(password="sesame", seal_key=b"k" * 32)
    assert "sesame" not in repr(secret) and "kkk" not in str(secret)
