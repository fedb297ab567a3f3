"""What hand-offs tell of the link they share, and one that was given up for how long."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import zmq
from homesplit_engine.cache import KvPool, KvShape
from homesplit_engine.handoff.sender import Outgoing, Sender
from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent
from homesplit_engine.router.rates import SLOW_S, Rates
from homesplit_engine.wire.messages import HandoffSecret, HandoffTarget, Token
from homesplit_engine.wire.seal import new_seal_key
from homesplit_engine.wire.sockets import KV_DOMAIN, Gatekeeper, bind, kv_listening_socket
from homesplit_engine.wire.tcp import TcpSeen

PAIR = ("a", "b")


def handed_over(bytes_per_s: float) -> TransferEvent:
    return TransferEvent(
        box_from="a",
        box_to="b",
        request_id="r",
        start_s=0.0,
        end_s=1.0,
        bytes=int(bytes_per_s),
        tokens=1,
        exposed_s=1.0,
    )


def test_a_slow_link_is_placed_by_what_it_carries_now_and_waited_for_by_what_it_can() -> None:
    rates = Rates({PAIR: 8e6})
    rates.learn_slow(PAIR, 1e6, 100.0)
    assert rates.links(100.0) == {PAIR: 1e6}
    assert rates.link_can_bytes_per_s == {PAIR: 8e6}


def test_after_a_while_a_slow_link_counts_as_never_measured_until_it_carries_something() -> None:
    rates = Rates({PAIR: 8e6})
    rates.learn_slow(PAIR, 0.0, 100.0)
    assert rates.links(101.0 + SLOW_S) == {}
    rates.learn_transfer(handed_over(4e6))
    assert rates.links(101.0 + SLOW_S) == {PAIR: 4e6}
    assert rates.link_can_bytes_per_s == {PAIR: 8e6}


@pytest.mark.parametrize(
    ("boxes", "read_s"), [(("a", "b"), 2.0), (("b", "a"), 2.0), (("b",), None)]
)
def test_reading_again_is_reckoned_by_the_first_box_that_has_read(
    boxes: tuple[str, ...], read_s: float | None
) -> None:
    rates = Rates()
    piece = PrefillSlice(request_id="r", start=0, tokens=100)
    rates.learn_step(StepEvent(box="a", step=0, start_s=0.0, end_s=1.0, prefill=(piece,)))
    assert rates.read_s(boxes, 200) == read_s


def _nothing(*_: Any) -> None:
    return None


def _nothing_arrived(_: int | None) -> TcpSeen:
    return TcpSeen(acked_bytes=0, sent=0, resent=0, rtt_s=0.0)


def sender_of_two(
    context: zmq.Context[Any], endpoint: str
) -> tuple[Sender, tuple[Outgoing, Outgoing]]:
    """Two hand-offs to one peer, of 8 tokens in 2 layers each; a token is 128 bytes."""
    shape = KvShape(kv_heads=(2, 2), head_dim=(4, 4), dtype=torch.float32)
    pool = KvPool(shape, blocks_total=2, block_tokens=8, device=torch.device("cpu"))
    sender = Sender(context, box="a", fingerprint="f", pool=pool, ended=_nothing)

    def outgoing(name: str, block: int) -> Outgoing:
        target = HandoffTarget(
            reservation_id=name,
            box="b",
            endpoint=endpoint,
            secret=HandoffSecret(password="sesame", seal_key=new_seal_key()),
            fingerprint="f",
            cached_tokens=0,
        )
        made = Outgoing(
            request_id=name, target=target, prompt_tokens=8, deadline_s=time.monotonic() + 600
        )
        made.place = pool.place([block])
        return made

    return sender, (outgoing("first", 0), outgoing("second", 1))


def told(sender: Sender) -> list[tuple[str, int, int]]:
    return [(one.request_id, one.left_bytes, one.ahead_bytes) for one in sender.sending()]


def test_prompts_read_in_one_step_tell_what_goes_before_the_last_layer_of_each() -> None:
    context: zmq.Context[Any] = zmq.Context()
    sender, both = sender_of_two(context, "")
    for layer in range(2):
        for outgoing in both:
            sender.layer_done(outgoing, layer, 0, 8)
    read = told(sender)
    for outgoing in both:
        token = Token(request_id=outgoing.request_id, index=0, token_id=1)
        sender.prefilled(outgoing, token, 1.0)
    read_to_the_end = told(sender)
    both[1].bytes = 256  # its first layer is half sent
    half = told(sender)
    both[0].bytes = 1024
    last = told(sender)
    context.destroy(linger=0)
    assert read == [("first", 1024, 0), ("second", 1024, 1024)]
    assert read_to_the_end == [("first", 1024, 512), ("second", 1024, 1024)]
    assert half == [("first", 1024, 256), ("second", 768, 1024)]
    assert last == [("first", 0, 256), ("second", 768, 0)]


def test_a_hand_off_tells_what_goes_before_it_on_the_link_that_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of both 4 tokens are sent then; whatever of that has not arrived goes before the rest."""
    context: zmq.Context[Any] = zmq.Context()
    gate = Gatekeeper(context, {}, {KV_DOMAIN: "sesame"})
    listening = kv_listening_socket(context, max_bytes=2**20, hwm=100)
    endpoint = bind(listening, "127.0.0.1", 0)
    sender, both = sender_of_two(context, endpoint)
    for outgoing in both:
        for layer in range(2):
            sender.layer_done(outgoing, layer, 0, 4)
    waiting = told(sender)
    sender.start()
    end_s = time.monotonic() + 60
    while (sent := told(sender)) != [("first", 512, 0), ("second", 512, 512)]:
        assert time.monotonic() < end_s, sent
        time.sleep(0.01)
    monkeypatch.setattr("homesplit_engine.wire.tcp.look", _nothing_arrived)
    on_the_way = [left_bytes - 512 for _, left_bytes, _ in told(sender)]
    for part in (sender, gate):
        part.stop_soon()
        part.join()
    context.destroy(linger=0)
    assert on_the_way[0] == on_the_way[1] > 2 * 512
    assert waiting == [("first", 1024, 0), ("second", 1024, 1024)]
