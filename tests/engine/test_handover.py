"""Whether a hand-off is still worth waiting for: a table of small round numbers."""

from __future__ import annotations

import pytest
from homesplit_engine.router.handover import Handover, allowed_s

MB = 10**6


@pytest.mark.parametrize(
    ("expected_s", "read_s", "allowed"),
    [
        (None, None, None),
        (None, 1.0, 6.0),
        (0.5, None, 2.0),
        (3.0, None, 6.0),
        (0.5, 1.0, 3.0),
        (4.0, 1.0, 8.0),
        (40.0, 1.0, 10.0),
        (4.0, 10.0, 12.0),
    ],
    ids=[
        "nothing is known",
        "the link is not",
        "a fast link, and nobody has read a prompt yet",
        "a slow one",
        "no longer than a lost box would cost",
        "the link is known to need more",
        "far more than reading again costs",
        "reading again costs more than the link needs",
    ],
)
def test_a_hand_off_may_take_what_a_lost_box_would_cost_or_the_link_needs(
    expected_s: float | None, read_s: float | None, allowed: float | None
) -> None:
    assert allowed_s(expected_s, read_s, 2.0) == allowed


def seen(*steps: tuple[float, float]) -> Handover:
    handover = Handover(2.0)
    for now_s, left_mb in steps:
        handover.seen(int(left_mb * MB), now_s)
    return handover


@pytest.mark.parametrize(
    ("steps", "allowed", "why"),
    [
        ([], 3.0, None),
        ([(10.0, 8), (10.5, 8)], 3.0, None),
        ([(10.0, 8), (11.0, 4)], 3.0, None),
        ([(10.0, 8), (11.0, 7)], 3.0, "7 MB are left and 1 MB arrive a second"),
        ([(10.0, 8), (11.0, 7)], None, None),
        ([(9.0, 16), (10.0, 8), (10.5, 7.9), (11.0, 7.8)], 3.0, "too slow"),
        ([(9.0, 8), (12.0, 8)], None, "not a byte of it arrived for 2.0 s"),
        ([(9.0, 8), (12.0, 0)], 9.0, None),
        ([(10.0, 8), (10.5, 0), (13.0, 0)], 3.0, None),
        ([(8.0, 16), (9.0, 16), (10.05, 16)], 66.0, None),
        ([(10.0, 8), (10.2, 7.9), (11.3, 7.9)], 3.0, None),
    ],
    ids=[
        "nothing was told",
        "not watched for long enough",
        "in time",
        "too slow for the time that it has",
        "slow, and nobody knows how slow it may be",
        "it was fast once",
        "it stands still",
        "it is through",
        "it is through, and the commit is to come",
        "before the first token nothing was there to send",
        "it stands still, for less than a lost box would be waited for",
    ],
)
def test_what_would_end_too_late_or_stands_still_is_hopeless(
    steps: list[tuple[float, float]], allowed: float | None, why: str | None
) -> None:
    found = seen(*steps).hopeless(steps[-1][0] if steps else 99.0, 10.0, allowed)
    assert found is None if why is None else (found is not None and (why in found))


def test_the_rate_is_that_of_the_last_while_and_unknown_before() -> None:
    assert seen((10.0, 8), (10.5, 7)).bytes_per_s() is None
    assert seen((10.0, 8), (11.0, 7), (12.0, 5)).bytes_per_s() == 2 * MB
    assert seen((10.0, 8), (11.0, 9)).bytes_per_s() == 0.0
