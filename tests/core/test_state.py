"""`apply` makes each screen's state from events, within bounds."""

from __future__ import annotations

from functools import reduce

from homesplit_engine.records import ModeSetting, ModeSwitch, StepEvent

from homesplit.core import engine_state, events, state
from homesplit.core.choices import Choices, toggled
from homesplit.core.machine import FoundBox
from homesplit.core.state import RunState, apply
from tests.tui import sample_run


def after(*told: events.Event) -> RunState:
    return reduce(apply, told, RunState())


def step(number: int) -> events.StepSeen:
    event = StepEvent(box="a", step=number, start_s=float(number), end_s=number + 1.0)
    return events.StepSeen(event=event, offset_s=10.0)


def test_a_day_of_steps_takes_no_more_room_than_the_ring() -> None:
    seen = after(*(step(n) for n in range(state.MAX_STEPS + 50)))
    assert len(seen.engine.steps) == state.MAX_STEPS
    assert seen.engine.steps[-1].event.step == state.MAX_STEPS + 49


def test_the_newest_moment_is_on_the_routers_clock() -> None:
    assert after(step(3)).engine.latest_s == 14.0


def test_a_box_seen_again_replaces_itself_and_one_that_is_gone_is_gone() -> None:
    box, better = FoundBox(name="a"), FoundBox(name="a", trusted=True)
    seen = after(events.BoxFound(box=box), events.BoxFound(box=better))
    assert seen.boxes == (better,)
    assert apply(seen, events.BoxGone(name="a")).boxes == ()


def test_a_failed_stage_keeps_its_failure_and_a_fresh_start_forgets_it() -> None:
    failed = after(events.StageFailed(stage="probe", what="no answer", where="a"))
    assert failed.stage("probe").status == "failed"
    assert failed.failures[-1].where == "a"
    again = apply(failed, events.StageStarted(stage="probe", sentence="Measuring."))
    assert again.stage("probe").failure is None


def test_modes_already_compared_stay_when_the_comparison_goes_on() -> None:
    told = [*sample_run.compared(), events.StageStarted(stage="compare", sentence="Texts.")]
    assert len(after(*told).compared) == 4
    ended = [*told, *sample_run.verdict(), events.StageStarted(stage="compare", sentence="Again.")]
    assert after(*ended).compared == ()


def test_progress_of_the_same_step_replaces_itself() -> None:
    told = [
        events.Progress(stage="deploy", step="copy", box="a", done=float(n), total=9.0)
        for n in range(3)
    ]
    assert [p.done for p in after(*told).stage("deploy").progress] == [2.0]


def test_a_mode_switch_changes_the_setting_in_force() -> None:
    switch = ModeSwitch(at_s=5.0, setting=ModeSetting(mode="split"), took_s=0.001)
    seen = after(events.ModeSwitched(switch=switch), events.ModeSwitched(switch=switch))
    assert seen.engine.setting == ModeSetting(mode="split")
    assert len(seen.engine.switches) == 1, "the desk and the router both tell the same switch"


def test_a_third_box_replaces_the_older_of_the_two() -> None:
    assert toggled(Choices(boxes=("a", "b")), "c").boxes == ("b", "c")
    assert toggled(Choices(boxes=("a", "b")), "a").boxes == ("b",)


def test_events_written_and_read_back_make_the_same_state() -> None:
    told = sample_run.whole_run()
    again = [events.from_line(events.to_line(event)) for event in told]
    assert reduce(apply, again, RunState()) == reduce(apply, told, RunState())


def test_events_applied_together_make_the_state_that_they_make_one_by_one() -> None:
    told = sample_run.whole_run()
    one_by_one = reduce(apply, told, RunState())
    assert state.apply_all(RunState(), told) == one_by_one
    for cut in (1, 7, 100, 150):
        first = state.apply_all(RunState(), told[:cut])
        assert state.apply_all(first, told[cut:]) == one_by_one


def test_a_minute_of_a_hundred_hand_offs_a_second_is_kept_whole() -> None:
    assert engine_state.MAX_TRANSFERS >= 60 * 100
    assert engine_state.MAX_REQUESTS >= 60 * 100
