"""What the controller does by itself: the newest question is the one that is answered."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.records import StepEvent
from msgspec.structs import replace

from homesplit.controller import Controller, Served
from homesplit.controller.comparing import compared_seconds
from homesplit.controller.runner import MOST_WAITING
from homesplit.core import events
from homesplit.core.alone import Alone
from homesplit.core.brought import Brought
from homesplit.core.choices import Choices, names_targets
from homesplit.core.compare_result import LEAST_PAIRS
from homesplit.core.plan import Plan, Suited
from homesplit.core.plan_map import PlanMap
from homesplit.core.state import RunState, apply
from homesplit.core.window import window
from homesplit.core.workload import Arrivals, Targets
from homesplit.errors import HomesplitError
from homesplit.io import profiles
from homesplit.io.paths import Paths
from homesplit.replay import LONGEST_GAP_S, Replay
from homesplit.stages.context import AskNobody, Context
from homesplit.stages.notebook import list_entries
from homesplit.stages.plan import PlanQuestion
from homesplit.view.machines import moment
from tests.engine.router_kit import until
from tests.io.fake_openai import Manners, fake_server
from tests.tui import sample_run


class SlowAdviser:
    """Stands in for the process; while the first question is open another one is asked."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.asked: list[tuple[str, int | None]] = []

    async def plan(self, question: PlanQuestion) -> Plan:
        self.asked.append(("flips" if question.flips else "plan", question.prompt_tokens))
        if len(self.asked) == 1:
            choices = self._controller.state.choices
            self._controller.choose(replace(choices, prompt_tokens=1024))
            self._controller.make_plan()
        return replace(sample_run.plan(), workload=f"{question.prompt_tokens} in")

    async def map(self, question: PlanQuestion, other: str) -> PlanMap | None:
        self.asked.append((other, question.prompt_tokens))
        return sample_run.plan_map(cells=False)

    async def cell(self, question: PlanQuestion, other: str, cell: tuple[int, int]) -> str | None:
        return "split" if cell[0] else "replica"

    async def close(self) -> None:
        """Nothing to end."""


def advised() -> tuple[Controller, SlowAdviser]:
    controller: Any = Controller()
    for event in sample_run.machines():
        controller.emit(event)
    controller._adviser = SlowAdviser(controller)
    return controller, controller._adviser


async def test_the_advice_that_is_deployed_is_an_entry_and_each_turn_of_a_knob_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d")
    controller: Any = Controller(paths=paths)
    for event in sample_run.machines():
        controller.emit(event)
    controller._adviser = SlowAdviser(controller)

    async def up(*_: object) -> None:
        raise HomesplitError("no box is there")

    monkeypatch.setattr("homesplit.stages.deploy.up", up)
    controller.make_plan()
    await controller.ended("plan")
    ctx = Context(paths=paths)
    assert list_entries(ctx) == ()
    controller.deploy()
    await controller.ended("deploy")
    (entry,) = list_entries(ctx)
    assert entry.kind == "plan"
    assert entry.sentence == controller.state.plan.recommendation.sentence


async def test_a_question_turned_while_it_is_answered_is_answered_anew() -> None:
    controller, adviser = advised()
    controller.make_plan()
    await controller.ended("plan")
    assert adviser.asked[0] == ("plan", 512)
    assert adviser.asked[1:] == [("plan", 1024), ("load", 1024), ("flips", 1024)]
    assert controller.state.plan is not None
    assert controller.state.plan.workload == "1024 in"


async def test_the_map_fills_cell_by_cell_and_turning_it_asks_for_no_new_advice() -> None:
    controller, adviser = advised()
    controller.make_plan()
    await controller.ended("plan")
    shown = controller.state.plan_map
    assert shown is not None
    assert {mode for row in shown.cells for mode in row} == {"split", "replica"}
    adviser.asked.clear()
    controller.turn_map()
    await controller.ended("plan")
    assert adviser.asked == [("link", 1024)]


async def test_the_targets_that_fit_are_taken_from_the_plan_and_asked_with() -> None:
    controller, adviser = advised()
    controller.take_suited()
    assert adviser.asked == []
    offer = Suited(
        box="atlas",
        ttft_s=3.0,
        tpot_s=0.2,
        rate_requests_per_s=0.1,
        attainment=0.97,
        sentence="",
    )
    controller.emit(events.PlanMade(plan=replace(sample_run.plan(), suited=offer)))
    controller.take_suited()
    await controller.ended("plan")
    assert controller.state.choices.targets == Targets(ttft_s=3.0, tpot_s=0.2)
    assert not names_targets(controller.state.choices)
    assert adviser.asked


LEFT = Brought(box="atlas", folder="/home/a/.homesplit")


async def test_what_lies_on_the_boxes_is_looked_at_and_can_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lying(ctx: Context) -> tuple[Brought, ...]:
        assert isinstance(ctx.ask, AskNobody)
        return (LEFT, Brought(box="borea"))

    monkeypatch.setattr("homesplit.stages.brought.lying", lying)
    controller = Controller()
    controller.look_at_boxes()
    await controller.ended("look")
    assert controller.state.brought == (LEFT, Brought(box="borea"))
    assert controller.removable_boxes() == ("atlas",)
    assert not controller.state.failures


async def test_boxes_that_serve_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lying(ctx: Context) -> tuple[Brought, ...]:
        raise AssertionError("they were looked at")

    monkeypatch.setattr("homesplit.stages.brought.lying", lying)
    controller = Controller()
    for event in sample_run.deployed():
        controller.emit(event)
    controller.look_at_boxes()
    await controller.ended("look")
    assert not controller.state.failures


async def test_what_follows_a_stage_does_not_begin_once_the_app_closes() -> None:
    controller = Controller()
    began: list[str] = []

    async def wait(ctx: Context) -> None:
        await asyncio.Event().wait()

    async def follow(ctx: Context) -> None:
        began.append("follow")

    controller.start("deploy", wait)
    controller.after("deploy", lambda: controller.start("look", follow))
    await controller.close()
    await controller.ended("look")
    assert began == []


async def waiting(_: Context) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("name", ["serve", "discover", "record"])
async def test_what_goes_on_until_it_is_let_go_is_let_go_without_a_word(name: str) -> None:
    controller = Controller()
    controller.start(name, waiting)
    controller.emit(events.Progress(stage=name, step="events"))
    await asyncio.sleep(0)
    controller.cancel(name)
    await controller.ended(name)
    assert controller.state.failures == ()


async def test_what_is_stopped_tells_so_and_what_ends_with_the_app_does_not() -> None:
    controller = Controller()
    for name in ("probe", "plan"):
        controller.start(name, waiting)
        controller.emit(events.StageStarted(stage=name, sentence="It began."))
    await asyncio.sleep(0)
    controller.cancel("probe")
    await controller.ended("probe")
    await controller.close()
    assert [failure.stage for failure in controller.state.failures] == ["probe"]


async def test_a_recording_refuses_everything_that_would_act_on_a_machine() -> None:
    replay = Replay([(0.0, event) for event in sample_run.whole_run()], speed=0)
    replay.begin()
    for act in (replay.probe, replay.deploy, replay.down, replay.remove, replay.find_deployment):
        act()
    assert [failure.what for failure in replay.state.failures] == [
        "this is a recording: nothing is behind it that could act"
    ] * 5


async def test_a_silence_in_a_recording_is_cut_short() -> None:
    told = [(0.0, events.LoadStopped()), (500.0, events.LoadStopped())]
    replay: Any = Replay(told)
    assert [at_s for at_s, _ in replay._recorded] == [0.0, LONGEST_GAP_S]


def step(number: int) -> events.StepSeen:
    event = StepEvent(box="a", step=number, start_s=float(number), end_s=number + 1.0)
    return events.StepSeen(event=event)


def test_steps_are_there_when_the_state_is_read_and_call_for_no_new_picture() -> None:
    controller = Controller()
    version = controller.version
    for number in range(3):
        controller.emit(step(number))
    assert (controller.version, controller.stream_version) == (version, 3)
    assert len(controller.state.engine.steps) == 3
    assert controller.engine_now_s() == 3.0


def test_events_that_nobody_looks_at_are_kept_within_a_bound() -> None:
    controller: Any = Controller()
    for number in range(3 * MOST_WAITING):
        controller.emit(step(number))
        assert len(controller._waiting) < MOST_WAITING
    assert controller.state.engine.total_steps == 3 * MOST_WAITING


def test_the_order_of_events_is_kept_when_they_are_applied_together() -> None:
    controller = Controller()
    told = (*sample_run.whole_run(), step(1))
    for event in told:
        controller.emit(event)
    assert controller.state == reduce(apply, told, RunState())


def chaptered() -> list[tuple[float, events.Event]]:
    """A probe, an advice, a load in two modes of which the first passes at once."""
    return [
        (0.0, events.BoxFound(box=sample_run.found("atlas", "10.77.0.11"))),
        (2.0, events.StageStarted(stage="probe", sentence="Measuring.")),
        (4.0, events.StageEnded(stage="probe", sentence="Measured.")),
        (8.0, events.StageStarted(stage="plan", sentence="Working it out.")),
        (11.0, events.StageEnded(stage="plan", sentence="Worked out.")),
        (14.0, events.LoadStarted(workload="demo", rate_requests_per_s=1.0, seconds=None)),
        (15.0, events.LoadStopped()),
    ]


async def test_a_recording_is_skipped_through_chapter_by_chapter_and_back() -> None:
    replay: Any = Replay(chaptered(), speed=0.001)
    replay.begin()
    seen = [replay.leads_to]
    for by in (1, 1, 1, 1, -1, -1, -1, -1):
        replay.skip(by)
        seen.append(replay.leads_to)
    assert seen == [
        *("machines", "machines", "plan", "monitor", "monitor"),
        *("plan", "machines", "machines", "machines"),
    ]
    assert (len(replay.state.boxes), replay.state.stage("probe").status) == (1, "idle")
    await replay.close()


async def test_a_recording_that_was_skipped_back_is_played_to_its_end() -> None:
    replay: Any = Replay(chaptered(), speed=1e6)
    replay.begin()
    await replay.ended("replay")
    replay.skip(-1)
    await replay.ended("replay")
    assert replay.state.stage("plan").status == "done"
    assert replay.state.stage("replay").sentence == "The recording has ended."


async def test_a_recording_shown_at_once_leads_nowhere() -> None:
    replay = Replay(chaptered(), speed=0)
    replay.begin()
    replay.skip(-1)
    assert replay.leads_to is None
    assert not replay.running("replay")


class Found(Controller):
    """Keeps what it was told to look at; what runs is what the sample tells."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        for event in sample_run.deployed():
            self.emit(event)

    def find_deployment(self) -> None:
        self.looked += 1


async def test_a_deployment_that_another_shell_stops_goes_from_the_screens() -> None:
    controller: Any = Found()
    await controller._follow_record(None)
    assert controller.state.deployment is None
    assert controller.state.stage("deploy").sentence == "Another shell stopped the deployment."


async def test_a_deployment_that_another_shell_makes_is_looked_at() -> None:
    controller: Any = Found()
    shown = controller.state.deployment
    await controller._follow_record(shown)
    assert controller.looked == 0
    await controller._follow_record(replace(shown, id="d2"))
    assert controller.looked == 1


async def test_what_another_desk_holds_stays_when_this_desk_has_no_record() -> None:
    controller: Any = Found()
    held = replace(controller.state.deployment, held_by="someone@elsewhere")
    controller.emit(events.DeploymentSeen(deployment=held))
    await controller._follow_record(None)
    assert controller.state.deployment == held


ALONE = Alone(ttft_s=0.1, tpot_s=0.02, whole_s=0.9, requests=4)


class Fitted(Controller):
    """Measures nothing: single requests took what `ALONE` says."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = 0

    async def _measured_alone(self, ctx: Context, served: Served) -> Alone:
        self.measured += 1
        return ALONE


SERVED = Served("http://127.0.0.1:1", None)


async def test_a_load_that_nobody_named_fits_the_boxes() -> None:
    controller = Fitted()
    await controller.fit_load(controller.context(), SERVED)
    choices = controller.state.choices
    assert choices.load_rate_requests_per_s == ALONE.rate_requests_per_s == 0.5
    assert choices.targets == Targets(ttft_s=0.3, tpot_s=0.04)
    assert choices.targets_from == ("3× alone", "2× alone")


async def test_a_rate_and_targets_that_were_named_are_left_as_they_are() -> None:
    controller = Fitted()
    own = Targets(ttft_s=2.0, tpot_s=0.1)
    controller.choose(replace(controller.state.choices, targets=own))
    await controller.fit_load(controller.context(), SERVED)
    assert controller.state.choices.targets == own
    controller.turn_load_rate(2.0)
    await controller.fit_load(controller.context(), SERVED)
    assert (controller.measured, controller.state.choices.load_rate_requests_per_s) == (1, 1.0)


async def test_a_rate_that_fitted_other_boxes_is_measured_anew() -> None:
    controller: Any = Fitted()
    await controller.fit_load(controller.context(), SERVED)
    now = Found().state.deployment
    assert now is not None
    controller._compare_fit(now, replace(now, id="d2"))
    assert controller.state.choices.load_rate_requests_per_s == 0.5
    controller._compare_fit(now, replace(now, model="another"))
    assert controller.state.choices.load_rate_requests_per_s is None
    assert controller.state.choices.targets == Targets()


def test_a_recording_tells_ages_as_they_were_when_it_was_made() -> None:
    replay = Replay([(0.0, event) for event in sample_run.machines()], speed=0)
    assert (datetime.now(UTC) - replay.wall_clock()).total_seconds() < 60
    for event in sample_run.machines():
        replay.emit(event)
    told = [moment(profile.probed_at) for profile in replay.state.profiles.values()]
    assert replay.wall_clock() == max(then for then in told if then) + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("rate_requests_per_s", "seconds"),
    [(None, 30.0), (100.0, 30.0), (1.0, 40.0), (0.5, 70.0), (0.12, 260.0), (0.01, 300.0)],
)
def test_a_comparison_lasts_for_enough_requests_within_bounds(
    rate_requests_per_s: float | None, seconds: float
) -> None:
    arrivals = Arrivals(rate_requests_per_s=rate_requests_per_s)
    assert compared_seconds(arrivals) == pytest.approx(seconds)


def test_a_comparison_of_bursts_lasts_for_as_many_requests() -> None:
    bursts = Arrivals(rate_requests_per_s=1.0, pattern="on_off", on_s=5.0, off_s=15.0)
    assert compared_seconds(bursts) == 130.0


def test_a_slow_comparison_counts_more_requests_than_a_verdict_needs() -> None:
    seen = window(compared_seconds(Arrivals(rate_requests_per_s=0.12)))
    counted_s = seen.offered_s - seen.warm_up_s - seen.drain_s
    assert 0.12 * counted_s > LEAST_PAIRS * 1.4


async def test_a_workload_brings_its_targets_and_ones_own_lengths_keep_what_is_there() -> None:
    controller, _ = advised()
    names = profiles.names("workloads", controller.paths)
    controller.turn("workload", 1)
    assert controller.state.choices.workload == names[0]
    first = profiles.load_workload(names[0], controller.paths).targets
    assert controller.state.choices.targets == first
    controller.turn("ttft", 1)
    turned = controller.state.choices.targets
    assert turned != first
    controller.turn("workload", -1)
    assert controller.state.choices.workload is None
    assert controller.state.choices.targets == turned
    await controller.close()


async def test_a_workload_whose_file_is_broken_is_chosen_and_changes_no_target(
    tmp_path: Path,
) -> None:
    controller, _ = advised()
    folder = tmp_path / "config" / "profiles" / "workloads"
    folder.mkdir(parents=True)
    (folder / "aaa.toml").write_text("name = ")
    controller.paths = Paths(config=tmp_path / "config", cache=tmp_path, data=tmp_path)
    before = controller.state.choices.targets
    controller.turn("workload", 1)
    assert controller.state.choices.workload == "aaa"
    assert controller.state.choices.targets == before
    await controller.close()


class Offering(Controller):
    """Offers nothing; a load goes on until it is told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.served = SERVED
        self.offered: list[float | None] = []

    async def _offer(
        self, ctx: Context, served: Served, choices: Choices, stop: asyncio.Event
    ) -> None:
        self.offered.append(choices.load_rate_requests_per_s)
        await stop.wait()


async def test_a_rate_that_is_turned_by_keys_in_a_row_leaves_a_load_that_can_be_stopped() -> None:
    controller = Offering()
    controller.turn_load_rate(1.0)
    controller.toggle_load()
    await until(lambda: controller.offered)
    for _ in range(4):
        controller.turn_load_rate(1.25)
    await until(lambda: controller.offered[-1] == pytest.approx(1.25**4))
    controller.toggle_load()
    async with asyncio.timeout(60):
        await controller.ended("bench")
    assert controller.offered == [1.0, pytest.approx(1.25**4)]


def test_a_switch_before_the_engine_told_its_mode_says_so() -> None:
    controller = Controller()
    controller.served = Served("http://127.0.0.1:1", None)
    controller.next_mode()
    told = [(one.stage, one.what) for one in controller.state.failures]
    assert told == [("mode", "the engine has not told its mode yet")]
    assert not controller.running("mode")


async def test_a_load_stopped_while_its_server_is_asked_who_it_is_is_off_and_no_failure() -> None:
    controller = Controller()
    async with fake_server(Manners(ttft_s=600.0)) as server:
        controller.served = Served(server.url, None)
        controller.turn_load_rate(1.0)
        controller.toggle_load()
        await until(lambda: server.seen)
        controller.toggle_load()
        async with asyncio.timeout(60):
            await controller.ended("bench")
        assert not server.load_requests()
    stage = controller.state.stage("bench")
    assert (stage.status, stage.sentence) == ("done", "The load is off.")
    assert controller.state.failures == ()


async def test_what_needs_the_engine_says_whether_it_is_looked_for_still_or_not_there() -> None:
    controller = Controller()
    controller.attach()
    never = asyncio.Event()

    async def looks(ctx: Context) -> None:
        await never.wait()

    told: list[str] = []
    for looking in (True, False):
        if looking:
            controller.start("status", looks)
        controller.start_load()
        told += [one.what for one in controller.state.failures]
        controller.dismiss_failure()
        controller.cancel("status")
        await controller.ended("status")
    assert told == ["what runs on the boxes is still being looked at", "nothing is running"]
    await controller.close()
