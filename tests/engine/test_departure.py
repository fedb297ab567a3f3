"""What is read before it is known where to goes out whole, in order, whenever that is told."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import pytest
from homesplit_engine.handoff.departure import Departure
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.wire.messages import HandoffSecret, HandoffTarget, Token

LAYERS, PROMPT = 3, 10
FIRST = Token(request_id="r", index=0, token_id=7)


class Heard:
    """Takes note of what a sender is told."""

    def __init__(self) -> None:
        self.upto = [0] * LAYERS
        self.from_token = 0
        self.closed_s: float | None = None
        self.given_up: list[tuple[str, bool]] = []

    def layer_done(self, outgoing: Any, layer: int, start: int, end: int) -> None:
        assert self.closed_s is None and outgoing.place == "here"
        assert start == (self.upto[layer] or self.from_token)
        self.upto[layer] = end

    def prefilled(self, outgoing: Any, first_token: Token, now_s: float) -> None:
        assert first_token is FIRST and self.closed_s is None
        self.closed_s = now_s

    def give_up(self, outgoing: Any, why: str) -> None:
        self.given_up.append((why, outgoing.wanted))


def target(cached: int) -> HandoffTarget:
    return HandoffTarget(
        reservation_id="r",
        box="B",
        endpoint="tcp://127.0.0.1:1",
        secret=HandoffSecret(password="", seal_key=bytes(32)),
        fingerprint="f",
        cached_tokens=cached,
    )


def departure(heard: Heard) -> Departure:
    return Departure(
        cast(Senders, heard), request_id="r", prompt_tokens=PROMPT, layers=LAYERS, deadline_s=9.0
    )


CHUNKS = [(2, 6), (6, PROMPT)]
"""Two tokens were cached here."""


@pytest.mark.parametrize("cached", [0, 2, 4, 9])
def test_whenever_it_is_told_where_each_layer_goes_once_in_order_and_then_the_end(
    cached: int,
) -> None:
    reading = [("layer", layer, *chunk) for chunk, layer in product(CHUNKS, range(LAYERS))]
    events: list[tuple[Any, ...]] = [("place",), *reading, ("read",)]
    for moment in range(len(events) + 1):
        heard = Heard()
        heard.from_token = cached
        one = departure(heard)
        # The second word is a duplicate, or comes too late.
        for event in [*events[:moment], ("target",), *events[moment:], ("target",)]:
            match event:
                case ("place",):
                    one.lies_at(cast(Any, "here"), 2)
                case ("layer", layer, start, end):
                    one.layer_done(layer, start, end)
                case ("read",):
                    one.prefilled(FIRST, 5.0)
                case _:
                    one.send_to(target(cached))
        assert heard.upto == [PROMPT] * LAYERS and heard.closed_s == 5.0


def test_only_what_a_sender_was_told_of_ends_by_that_sender() -> None:
    heard = Heard()
    one = departure(heard)
    assert not one.give_up("cancelled") and not heard.given_up
    one.send_to(target(0))
    assert one.give_up("it ended", wanted=False)
    assert one.give_up("cancelled")  # that is no news of one that nobody waits for
    assert heard.given_up == [("it ended", False), ("cancelled", False)]
