"""What the controller does by itself: the newest question is the one that is answered."""

from __future__ import annotations

from functools import reduce
from typing import Any

from homesplit_engine.records import StepEvent
from msgspec.structs import replace

from homesplit.controller import Controller
from homesplit.controller.runner import MOST_WAITING
from homesplit.core import events
from homesplit.core.plan import Plan
from homesplit.core.plan_map import PlanMap
from homesplit.core.state import RunState, apply
from homesplit.replay import LONGEST_GAP_S, Replay
from homesplit.stages.plan import PlanQuestion
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
