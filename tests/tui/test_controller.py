"""What the controller does by itself: the newest question is the one that is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from homesplit.controller import Controller
from homesplit.stages.context import Context
from homesplit.stages.plan import PlanQuestion
from tests.tui import sample_run


async def test_a_question_turned_while_it_is_answered_is_answered_anew() -> None:
    controller = Controller()
    for event in sample_run.machines():
        controller.emit(event)
    asked: list[tuple[int | None, bool]] = []

    def slow_advice(ctx: Context, question: PlanQuestion) -> Any:
        asked.append((question.prompt_tokens, question.flips))
        if len(asked) == 1:
            controller.choose(replace(controller.state.choices, prompt_tokens=1024))
        return replace(sample_run.plan(), workload=f"{question.prompt_tokens} in")

    module = SimpleNamespace(PlanQuestion=PlanQuestion, make_plan=slow_advice)
    await controller._answer_newest(module)  # pyright: ignore[reportPrivateUsage]
    assert asked == [(512, False), (1024, False), (1024, True)]
    assert controller.state.plan is not None
    assert controller.state.plan.workload == "1024 in"
