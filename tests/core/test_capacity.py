"""The search for capacity against servers whose capacity is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from homesplit_engine.words import Timeline
from msgspec.structs import replace

from homesplit.core.capacity import (
    CLOSE,
    LONGEST_RUN_S,
    MOST_EMPTY,
    MOST_LATE,
    MOST_TRIES,
    Trial,
    capacity_of,
    capacity_sentence,
    next_rate,
    run_s,
    unended,
    wilson,
    with_run,
)
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.lateness import Lateness, could_turn
from homesplit.core.prng import Prng
from homesplit.core.workload import Targets


def trial(rate: float, offered: int, inside: int, completed: int, left: int = 0) -> Trial:
    return Trial(
        rate_requests_per_s=rate, offered=offered, inside=inside, completed=completed, left=left
    )


def search(
    share: Callable[[float], float],
    first: float,
    requests: int = 200,
    late: Callable[[float, int], bool] = lambda rate, number: False,
) -> list[Trial]:
    """Search on a server that serves this share of a rate inside the targets, by chance.

    `late` says at which rate, and in which run, the load generator itself can't keep up.
    """
    rng, trials, number = Prng(1), tuple[Trial, ...](), 0
    while (rate := next_rate(trials, first)) is not None:
        inside = sum(rng.uniform() < share(rate) for _ in range(requests))
        made = trial(rate, requests, inside, requests)
        if late(rate, number):
            made = replace(made, late_runs=1, late_s=0.43)
        trials, number = with_run(trials, made), number + 1
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


@pytest.mark.parametrize("server", [1000.0, 130.0])
def test_where_the_load_generator_is_the_limit_that_is_said_and_no_capacity_given(
    server: float,
) -> None:
    # The server is as slow as can be just where the generator is late.
    trials = search(
        lambda rate: 1.0 if rate <= server else 0.0, 30.0, late=lambda rate, _: rate > 100.0
    )
    found = capacity_of(trials, within_s=None)
    assert found.capacity_requests_per_s is None and found.high is None
    limit = found.generator_limit_requests_per_s
    assert found.low is not None and limit is not None
    assert found.low <= 100.0 < limit <= found.low * CLOSE
    told = capacity_sentence(found)
    assert told.startswith("Capacity at least ") and "the load generator, not the server" in told
    assert "it was itself 0.43 s late (p99)" in told
    beyond = [each for each in trials if each.rate_requests_per_s > 100.0]
    assert {(each.runs, each.holds) for each in beyond} == {(MOST_LATE, None)}
    assert all("not judged, the load generator" in each.words for each in beyond)


def test_a_server_that_is_slower_than_the_load_generator_has_its_capacity() -> None:
    slow = search(lambda rate: 1.0 if rate <= 8.0 else 0.3, 1.0, late=lambda rate, _: rate > 9.0)
    found = capacity_of(slow)
    assert found.generator_limit_requests_per_s is None and found.why is None
    assert found.low is not None and found.low <= 8.0


def test_a_run_in_which_the_generator_was_late_once_is_made_again_and_counts_nowhere() -> None:
    trials = search(lambda _: 1.0, 1.0, late=lambda _, number: number == 0)
    assert trials[0].runs == 2 and trials[0].holds and trials[0].offered == 200
    assert capacity_of(trials).generator_limit_requests_per_s is None


def line(number: int, ttft_s: float, tpot_s: float) -> Timeline:
    """A completed answer of eleven tokens."""
    moments = (ttft_s, *(ttft_s + tpot_s * n for n in range(1, 11)))
    return Timeline(
        request_id=f"{number}",
        class_name="c",
        start_s=0.0,
        outcome="completed",
        token_s=moments,
    )


def test_an_unclear_rate_at_which_the_generator_was_late_ends_at_the_generators_limit() -> None:
    unclear = trial(10.0, 60, 53, 60)
    late = replace(unclear, late_runs=1, late_s=0.43)
    trials = with_run((trial(9.5, 100, 100, 100),), unclear)
    for _ in range(MOST_LATE):
        assert next_rate(trials, 9.5) == 10.0
        trials = with_run(trials, late)
    assert trials[-1].runs == 3 and trials[-1].offered == 60
    assert "not clear yet, the load generator itself was 0.43 s late" in trials[-1].words
    assert next_rate(trials, 9.5) is None
    assert capacity_of(trials).generator_limit_requests_per_s == 10.0


def test_a_rate_that_the_server_did_not_hold_stays_known_beside_the_generators_limit() -> None:
    trials = [trial(9.5, 100, 100, 100), trial(20.0, 100, 0, 100)]
    late = replace(trial(10.0, 100, 100, 100), runs=MOST_LATE, late_runs=MOST_LATE, late_s=0.43)
    found = capacity_of([*trials, late])
    assert (found.low, found.generator_limit_requests_per_s, found.high) == (9.5, 10.0, 20.0)
    assert found.capacity_requests_per_s is None
    assert "20 requests/s was too much" in capacity_sentence(found)
    assert unended([*trials, late]).high == 20.0
    # Of a rate that only the generator did not keep up with nothing is said of the server.
    assert capacity_of([trials[0], late]).high is None


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "woke_s", "sent_s", "turned"),
    [
        # Far inside: no such lateness would have put it outside.
        (0.5, 0.05, 0.1, 0.1, False),
        # Four times awake until the first token: 0.7 s and 4 times 0.1 s are more than 1 s.
        (0.7, 0.05, 0.1, 0.1, True),
        # Ten gaps: a moment noted 0.3 s late moves their mean by 0.03 s.
        (0.1, 0.08, 0.2, 0.1, False),
        (0.1, 0.08, 0.21, 0.1, True),
        # Far outside, and not by more than ten times its lateness.
        (9.0, 0.05, 0.43, 0.1, False),
        (1.9, 0.05, 0.1, 0.1, True),
        (0.1, 0.3, 0.1, 0.1, False),
        (0.1, 0.3, 0.21, 0.1, True),
        # A tenth of the run late with sending: it was another rate.
        (0.5, 0.05, 0.0, 1.1, True),
    ],
)
def test_lateness_counts_where_it_alone_could_have_turned_what_a_run_shows(
    ttft_s: float, tpot_s: float, woke_s: float, sent_s: float, turned: bool
) -> None:
    inside = 60 if ttft_s <= 1.0 and tpot_s <= 0.1 else 0
    lines = [line(number, ttft_s, tpot_s) for number in range(60)]
    late = Lateness(woke_s=woke_s, sent_s=sent_s)
    targets = Targets(ttft_s=1.0, tpot_s=0.1)
    made = trial(10.0, 60, inside, 60)
    assert could_turn(made, lines, targets, late, seconds=10.0) is turned
