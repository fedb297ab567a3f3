"""The line of what goes on: how far it is, and the time left."""

from __future__ import annotations

from functools import reduce

import pytest

from homesplit.core import events
from homesplit.core.state import RunState, apply
from homesplit.view import road
from homesplit.view.spans import plain
from tests.tui import sample_run


def work(*told: events.Event, screen: str = "compare") -> str:
    return plain([road.work(reduce(apply, told, RunState()), 200, screen)])


def began(stage: str, sentence: str = "It began.") -> events.Event:
    return events.StageStarted(stage=stage, sentence=sentence)


LOAD = events.LoadStarted(workload="demo", rate_requests_per_s=1.0, seconds=20.0)


def after(seconds: float) -> events.Event:
    left_s = 20.0 - seconds
    return events.Progress(stage="bench", step="load", done=seconds, total=20.0, left_s=left_s)


def test_nothing_that_goes_on_is_no_line() -> None:
    assert work() == ""


def test_a_load_that_goes_on_until_it_is_stopped_has_no_time_left() -> None:
    told = work(began("bench"), LOAD, after(5.0), screen="monitor")
    assert "load" in told
    assert "left" not in told
    assert "%" not in told


def test_the_load_of_a_measurement_has() -> None:
    told = work(began("repeat"), began("bench"), LOAD, after(5.0), screen="monitor")
    assert "25 %" in told
    assert told.endswith("left")


def test_a_counted_step_shows_its_share_and_the_time_left() -> None:
    step = events.Progress(stage="probe", step="link", done=1.0, total=4.0, left_s=6.0)
    told = work(began("probe"), step, screen="machines")
    assert "25 %" in told
    assert told.endswith("6 s left")


@pytest.mark.parametrize("width", [60, 80, 300])
def test_the_time_left_is_seen_whole_also_beside_a_long_sentence(width: int) -> None:
    told = "smollm2-135m: 422 of 542 MB, 18 MB/s, the rest of the model's files come after it"
    step = events.Progress(
        stage="deploy", step="model", box="atlas", sentence=told, done=3.0, total=4.0, left_s=6.0
    )
    state = reduce(apply, [began("deploy"), step], RunState())
    seen = plain([road.work(state, width, "deploy")])
    assert seen.endswith("  6 s left")
    assert len(seen) <= width


def test_a_comparison_counts_the_loads_of_all_its_modes() -> None:
    told = [began("compare", "Round 1 of 1: replica."), *sample_run.compared()]
    runs = [event for event in told if isinstance(event, events.CompareRun)][:2]
    line = work(began("compare", "Round 1 of 1: replica."), LOAD, *runs, after(10.0))
    assert "62 % Round 1 of 1: replica." in line
    assert line.endswith("30 s left")


def test_a_comparison_whose_load_has_ended_tells_its_sentence() -> None:
    line = work(began("compare", "Comparing the texts."), LOAD, after(10.0), events.LoadStopped())
    assert line.strip() == "● compare Comparing the texts."


def test_a_load_that_is_waited_for_is_no_part_of_the_comparison() -> None:
    told = began("compare", "Waiting for the last answers of the load.")
    assert work(told, LOAD, after(10.0)).strip() == (
        "● compare Waiting for the last answers of the load."
    )


def test_while_workers_come_up_by_themselves_monitor_sends_nobody_to_deploy() -> None:
    def next_of(*told: events.Event) -> str:
        return road.next_step(reduce(apply, told, RunState()), "monitor")

    assert next_of() == "go to Deploy: nothing is running"
    assert [next_of(began(stage)) for stage in ("demo", "model")] == ["", ""]
