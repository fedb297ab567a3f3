"""What a run's energy costs, and the reason where that can't be said."""

from __future__ import annotations

from typing import Any

import pytest
from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.core.bench_result import (
    BenchResult,
    bench_document,
    bench_sentence,
    energy_document,
    energy_words,
)
from homesplit.core.compare_result import (
    ModeRuns,
    background_notes,
    mean_background,
    uneven_background,
)
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.load import LoadPlan
from homesplit.core.measured import CUT, RequestLog
from homesplit.core.served import Background, Energy, Timed, server_side
from homesplit.core.summary import summarise
from homesplit.core.workload import Arrivals, Targets, Workload
from tests.core.test_served import record


def result(
    joules: float | None, price: float | None, cores: dict[str, float] | None = None, **log: Any
) -> BenchResult:
    """One request of 10 tokens in 1 s, and what the boxes drew meanwhile."""
    side = server_side(Timed(records=(record(),)), tpot_target_s=None)
    assert side is not None
    given: dict[str, Any] = {
        "id": 0,
        "request_id": "run-1",
        "class_": "all",
        "due_s": 0.0,
        "sent_s": 0.0,
        "prompt_tokens_asked": 5,
        "output_tokens_asked": 10,
        "outcome": "completed",
        "arrival_s": tuple(0.1 * i for i in range(1, 11)),
        "arrival_tokens": (1,) * 10,
        "output_tokens": 10,
        "ended_s": 1.0,
    }
    logs = (RequestLog(**{**given, **log}),)
    nothing = LoadPlan(workload="one", seed=1, seconds=1.0, closed=False, requests=())
    return BenchResult(
        workload=Workload(
            name="one",
            classes=(),
            arrivals=Arrivals(rate_requests_per_s=1.0),
            targets=Targets(ttft_s=1.0, tpot_s=1.0),
        ),
        seconds=1.0,
        seed=1,
        salt=0,
        model="m",
        api="chat",
        summary=summarise(nothing, (), Targets()),
        server=replace(
            side,
            energy=Energy(
                joules=joules,
                why=None if joules is not None else "a: no meter",
                idle_why="no idle power",
            ),
            background={
                box: Background(mean_cores=seen, most_cores=seen)
                for box, seen in (cores or {}).items()
            },
        ),
        started_at="",
        logs=logs,
        price_per_kwh=price,
    )


@pytest.mark.parametrize(
    ("joules", "price", "cost", "why"),
    [
        (36_000.0, 0.5, 0.5, None),
        (36_000.0, None, None, "no price of a kilowatt-hour was given (--price-per-kwh)"),
        (None, 0.5, None, "a: no meter"),
    ],
)
def test_the_cost_of_a_thousand_good_tokens_is_that_of_their_energy(
    joules: float | None, price: float | None, cost: float | None, why: str | None
) -> None:
    # 10 good tokens at 36 kJ are 3.6 MJ, one kilowatt-hour, a thousand.
    found = energy_document([result(joules, price)])
    assert found["cost_per_1000_good_tokens"] == cost
    assert found["cost_why"] == why
    if joules is not None:
        assert found["joules_per_1000_good_tokens"] == 3.6e6
        assert found["goodput_requests_per_watt_hour"] == 0.1


def test_nothing_good_has_no_cost_and_that_is_the_reason() -> None:
    late = result(100.0, 0.5, arrival_s=tuple(5.0 + i for i in range(10)))
    found = energy_document([late])
    assert found["cost_per_1000_good_tokens"] is None
    assert found["cost_why"] == "no token was inside the targets"
    assert energy_words(found) == "100 J, idle included, and no token was inside the targets"


def test_energy_is_told_whole_and_above_idle_or_with_the_reason() -> None:
    plain = result(36.0, None)
    assert energy_words(energy_document([plain])) == (
        "3.6e+03 J for 1,000 good tokens with idle; above idle not known: no idle power"
    )
    assert plain.server is not None
    energy = Energy(joules=36.0, above_idle_joules=9.0)
    known = replace(plain, server=replace(plain.server, energy=energy))
    assert energy_words(energy_document([known])).endswith("; above idle 900 J")
    assert energy_words(energy_document([result(None, None)])) == "not measured (a: no meter)"


def test_the_document_of_a_run_holds_no_steps_and_says_how_its_window_is_cut() -> None:
    document = bench_document(result(1.0, None))
    assert document["window_rule"].startswith(
        "Requests due in the first 0.1 s (warm-up) and in the last 0.1 s (drain) are left out"
    )
    assert (document["warm_up_s"], document["drain_s"], document["offered_s"]) == (0.1, 0.1, 1.0)
    assert not {"logs", "timed", "summary"} & document.keys()


def runs(mode: str | None, *cores: dict[str, float]) -> ModeRuns:
    made = tuple(result(None, None, seen) for seen in cores)
    return ModeRuns(setting=None, runs=made, pooled=made[0].summary, url=mode)


def test_a_box_that_was_busier_beside_one_mode_than_another_is_named() -> None:
    modes = [runs("x", {"a": 0.0, "b": 0.1}, {"a": 0.2, "b": 0.1}), runs("y", {"a": 1.1, "b": 0.2})]
    assert mean_background(modes[0]) == {"a": 0.1, "b": 0.1}
    assert uneven_background(modes) == [
        "a was not equally free: other programs took 1.1 cores of it during other server y and "
        "0.1 during other server x"
    ]


def test_others_load_is_told_once_for_each_box_over_all_modes() -> None:
    modes = [
        replace(made, setting=setting)
        for setting, made in (
            (ModeSetting(), runs(None, {"a": 0.4, "b": 0.0}, {"a": 0.4, "b": 0.0})),
            (ModeSetting(mode="replica"), runs(None, {"a": 0.6, "b": 0.0})),
        )
    ]
    assert background_notes(modes) == ["a: other programs took 0.4 to 0.6 cores, by mode"]


def test_a_box_that_does_not_tell_its_others_is_told_once() -> None:
    run = result(None, None)
    assert run.server is not None
    silent = {"a": Background(mean_cores=None, most_cores=None, why="no /proc")}
    run = replace(run, server=replace(run.server, background=silent))
    mode = ModeRuns(setting=ModeSetting(), runs=(run, run), pooled=run.summary)
    assert background_notes([mode, mode]) == [
        "a: whether other programs ran beside is not known: no /proc"
    ]


@pytest.mark.parametrize(
    ("arrivals", "turns", "words"),
    [
        (Arrivals(rate_requests_per_s=2.0), 1, "At 2 requests/s of one"),
        (
            Arrivals(rate_requests_per_s=1.0, pattern="ramp", ramp_to_requests_per_s=10.0),
            1,
            "From 1 to 10 requests/s of one",
        ),
        (
            Arrivals(rate_requests_per_s=8.0, pattern="on_off", on_s=2.0, off_s=3.0),
            1,
            "At 8 requests/s for 2 s, none for 3 s in turn, of one",
        ),
        (Arrivals(rate_requests_per_s=1.0), 3, "At 1 conversation/s of 3 turns, of one"),
    ],
    ids=["steady", "ramp", "on and off", "conversations"],
)
def test_a_run_tells_the_rate_that_was_offered(arrivals: Arrivals, turns: int, words: str) -> None:
    given = result(None, None)
    run = replace(given, workload=replace(given.workload, arrivals=arrivals, turns=turns))
    assert bench_sentence(run).removeprefix(LOOPBACK_LABEL).lstrip(": ").startswith(words)


@pytest.mark.parametrize(
    ("cut", "told"), [(1, "the last answer was waited for"), (2, "the last 2 answers were waited")]
)
def test_a_run_that_was_stopped_in_its_last_wait_says_so(cut: int, told: str) -> None:
    run = result(None, None)
    (served,) = run.logs
    left = replace(served, outcome="cancelled", error=CUT)
    stopped = replace(run, stopped=True, logs=(served, *[left] * cut))
    assert f"stopped while {told}" in bench_sentence(stopped)
    early = replace(stopped, seconds=60.0)
    assert "stopped after 1 of 60 s, so only a part of the run" in bench_sentence(early)
