"""A burst is queued, a queue that stands is not: a table over time."""

from __future__ import annotations

import pytest
from homesplit_engine.router.overload import STANDS_TARGETS, Overload

LONG = STANDS_TARGETS


def limits(waits: list[tuple[float, float]], alone_s: float = 0.1) -> list[float | None]:
    """The limit at each (time, wait), for a target of one second."""
    overload = Overload(1.0)
    return [overload.limit_s(wait_s, alone_s, now_s) for now_s, wait_s in waits]


@pytest.mark.parametrize(
    ("waits", "last"),
    [
        ([(0, 5.0), (LONG - 1, 5.0)], None),
        ([(0, 5.0), (LONG, 5.0)], 1.0),
        ([(0, 5.0), (5, 0.9), (LONG, 5.0)], None),
        ([(0, 5.0), (LONG, 5.0), (LONG + 1, 0.8)], 1.0),
        ([(0, 5.0), (LONG, 5.0), (LONG + 1, 0.2), (2 * LONG, 0.2)], 1.0),
        ([(0, 5.0), (LONG, 5.0), (LONG + 1, 0.2), (2 * LONG + 1, 0.2)], None),
    ],
    ids=[
        "a burst",
        "a standing queue",
        "bursts with a gap",
        "near the target it still stands",
        "not short for long enough",
        "it is over",
    ],
)
def test_the_target_is_the_limit_while_a_queue_stands(
    waits: list[tuple[float, float]], last: float | None
) -> None:
    assert limits(waits)[-1] == last


def test_where_even_a_lone_prompt_misses_the_target_nobody_is_refused_for_it() -> None:
    assert limits([(0, 5.0), (LONG, 5.0)], alone_s=0.6)[-1] is None


def test_without_a_target_there_is_no_such_limit() -> None:
    overload = Overload(None)
    assert [overload.limit_s(9.0, 0.1, now_s) for now_s in (0.0, 100.0)] == [None, None]


def test_a_request_that_has_a_target_of_its_own_is_held_to_that_one() -> None:
    overload = Overload(1.0)
    overload.limit_s(5.0, 0.1, 0.0)
    assert overload.limit_s(5.0, 0.1, LONG, 8.0) == 8.0
    assert overload.limit_s(5.0, 0.1, LONG, 0.1) is None  # no better alone: nobody is refused
    assert overload.limit_s(5.0, 0.1, LONG) == 1.0
