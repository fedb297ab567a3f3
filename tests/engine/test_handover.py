"""Whether a hand-off is still worth waiting for: tables of small round numbers."""

from __future__ import annotations

import pytest
from homesplit_engine.router.handover import Handover, Way, allowed_s
from hypothesis import given
from hypothesis import strategies as st

MB = 10**6
DETECTION_S = 2.0


def way(
    link_mb_per_s: float | None = None,
    read_s: float | None = None,
    whole_mb: float | None = 8,
    sharing: int = 1,
) -> Way:
    return Way(
        whole_bytes=None if whole_mb is None else int(whole_mb * MB),
        link_bytes_per_s=None if link_mb_per_s is None else link_mb_per_s * MB,
        read_s=read_s,
        sharing=sharing,
    )


@pytest.mark.parametrize(
    ("known", "left_mb", "allowed"),
    [
        (way(), 8, 2.0),
        (way(read_s=1.0), 8, 3.0),
        (way(16), 8, 2.5),
        (way(16, 1.0), 8, 3.5),
        (way(2, 1.0), 8, 7.0),
        (way(2, 1.0), 4, 5.0),
        (way(2, 1.0), 0, 3.0),
        (way(2, 1.0), None, 7.0),
        (way(2, 1.0, whole_mb=None), None, 3.0),
        (way(0.2, 1.0), 8, 43.0),
        (way(2, 1.0, sharing=3), 8, 17.0),
    ],
    ids=[
        "nothing is known: as long as a lost box is waited for",
        "the link is not known: no longer than a lost box would cost",
        "nobody has read a prompt yet",
        "a fast link",
        "a slow one",
        "half of it went while the prompt was read",
        "all of it did",
        "nobody told what is left",
        "nor what the box holds",
        "a link known to be slow is no fault",
        "three share it",
    ],
)
def test_a_hand_off_may_take_what_its_link_needs_and_what_a_lost_box_would_cost(
    known: Way, left_mb: float | None, allowed: float
) -> None:
    left = None if left_mb is None else int(left_mb * MB)
    assert allowed_s(known, left, DETECTION_S) == allowed


def seen(*steps: tuple[float, float], first_token_s: float = 10.0) -> Handover:
    handover = Handover(DETECTION_S)
    came = False
    for now_s, left_mb in steps:
        if now_s >= first_token_s and not came:
            came = True
            handover.first_token_came(first_token_s)
        handover.seen(int(left_mb * MB), now_s)
    if not came:
        handover.first_token_came(first_token_s)
    return handover


@pytest.mark.parametrize(
    ("steps", "allowed", "why"),
    [
        ([], 3.0, None),
        ([(10.0, 8), (10.5, 8)], 3.0, None),
        ([(10.0, 8), (11.0, 4)], 3.0, None),
        ([(10.0, 8), (11.0, 7)], 3.0, "7 MB are left and 1 MB arrive a second"),
        ([(9.0, 16), (10.0, 8), (10.5, 7.9), (11.0, 7.8)], 3.0, "too slow"),
        ([(9.0, 8), (12.0, 8)], 99.0, "not a byte of it arrived for 2.0 s"),
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
        "it was fast once",
        "it stands still",
        "it is through",
        "it is through, and the commit is to come",
        "before the first token nothing was there to send",
        "it stands still, for less than a lost box would be waited for",
    ],
)
def test_what_would_end_too_late_or_stands_still_is_hopeless(
    steps: list[tuple[float, float]], allowed: float, why: str | None
) -> None:
    handover = seen(*steps)
    handover.until_s(way(whole_mb=0, read_s=allowed - DETECTION_S))
    found = handover.hopeless(steps[-1][0] if steps else 99.0)
    assert found is None if why is None else (found is not None and (why in found))


def test_the_rate_is_that_of_the_last_while_and_unknown_before() -> None:
    assert seen((10.0, 8), (10.5, 7)).bytes_per_s() is None
    assert seen((10.0, 8), (11.0, 7), (12.0, 5)).bytes_per_s() == 2 * MB
    assert seen((10.0, 8), (11.0, 9)).bytes_per_s() == 0.0


def test_until_the_first_token_nothing_is_kept_back_and_nothing_given_up() -> None:
    handover = Handover(DETECTION_S)
    handover.seen(8 * MB, 1.0)
    handover.seen(8 * MB, 9.0)
    assert handover.until_s(way(2, 1.0)) is None
    assert handover.hopeless(9.0) is None and handover.kept_back_s(9.0) == 0.0


def test_what_it_may_take_only_grows_as_others_come_and_go() -> None:
    handover = seen((9.0, 8), (10.0, 8))
    untils = [handover.until_s(way(2, 1.0, sharing=sharing)) for sharing in (1, 3, 1)]
    assert untils == [10 + 7.0, 10 + 17.0, 10 + 17.0]


@given(
    known_mb_per_s=st.none() | st.floats(0.1, 100.0),
    read_s=st.floats(0.0, 20.0),
    left_mb=st.floats(0.5, 50.0),
    slow_from_s=st.floats(0.0, 20.0),
    slow=st.floats(0.0, 0.9),
    look_s=st.floats(0.05, 0.5),
)
def test_a_link_that_becomes_slow_costs_no_more_than_a_lost_box_beside_its_own_time(
    known_mb_per_s: float | None,
    read_s: float,
    left_mb: float,
    slow_from_s: float,
    slow: float,
    look_s: float,
) -> None:
    """Whatever the rate does and whenever: the time without a token, reading again included."""
    rate = known_mb_per_s or 1.0
    known = way(known_mb_per_s, read_s, whole_mb=left_mb)
    handover = Handover(DETECTION_S)
    handover.seen(int(left_mb * MB), 0.0)
    handover.first_token_came(0.0)
    until_s = handover.until_s(known)
    assert until_s is not None
    left, now_s, ended_s = left_mb, 0.0, 0.0
    while not ended_s:
        now_s += look_s
        left -= rate * (1.0 if now_s <= slow_from_s else slow) * look_s
        left_bytes = max(0, int(left * MB))
        handover.seen(left_bytes, now_s)
        if not left_bytes:
            ended_s = now_s
        elif handover.hopeless(now_s) or now_s >= until_s:
            ended_s = min(now_s, until_s) + read_s
    own_s = left_mb / rate
    # A rate is known one look after it was watched for half a detection.
    assert ended_s <= own_s + DETECTION_S + read_s + 3 * look_s
