"""What a hand-off that was given up tells of its link, and for how long."""

from __future__ import annotations

import pytest
from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent
from homesplit_engine.router.rates import SLOW_S, Rates

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
