"""Users who give up: a miss of the server only where it was outside the targets already."""

from __future__ import annotations

import pytest
from homesplit_engine.words import Timeline, figures, left_inside

from homesplit.core.again import change
from homesplit.core.capacity import Trial, with_run
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.summary import summarise
from homesplit.core.window import window
from homesplit.core.workload import Targets

TARGETS = Targets(ttft_s=1.0, tpot_s=0.1)
PLAN = LoadPlan(workload="w", seed=1, seconds=10.0, closed=False, requests=())


def left(
    *token_s: float, after_s: float | None, ttft_s: float | None = 1.0, tokens: tuple[int, ...] = ()
) -> bool:
    line = Timeline(
        request_id="r",
        outcome="cancelled",
        start_s=0.0,
        token_s=token_s,
        end_s=after_s,
        arrival_tokens=tokens,
        output_tokens=sum(tokens) or None,
    )
    return left_inside(line, ttft_target_s=ttft_s, tpot_target_s=0.1)


@pytest.mark.parametrize(
    ("token_s", "after_s", "inside"),
    [
        ((), 0.5, True),
        ((), 1.5, False),
        ((), None, True),
        ((0.5,), 0.55, True),
        ((0.5,), 0.8, False),
        ((1.2,), 1.25, False),
        ((0.5, 0.55, 0.6), 0.65, True),
        ((0.5, 0.8, 1.1), 1.15, False),
        ((0.5, 0.55, 0.6), 2.0, False),
        ((0.5, 0.55, 0.6), None, True),
    ],
    ids=[
        "before a token was due",
        "after it was due",
        "nobody saw when",
        "soon after the first token",
        "the second token overdue",
        "the first token was late",
        "tokens came in time",
        "tokens came too slowly",
        "tokens stopped",
        "in time, nobody saw when",
    ],
)
def test_who_leaves_a_request_inside_both_targets_counts_neither_way(
    token_s: tuple[float, ...], after_s: float | None, inside: bool
) -> None:
    assert left(*token_s, after_s=after_s) is inside


def test_bundled_tokens_are_counted_one_by_one_until_the_user_left() -> None:
    assert left(0.5, 0.9, after_s=0.95, tokens=(4, 4))
    assert not left(0.5, 0.9, after_s=0.95)


def test_without_a_target_nobody_leaves_outside_it() -> None:
    assert left(after_s=50.0, ttft_s=None)


def log(
    number: int, *, arrival_s: tuple[float, ...], cancelled_s: float | None = None
) -> RequestLog:
    return RequestLog(
        id=number,
        request_id=str(number),
        class_="all",
        due_s=0.0,
        sent_s=0.0,
        outcome="completed" if cancelled_s is None else "cancelled",
        arrival_s=arrival_s,
        ended_s=cancelled_s if cancelled_s is not None else arrival_s[-1],
        prompt_tokens_asked=1,
        output_tokens_asked=2,
    )


SERVED = log(0, arrival_s=(0.5, 0.55))
SLOW = log(1, arrival_s=(2.0, 2.05))
IMPATIENT = log(2, arrival_s=(0.5,), cancelled_s=0.52)
DRIVEN_AWAY = log(3, arrival_s=(), cancelled_s=3.0)


def test_attainment_is_over_those_who_stayed_or_were_driven_away() -> None:
    found = summarise(
        PLAN, [SERVED, SLOW, IMPATIENT, DRIVEN_AWAY], TARGETS, warm_up=0.0, drain=0.0
    ).figures
    assert (found.offered, found.completed, found.cancelled, found.left) == (4, 2, 2, 1)
    assert (found.inside, found.judged, found.attainment) == (1, 3, 1 / 3)


def test_a_load_of_nobody_who_could_be_judged_has_no_attainment() -> None:
    lines = [Timeline(request_id="r", outcome="cancelled", start_s=0.0, token_s=(0.1,), end_s=0.11)]
    found = figures(lines, ttft_target_s=1.0, tpot_target_s=0.1, window_s=1.0)
    assert found.attainment is None and found.left == 1


def test_a_rate_is_not_called_too_much_for_users_who_gave_up_before_anything_was_late() -> None:
    run = Trial(rate_requests_per_s=1.0, offered=100, inside=70, completed=70, left=30)
    assert (run.judged, run.attainment, run.holds) == (70, 1.0, True)
    twice = with_run([run], run)[0]
    assert (twice.offered, twice.left, twice.judged, twice.runs) == (200, 60, 140, 2)
    assert "70 of 70 inside" in run.words and "30 given up before" in run.words


def test_a_repeated_run_is_held_against_the_former_by_the_requests_that_both_judged() -> None:
    then = [log(n, arrival_s=(0.5, 0.55)) for n in range(30)]
    now = [*then[:20], *(log(n, arrival_s=(0.5,), cancelled_s=0.52) for n in range(20, 30))]
    seen = window(10.0, 0.0, 0.0)
    found = change("run", [then], [now], TARGETS, seen_then=seen, seen_now=seen)
    assert (found.attainment_then, found.attainment_now) == (1.0, 1.0)
    assert found.low is not None and found.high is not None and found.low < 0.0 < found.high
