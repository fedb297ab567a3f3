"""Commands of the Plan screen: turn the question's knobs, work out the advice."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from homesplit.controller.base import Base, io_module, stage_module
from homesplit.core import events
from homesplit.core.choices import Choices
from homesplit.errors import UsageError
from homesplit.stages.context import Context
from homesplit.view import plan as plan_view

TURN_REST_S = 0.35
"""The advice is worked out anew once the knobs have rested this long."""


class Planning(Base):
    """The question and its answer."""

    _turning: asyncio.TimerHandle | None = None

    def turn(self, knob: str, step: int) -> None:
        """Turn one knob of the question; the advice follows once it rests."""
        profiles = io_module("profiles")
        models, workloads = (profiles.names(kind, self.paths) for kind in ("models", "workloads"))
        self.choose(plan_view.turned(self.state.choices, knob, step, models, workloads))
        if self._turning is not None:
            self._turning.cancel()
        self._turning = asyncio.get_running_loop().call_later(TURN_REST_S, self.make_plan)

    def make_plan(self) -> None:
        """Work out the advice in a thread: the simulator takes its time."""
        choices = self.state.choices
        if not choices.boxes:
            self.fail("plan", UsageError("no boxes are chosen", do_next="Choose them on 1."))
            return

        async def work(ctx: Context) -> None:
            module = stage_module("plan")
            self.emit(events.StageStarted(stage="plan", sentence="working out the advice"))
            await self._answer_newest(module)
            self.emit(events.StageEnded(stage="plan", sentence="The advice is worked out."))

        # What runs already takes up the newest question by itself.
        self.start("plan", work)

    async def _answer_newest(self, module: Any) -> None:
        """Answer what is asked until it is still being asked: first the advice, then its flips."""
        quiet = Context(ask=self.ask, paths=self.paths)
        answered: Any = None
        while answered != (question := _question(module, self.state.choices)):
            for flips in (False, True):
                asked = replace(question, flips=flips)
                plan = await asyncio.to_thread(module.make_plan, quiet, asked)
                if question != _question(module, self.state.choices):
                    break
                self.emit(events.PlanMade(plan=plan))
            answered = question


def _question(module: Any, choices: Choices) -> Any:
    """The plan stage's question from what is chosen."""
    own = choices.workload is None
    return module.PlanQuestion(
        boxes=choices.boxes,
        link=None,
        model=choices.model,
        workload=choices.workload,
        prompt_tokens=choices.prompt_tokens if own else None,
        output_tokens=choices.output_tokens if own else None,
        users=choices.users if own else None,
        rate_requests_per_s=choices.rate_requests_per_s if own else None,
        targets=choices.targets,
    )
