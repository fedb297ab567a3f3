"""What of a run counts: warm-up and drain left out by rule, and what rates are over."""

from __future__ import annotations

import pytest

from homesplit.core.bench_result import figures_document
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.summary import RunSummary, summarise
from homesplit.core.window import window
from homesplit.core.workload import Targets

TARGETS = Targets(ttft_s=1.0, tpot_s=None)


def log(due_s: int, *, after_s: float = 0.5, outcome: str = "completed") -> RequestLog:
    """A request of one token that came `after_s` after it was sent."""
    done = outcome == "completed"
    return RequestLog(
        id=due_s,
        request_id=str(due_s),
        class_="all",
        due_s=due_s,
        sent_s=due_s,
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        arrival_s=(due_s + after_s,) if done else (),
        ended_s=due_s + after_s,
        prompt_tokens_asked=1,
        output_tokens_asked=1,
        error=None if done else "it broke",
    )


def run(logs: list[RequestLog], *, seconds: float = 100.0, **edges: float) -> RunSummary:
    plan = LoadPlan(workload="w", seed=1, seconds=seconds, closed=False, requests=())
    return summarise(plan, logs, TARGETS, **edges)


@pytest.mark.parametrize(
    ("seconds", "edge_s"), [(100.0, 5.0), (50.0, 5.0), (20.0, 2.0), (1.0, 0.1)]
)
def test_a_tenth_at_each_end_is_left_out_and_never_more_than_5_s(
    seconds: float, edge_s: float
) -> None:
    seen = window(seconds)
    assert (seen.warm_up_s, seen.drain_s) == (edge_s, edge_s)
    assert seen.counts(edge_s) and not seen.counts(edge_s / 2)
    assert not seen.counts(seconds - edge_s) and seen.counts(seconds - 1.01 * edge_s)


def test_requests_of_warm_up_and_drain_are_in_no_figure() -> None:
    # One a second; those of both ends are refused or fail, the 90 between are all good.
    ends = [log(n, outcome="failed") for n in (*range(5), *range(95, 100))]
    found = run([*ends, *(log(n) for n in range(5, 95))])
    figures = found.figures
    assert (figures.offered, figures.completed, figures.failed) == (90, 90, 0)
    assert (figures.inside, figures.judged, figures.attainment) == (90, 90, 1.0)
    assert (figures.window_s, figures.goodput_requests_per_s) == (90.0, 1.0)
    assert figures.throughput_tokens_per_s == 1.0 and found.left_out == 10
    assert figures_document(found)["window_rule"] == (
        "Requests due in the first 5 s (warm-up) and in the last 5 s (drain) are left out; every "
        "answer is waited for. Rates are over the time in which counted requests were due, and "
        "what their answers needed beyond the end of the offering."
    )


def test_nothing_is_left_out_where_that_is_asked_for() -> None:
    found = run([log(n) for n in range(100)], warm_up=0.0, drain=0.0)
    assert (found.left_out, found.figures.offered) == (0, 100)
    # The last answer ends half a second before the offering does.
    assert (found.figures.window_s, found.figures.goodput_requests_per_s) == (100.0, 1.0)
    assert found.window.rule.startswith("All requests count; ")


@pytest.mark.parametrize(
    ("after_s", "window_s", "good"),
    [(0.5, 90.0, 1.0), (5.9, 90.0, 1.0), (16.0, 100.0, 0.9), (96.0, 180.0, 0.5)],
    ids=["quick", "by the end of the offering", "10 s later", "far behind"],
)
def test_what_counted_answers_need_beyond_the_offering_prolongs_the_window(
    after_s: float, window_s: float, good: float
) -> None:
    patient = Targets(ttft_s=None, tpot_s=None)
    plan = LoadPlan(workload="w", seed=1, seconds=100.0, closed=False, requests=())
    logs = [log(n, after_s=after_s) for n in range(100)]
    figures = summarise(plan, logs, patient).figures
    assert (figures.window_s, figures.goodput_requests_per_s) == (window_s, good)


def test_answers_that_ended_when_the_load_was_falling_are_told() -> None:
    few = run([log(n, after_s=8.0) for n in range(100)])
    many = run([log(n, after_s=20.0) for n in range(100)])
    assert not any("after the offering" in note for note in few.notes)
    assert any(note.startswith("14 of 90 answers ended after the offering") for note in many.notes)


def test_a_run_too_short_for_its_edges_says_so() -> None:
    found = run([log(n) for n in range(3)], seconds=10.0, warm_up=5.0, drain=6.0)
    assert found.no_data is not None and "--warm-up 0 --drain 0" in found.no_data
    assert found.figures.goodput_requests_per_s is None


def test_edges_longer_than_the_run_leave_a_window_of_nothing_and_not_of_less() -> None:
    assert window(30.0, 40.0, 0.0).length_s(30.0) == 0.0
    assert window(30.0, 10.0, 5.0).length_s(30.0) == 15.0
