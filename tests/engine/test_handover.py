"""Whether a hand-off is still worth waiting for: tables of small round numbers."""

from __future__ import annotations

import pytest
from homesplit_engine.router.handover import SLOW_SHARE, Handover, Way, allowed_s
from hypothesis import given
from hypothesis import strategies as st

MB = 10**6
DETECTION_S = 2.0


def way(
    link_mb_per_s: float | None = None,
    read_s: float | None = None,
    whole_mb: float | None = 8,
) -> Way:
    return Way(
        whole_bytes=None if whole_mb is None else int(whole_mb * MB),
        link_bytes_per_s=None if link_mb_per_s is None else link_mb_per_s * MB,
        read_s=read_s,
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
        (way(2, 1.0), 24, 15.0),
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
        "two more go before it",
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
    found = handover.look(
        way(whole_mb=0, read_s=allowed - DETECTION_S), steps[-1][0] if steps else 99
    )
    assert found is None if why is None else (found is not None and (why in found.why))


@pytest.mark.parametrize(
    ("room_s", "mb_per_s", "known_mb_per_s", "late_s"),
    [
        (12.0, 3.0, 4.0, 2.0),
        (12.0, 2.4, 5.0, None),
        (12.0, 3.0, None, 2.0),
        (10.2, 3.0, 4.0, None),
        (9.0, 3.0, 4.0, None),
    ],
    ids=[
        "with room from the first token on it would have been in time",
        "the link is slow as well",
        "the link was never measured",
        "it would have been late all the same",
        "room was kept while the prompt was read",
    ],
)
def test_what_came_late_is_the_room_where_the_hand_off_had_else_been_in_time(
    room_s: float, mb_per_s: float, known_mb_per_s: float | None, late_s: float | None
) -> None:
    """The first token came at 10; what arrives is told of from 12 on."""
    known = way(known_mb_per_s, read_s=2.0 - 8 / (known_mb_per_s or 1e9))
    handover = Handover(DETECTION_S)
    handover.first_token_came(10.0)
    handover.room_came(room_s)
    for now_s in (12.0, 13.0):
        handover.seen(int((8 - mb_per_s * (now_s - 12.0)) * MB), now_s)
    late = handover.look(known, 13.0)
    assert late is not None and late.room_s == late_s


@pytest.mark.parametrize(
    ("room_s", "late_s"), [(None, None), (9.0, None), (11.0, None), (11.8, pytest.approx(1.8))]
)
def test_a_commit_that_did_not_come_is_laid_to_the_room_where_most_of_the_time_went_to_it(
    room_s: float | None, late_s: object
) -> None:
    handover = Handover(DETECTION_S)
    handover.first_token_came(10.0)
    if room_s is not None:
        handover.room_came(room_s)
    late = handover.not_committed(12.0)
    assert late.why == "it was not committed within 2.0 s" and late.room_s == late_s


def test_the_rate_is_that_of_the_last_while_and_unknown_before() -> None:
    assert seen((10.0, 8), (10.5, 7)).bytes_per_s() is None
    assert seen((10.0, 8), (11.0, 7), (12.0, 5)).bytes_per_s() == 2 * MB
    assert seen((10.0, 8), (11.0, 9)).bytes_per_s() == 0.0


def test_until_the_first_token_nothing_is_kept_back_and_nothing_given_up() -> None:
    handover = Handover(DETECTION_S)
    handover.seen(8 * MB, 1.0)
    handover.seen(8 * MB, 9.0)
    assert handover.until_s(way(2, 1.0)) is None
    assert handover.look(way(2, 1.0), 9.0) is None and handover.kept_back_s(9.0) == 0.0


def test_what_it_may_take_only_grows_as_others_come_to_be_read_and_go() -> None:
    handover = seen((9.0, 8), (10.0, 8))
    untils = [handover.until_s(way(2, read_s)) for read_s in (1.0, 3.0, 1.0)]
    assert untils == [10 + 7.0, 10 + 9.0, 10 + 9.0]


def test_what_goes_before_it_counts_also_when_it_is_told_of_after_the_first_token() -> None:
    handover = Handover(DETECTION_S)
    handover.first_token_came(10.0)
    assert handover.until_s(way(2, 1.0)) == 10 + 7.0
    handover.seen(24 * MB, 10.5)
    assert handover.until_s(way(2, 1.0)) == 10 + 15.0


@pytest.mark.parametrize(
    ("mb_per_s", "known_mb_per_s", "read_s", "given_up_s"),
    [
        (4.0, 4.0, 0.5, None),
        (2.1, 4.0, 0.5, 11.0),
        (3.0, 4.0, 0.5, None),
        (1.9, 4.0, 0.5, 11.0),
        (1.9, 4.0, 9.0, None),
        (1.9, None, 0.5, 11.0),
        (1.9, 2.0, 0.5, None),
    ],
    ids=[
        "as fast as it is known to be",
        "half as fast: it would be through too late",
        "a little slower",
        "much slower than it was: from now on reading again is less to wait for",
        "much slower than it was, and reading again would take longer",
        "never measured",
        "known to be slow",
    ],
)
def test_several_that_share_a_link_are_given_up_while_reading_again_is_less_to_wait_for(
    mb_per_s: float, known_mb_per_s: float | None, read_s: float, given_up_s: float | None
) -> None:
    """The last of three of 4 MB each: its own link would need 3 s for all of them."""
    handover, known = Handover(DETECTION_S), way(known_mb_per_s, read_s, whole_mb=4)
    handover.first_token_came(10.0)
    for half_s in range(13):
        now_s = 10.0 + half_s / 2
        left_mb = max(0.0, 12 - mb_per_s * half_s / 2)
        handover.seen(int(left_mb * MB), now_s)
        if handover.look(known, now_s):
            assert now_s == given_up_s
            return
    assert given_up_s is None


def test_a_link_that_is_slow_for_a_moment_is_not_held_against_it_later() -> None:
    handover, known = Handover(DETECTION_S), way(4, 0.5, whole_mb=12)
    handover.first_token_came(10.0)
    told = [(10.0, 12.0), (10.5, 11.5), (11.0, 11.0)]
    for now_s, left_mb in told:
        handover.seen(int(left_mb * MB), now_s)
    handover.look(known, 11.0)
    slow = handover.until_s(known)
    for now_s, left_mb in [(11.5, 9.0), (12.0, 7.0)]:
        handover.seen(int(left_mb * MB), now_s)
    assert slow == 10.0 + DETECTION_S + 0.5
    assert handover.look(known, 12.0) is None and handover.until_s(known) == 10 + 3 + 2.5


@pytest.mark.parametrize(
    ("prompts", "known_mb_per_s", "carries", "given_up_s"),
    [
        (4, 2.5, 1.0, None),
        (8, 12.0, 1.0, None),
        (3, 2.0, 0.75, None),
        (8, 12.0, 0.4, DETECTION_S + 0.25),
        (4, 2.5, 0.0, DETECTION_S),
    ],
    ids=["slow", "fast", "not quite what it was", "less than half", "nothing"],
)
def test_of_prompts_that_were_read_in_one_step_none_is_given_up_unless_the_link_is_another(
    prompts: int, known_mb_per_s: float, carries: float, given_up_s: float | None
) -> None:
    """Each of 4 MB in 8 layers, which go over the link a layer of each after the other."""
    known = way(known_mb_per_s, 0.25, whole_mb=4)
    handovers = [Handover(DETECTION_S) for _ in range(prompts)]
    for place, handover in enumerate(handovers):
        handover.seen(4 * place * MB, -0.25)  # while they are read, as if one followed the other
        handover.first_token_came(0.0)
    for quarter in range(4 * 4 * prompts):
        now_s = quarter / 4
        for place, handover in enumerate(handovers):
            ends_mb = 4 * prompts - (prompts - 1 - place) * 4 / 8
            left_mb = max(0.0, ends_mb - known_mb_per_s * carries * now_s)
            handover.seen(int(left_mb * MB), now_s)
            late = left_mb and now_s >= (handover.until_s(known) or 0.0)
            if handover.look(known, now_s) or late:
                assert given_up_s is not None and now_s <= given_up_s
                return
    assert given_up_s is None


@given(
    known_mb_per_s=st.none() | st.floats(0.1, 100.0),
    read_s=st.floats(0.0, 20.0),
    left_mb=st.floats(0.5, 50.0),
    slow_from_s=st.floats(0.0, 20.0),
    slow=st.floats(0.0, 0.9),
    look_s=st.floats(0.05, 0.5),
)
def test_a_link_that_becomes_slow_costs_no_more_than_a_lost_box(
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
    left, now_s, ended_s, given_up = left_mb, 0.0, 0.0, False
    while not ended_s:
        until_s = handover.until_s(known)
        assert until_s is not None
        now_s += look_s
        left -= rate * (1.0 if now_s <= slow_from_s else slow) * look_s
        left_bytes = max(0, int(left * MB))
        handover.seen(left_bytes, now_s)
        if not left_bytes:
            ended_s = now_s
        elif handover.look(known, now_s) or now_s >= until_s:
            ended_s, given_up = min(now_s, until_s) + read_s, True
    own_s = left_mb / rate
    # A rate is known one look after it was watched for half a detection.
    assert ended_s <= own_s + DETECTION_S + read_s + 3 * look_s
    if known_mb_per_s and slow < SLOW_SHARE and ended_s > slow_from_s:
        # Counted from the fault on, with no time for the link itself.
        assert ended_s - slow_from_s <= DETECTION_S + read_s + 3 * look_s
    if known_mb_per_s and now_s <= slow_from_s:
        assert not given_up
