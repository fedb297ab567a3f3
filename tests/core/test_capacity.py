"""The search for capacity against servers whose capacity is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homesplit.core.capacity import (
    CLOSE,
    LONGEST_RUN_S,
    MOST_EMPTY,
    MOST_TRIES,
    Trial,
    capacity_of,
    capacity_sentence,
    next_rate,
    run_s,
    wilson,
    with_run,
)
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.prng import Prng


def trial(rate: float, offered: int, inside: int, completed: int, left: int = 0) -> Trial:
    return Trial(
        rate_requests_per_s=rate, offered=offered, inside=inside, completed=completed, left=left
    )


def search(share: Callable[[float], float], first: float, requests: int = 200) -> list[Trial]:
    """Search on a server that serves this share of a rate inside the targets, by chance."""
    rng, trials = Prng(1), tuple[Trial, ...]()
    while (rate := next_rate(trials, first)) is not None:
        inside = sum(rng.uniform() < share(rate) for _ in range(requests))
        trials = with_run(trials, trial(rate, requests, inside, requests))
    return list(trials)


@pytest.mark.parametrize("first", [0.01, 1.0, 7.9, 8.1, 500.0])
def test_a_sharp_edge_is_found_from_wherever_the_search_starts(first: float) -> None:
    found = capacity_of(search(lambda rate: 1.0 if rate <= 8.0 else 0.3, first))
    low, high = found.low, found.high
    assert low is not None and high is not None
    assert low <= 8.0 < high and high <= low * CLOSE
    assert found.capacity_requests_per_s == low and found.why is None


def test_a_soft_edge_is_never_put_above_the_rate_at_which_nine_of_ten_are_inside() -> None:
    found = capacity_of(search(lambda rate: max(0.0, min(1.0, 1.4 - rate / 20.0)), 1.0))
    assert found.low is not None and 6.0 <= found.low <= 10.0


def test_an_unclear_rate_is_run_again_and_then_counts_as_not_shown() -> None:
    trials = search(lambda _: 0.9, 1.0, requests=60)
    assert max(each.runs for each in trials) == MOST_TRIES


def test_a_server_that_serves_nothing_has_no_capacity_and_says_so() -> None:
    found = capacity_of(search(lambda _: 0.0, 4.0))
    assert found.capacity_requests_per_s is None
    assert "no rate down to" in capacity_sentence(found)


def test_a_server_that_refuses_everything_gives_no_data_and_ends_the_search_at_once() -> None:
    trials = tuple[Trial, ...]()
    while (rate := next_rate(trials, 4.0)) is not None:
        trials = with_run(trials, trial(rate, 100, 0, 0))
    assert len(trials) == MOST_EMPTY
    found = capacity_of(trials)
    assert found.capacity_requests_per_s is None
    assert "no data" in capacity_sentence(found)


def test_a_rate_so_low_that_a_run_would_take_hours_is_not_tried() -> None:
    trials = search(lambda _: 0.0, 1.0)
    assert max(run_s(each.rate_requests_per_s) for each in trials) <= LONGEST_RUN_S


def test_the_capacity_of_one_machine_is_labelled() -> None:
    trials = search(lambda _: 1.0, 1.0)
    assert LOOPBACK_LABEL in capacity_sentence(capacity_of(trials, loopback=True))
    assert LOOPBACK_LABEL not in capacity_sentence(capacity_of(trials, loopback=False))


def test_a_server_that_takes_everything_has_no_upper_end() -> None:
    found = capacity_of(search(lambda _: 1.0, 1.0))
    assert found.low is not None and found.high is None
    assert found.why is not None and "every rate up to" in found.why


def test_wilsons_interval_is_the_published_one() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_few_requests_without_a_miss_do_not_show_that_a_rate_holds() -> None:
    assert Trial(rate_requests_per_s=1.0, offered=20, inside=20).holds is None
    assert Trial(rate_requests_per_s=1.0, offered=60, inside=60).holds is True
    assert Trial(rate_requests_per_s=1.0, offered=60, inside=30).holds is False
