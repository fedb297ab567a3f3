"""A burst is queued, a queue that stands is not: a table over time."""

from __future__ import annotations

import pytest
from homesplit_engine.router.overload import CROWD, MOST_TARGETS, STANDS_TARGETS, Overload

LONG = STANDS_TARGETS


STEPS = [float(step) for step in range(int(LONG) + 1)]


def limits(
    queues: list[tuple[float, float]], alone_s: float = 0.1, target_s: float = 1.0
) -> list[float | None]:
    """The limit at each (time, seconds of work ahead)."""
    overload = Overload(target_s)
    return [overload.limit_s(ahead_s, alone_s, now_s) for now_s, ahead_s in queues]


def standing(until_s: float, ahead_s: float = 5.0) -> list[tuple[float, float]]:
    """The same queue, looked at every second."""
    return [(step, ahead_s) for step in STEPS if step <= until_s]


@pytest.mark.parametrize(
    ("queues", "last"),
    [
        (standing(LONG - 1), None),
        (standing(LONG), 1.0),
        ([*standing(LONG), (LONG + 1, 0.8)], 1.0),
        ([*standing(LONG), *((LONG + 1 + step / 10, 0.2) for step in range(99))], 1.0),
        ([*standing(LONG), *((LONG + 1 + step / 10, 0.2) for step in range(102))], None),
        ([*standing(4), (5, 0.9), *((6 + step, 5.0) for step in range(5))], None),
        ([*standing(LONG), (LONG + 1, 0.0)], None),
        ([*standing(LONG), (LONG + 9, 1.5)], None),
        ([(0, 1.5), (20, 1.5), (40, 1.5)], None),
    ],
    ids=[
        "a burst",
        "a standing queue",
        "near the target it still stands",
        "not short for long enough",
        "short for long enough",
        "bursts with a gap",
        "nobody is ahead any more",
        "all that was ahead must be done by now",
        "a few who ask now and then",
    ],
)
def test_the_target_is_the_limit_while_a_queue_stands(
    queues: list[tuple[float, float]], last: float | None
) -> None:
    assert limits(queues)[-1] == last


def test_where_even_a_lone_prompt_misses_the_target_nobody_is_refused_for_it() -> None:
    assert limits(standing(LONG), alone_s=0.6)[-1] is None


def test_without_a_target_there_is_no_such_limit() -> None:
    overload = Overload(None)
    assert [overload.limit_s(9.0, 0.1, now_s) for now_s in (0.0, 100.0)] == [None, None]


@pytest.mark.parametrize(
    ("own_s", "ahead_s", "until_s", "limit_s"),
    [
        (0.5, 0.8, 0.5 * LONG, 0.5),
        (0.5, 0.8, 0.5 * LONG - 1, None),
        (8.0, 5.0, LONG, 8.0),
        (8.0, 5.0, LONG - 1, None),
        (0.1, 5.0, LONG, None),
        (None, 5.0, LONG, 1.0),
        (None, 0.8, 3 * LONG, None),
    ],
    ids=[
        "a queue that is short for others stands for it",
        "it has not stood for long enough",
        "a longer one is its limit once a queue stands for others",
        "which has not stood for long enough",
        "no better alone",
        "the deployment's",
        "short for the deployment's",
    ],
)
def test_a_request_that_has_a_target_of_its_own_is_judged_by_that_one(
    own_s: float | None, ahead_s: float, until_s: float, limit_s: float | None
) -> None:
    overload = Overload(1.0)
    seen = [
        overload.limit_s(ahead_s, 0.1, step / 2, own_s=own_s)
        for step in range(int(2 * until_s) + 1)
    ]
    assert seen[-1] == limit_s


def test_every_watch_sees_every_newcomer() -> None:
    overload = Overload(1.0)
    for number, step in enumerate(range(int(2 * LONG))):
        overload.limit_s(5.0, 0.1, step / 2, own_s=(None, 0.5, 8.0)[number % 3])
    limits = [overload.limit_s(5.0, 0.1, LONG, own_s=own_s) for own_s in (None, 0.5, 8.0)]
    assert limits == [1.0, 0.5, 8.0]


def test_only_so_many_targets_are_watched_for_and_the_deployments_always() -> None:
    overload = Overload(1.0)
    for now_s, ahead_s in standing(LONG):
        for more in range(3 * MOST_TARGETS):
            assert overload.limit_s(ahead_s, 0.1, now_s, own_s=0.5 - more / 1000) in (
                None,
                0.5 - more / 1000,
            )
    assert len(overload._watches) == MOST_TARGETS  # pyright: ignore[reportPrivateUsage]
    assert overload.limit_s(5.0, 0.1, LONG) == 1.0


def test_without_a_deployments_target_a_requests_own_still_holds() -> None:
    overload = Overload(None)
    seen = [overload.limit_s(ahead_s, 0.1, now_s, own_s=1.0) for now_s, ahead_s in standing(LONG)]
    assert (seen[0], seen[-1]) == (None, 1.0)


@pytest.mark.parametrize(
    ("waiting", "ahead_s", "limit_s"),
    [(CROWD - 1, 5.0, None), (CROWD, 5.0, 1.0), (CROWD, 0.9, None)],
    ids=["a household", "a crowd", "a crowd that is quickly served"],
)
def test_more_waiting_than_a_home_has_people_is_an_overload_at_once(
    waiting: int, ahead_s: float, limit_s: float | None
) -> None:
    assert Overload(1.0).limit_s(ahead_s, 0.1, 0.0, waiting=waiting) == limit_s
