"""Commands of the Plan screen: turn the question's knobs, work out the advice."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from homesplit.controller.base import Base, io_module, stage_module
from homesplit.core import events
from homesplit.core.choices import Choices
from homesplit.core.workload import Targets
from homesplit.errors import HomesplitError, UsageError
from homesplit.stages.context import Context
from homesplit.view import plan as plan_view

_T = TypeVar("_T")
TURN_REST_S = 0.35
"""The advice is worked out anew once the knobs have rested this long."""


class _Turned(Exception):
    """Another question was asked meanwhile."""


class Planning(Base):
    """The question and its answer."""

    _turning: asyncio.TimerHandle | None = None
    _adviser: Any = None
    _other: str = "load"

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._turned = asyncio.Event()

    def turn(self, knob: str, step: int) -> None:
        """Turn one knob of the question; the advice follows once it rests."""
        profiles = io_module("profiles")
        models, workloads = (profiles.names(kind, self.paths) for kind in ("models", "workloads"))
        turned = plan_view.turned(self.state.choices, knob, step, models, workloads)
        if knob == "workload" and turned.workload is not None:
            turned = self._with_its_targets(turned, turned.workload)
        self.choose(turned)
        if self._turning is not None:
            self._turning.cancel()
        self._turning = asyncio.get_running_loop().call_later(TURN_REST_S, self.make_plan)

    def _with_its_targets(self, choices: Choices, workload: str) -> Choices:
        """What a workload's profile asks of each request, as far as it says."""
        try:
            own = io_module("profiles").load_workload(workload, self.paths).targets
        except HomesplitError:
            # The advice for it says what is wrong with its file.
            return choices
        return (
            choices
            if own == Targets(ttft_s=None, tpot_s=None)
            else replace(choices, targets=own, targets_from=("", ""))
        )

    def make_plan(self) -> None:
        """Work out the advice in a process of its own; a newer question takes its place."""
        if not self.state.choices.boxes:
            self.fail("plan", UsageError("no boxes are chosen", do_next="Choose them on 1."))
            return
        self._turned.set()
        self._answered = None

        async def work(ctx: Context) -> None:
            self.emit(events.StageStarted(stage="plan", sentence="working out the advice"))
            await self.answer_newest()
            self.emit(events.StageEnded(stage="plan", sentence="The advice is worked out."))

        # What runs already takes up the newest question by itself.
        self.start("plan", work)

    def take_suited(self) -> bool:
        """Ask with the targets that the plan says these boxes hold, if it says any."""
        found = self.state.plan.suited if self.state.plan is not None else None
        if found is None:
            return False
        times = importlib.import_module("homesplit.core.alone")
        told = (f"{times.TTFT_TIMES:g}× alone", f"{times.TPOT_TIMES:g}× alone")
        self.choose(replace(self.state.choices, targets=found.targets, targets_from=told))
        self.make_plan()
        return True

    def turn_map(self) -> None:
        """Show the map over the load, or over the link."""
        self._other = "link" if self._other == "load" else "load"
        answered = self._answered
        self.make_plan()
        self._answered = answered

    @property
    def adviser(self) -> Any:
        """The process that works it out."""
        if self._adviser is None:
            self._adviser = stage_module("advice").Adviser(self.paths)
        return self._adviser

    async def answer_newest(self) -> None:
        """Answer what is asked until it is still being asked: advice, map's axes, flips, map."""
        asked: Any = None
        while asked != (newest := (_question(self.state.choices), self._other)):
            self._turned.clear()
            with contextlib.suppress(_Turned):
                await self._answer(*newest, again=self._answered == newest[0])
                asked = newest

    async def _answer(self, question: Any, other: str, *, again: bool) -> None:
        adviser = self.adviser
        if not again:
            plan = await self._unless_turned(adviser.plan(replace(question, flips=False)))
            self.emit(events.PlanMade(plan=plan))
        shown = await self._unless_turned(adviser.map(question, other))
        self.emit(events.PlanMapped(map=shown))
        if not again:
            self.emit(events.PlanMade(plan=await self._unless_turned(adviser.plan(question))))
            self._answered = question
        if shown is None:
            return
        elsewhere = importlib.import_module("homesplit.core.elsewhere")
        for row, column in elsewhere.nearest_first(shown):
            mode = await self._unless_turned(adviser.cell(question, other, (row, column)))
            shown = elsewhere.filled(shown, row, column, mode)
            self.emit(events.PlanMapped(map=shown))

    async def _unless_turned(self, answer: Coroutine[Any, Any, _T]) -> _T:
        """The answer, given up as soon as another question is asked."""
        asked = asyncio.create_task(answer, name="advice")
        turned = asyncio.create_task(self._turned.wait(), name="turned")
        try:
            await asyncio.wait({asked, turned}, return_when=asyncio.FIRST_COMPLETED)
            if self._turned.is_set():
                raise _Turned
            return asked.result()
        finally:
            for task in (asked, turned):
                task.cancel()
            await asyncio.gather(asked, turned, return_exceptions=True)

    async def close(self) -> None:
        """Also end the process that works out the advice."""
        await super().close()
        if self._adviser is not None:
            await self._adviser.close()


def _question(choices: Choices) -> Any:
    """The plan stage's question from what is chosen."""
    module = stage_module("plan")
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
