"""A hand-off's seal: only its two ends read, make or alter what goes between them."""

from __future__ import annotations

import pytest
from homesplit_engine.wire.messages import (
    Abort,
    Ack,
    Chunk,
    Envelope,
    HandoffSecret,
    decode_kv_message,
    decode_kv_reply,
)
from homesplit_engine.wire.seal import TAG_BYTES, Seal, SealBroken, new_seal_key
from hypothesis import given
from hypothesis import strategies as st

CHUNK = Chunk(reservation_id="v", sequence=0, layer=0, from_token=0, tokens=4, bytes=64)
FRAME = bytes(range(64))


def envelope(number: int = 3, name: str = "v") -> Envelope:
    return Envelope(reservation_id=name, number=number)


def test_what_one_end_seals_the_other_opens() -> None:
    key = new_seal_key()
    here, there = Seal(key), Seal(key)
    parts = here.message(envelope(), CHUNK, FRAME)
    assert decode_kv_message(there.open_message(envelope(), parts)) == CHUNK
    assert there.open_frame(envelope(), parts, bytearray()) == FRAME
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
        seal.open_frame(envelope(), parts, bytearray())


def test_parts_do_not_fit_another_message_another_hand_off_or_another_way() -> None:
    seal = Seal(new_seal_key())
    parts = seal.message(envelope(3), CHUNK, FRAME)
    for other in (
        lambda: seal.open_message(envelope(4), parts),
        lambda: seal.open_frame(envelope(4), parts, bytearray()),
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
            seal.open_frame(envelope(), [head, body, bytes(size)], bytearray())
        with pytest.raises(SealBroken):
            seal.open_message(envelope(), [head, bytes(size)])


def test_the_same_words_look_different_each_time() -> None:
    abort = Abort(reservation_id="v", why="")
    first, second = (Seal(new_seal_key()).message(envelope(), abort)[1] for _ in range(2))
    third = Seal(new_seal_key()).message(envelope(1), abort)[1]
    assert len({first, second, third}) == 3


def test_a_frame_is_opened_into_the_same_place_whatever_its_size() -> None:
    seal, room = Seal(new_seal_key()), bytearray()
    for number, size in enumerate((10, 1000, 10, 0)):
        frame = bytes([number]) * size
        parts = seal.message(envelope(number), CHUNK, frame)
        assert bytes(seal.open_frame(envelope(number), parts, room)) == frame
    assert len(room) == 1000


def test_a_secret_is_not_printed() -> None:
    secret = HandoffSecret(password="sesame", seal_key=b"k" * 32)
    assert "sesame" not in repr(secret) and "kkk" not in str(secret)
