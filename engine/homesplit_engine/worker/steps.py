"""Computes a worker's steps, one after the other, and passes on what each one made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from homesplit_engine.handoff.departure import Departure
from homesplit_engine.runner import StepResult
from homesplit_engine.scheduler import StepOutcome, StepPlan
from homesplit_engine.wire.messages import StepReport, ToRouter
from homesplit_engine.worker.intake import FailureKind
from homesplit_engine.worker.report import step_report
from homesplit_engine.worker.state import State

log = logging.getLogger(__name__)
IDLE_WAIT_S = 0.25
"""How late a stop asked for by a signal is seen by a worker with nothing to do."""


class StepAbandoned(Exception):
    """The worker is to stop, so nobody needs the step that it was in."""


class Computes(Protocol):
    """What runs a plan: the model's runner."""

    def run(self, plan: StepPlan, layer_done: Callable[[int], None] | None = None) -> StepResult:
        """Computes a plan, telling each layer whose KV is in the pool."""
        ...

    def place(self, request: Any) -> Any:
        """Where a request's tokens lie."""
        ...


class Steps:
    """The step loop: everything that is computed is computed here, in one thread."""

    def __init__(
        self,
        state: State,
        *,
        runner: Computes,
        tell: Callable[[ToRouter], None],
        failed: Callable[[str, FailureKind, str], None],
    ) -> None:
        """`tell` passes a message to the router; `failed` says that a request can't go on."""
        self._state = state
        self._runner = runner
        self._tell = tell
        self._failed = failed

    def run(self) -> None:
        """Computes steps until the worker is to stop; a step under way is given up."""
        state = self._state
        while not state.stopping.is_set():
            with state.changed:
                plan = state.scheduler.schedule(time.monotonic())
                if plan is None:
                    state.changed.wait(IDLE_WAIT_S)
                    continue
            try:
                self._step(plan)
            except StepAbandoned:
                log.info("step %d was given up: the worker stops", plan.step)

    def _step(self, plan: StepPlan) -> None:
        layer_done = self._layer_done(plan)
        start_s = time.monotonic()
        try:
            result = self._runner.run(plan, layer_done)
        except (RuntimeError, MemoryError) as error:
            self._step_failed(plan, error)
            return
        self._finish(plan, result, start_s)
        for request_id in result.not_finite:
            self._failed(
                request_id, "numeric", "the model's output is not a number; its weights or dtype?"
            )

    def _finish(self, plan: StepPlan, result: StepResult, start_s: float) -> None:
        state = self._state
        with state.changed:
            for request_id in result.not_finite:
                state.scheduler.spoil(request_id)
                state.let_go(request_id, "its logits are no numbers")
            sampled = {name: choice.token_id for name, choice in result.choices.items()}
            end_s = time.monotonic()
            outcome = state.scheduler.finish_step(plan, sampled, now_s=end_s)
            report = step_report(
                state.scheduler,
                plan,
                result,
                outcome,
                box=state.config.box,
                start_s=start_s,
                end_s=end_s,
            )
            # First the token, then what becomes of its hand-off: the router hears them in order.
            self._tell(report)
            self._pass_on(outcome, report, end_s)

    def _step_failed(self, plan: StepPlan, error: Exception) -> None:
        """A step that could not be computed costs its own requests, not the worker."""
        log.exception("step %d failed", plan.step, exc_info=error)
        state = self._state
        ids = [work.request.request_id for work in plan.prefill]
        ids += [request.request_id for request in plan.decode]
        with state.changed:
            for request_id in ids:
                state.scheduler.cancel(request_id)
                state.let_go(request_id, "its step failed")
            state.scheduler.finish_step(plan, {}, now_s=time.monotonic())
        for request_id in ids:
            self._failed(request_id, "engine", f"a step on {state.config.box} failed: {error}")

    # ------------------------------------------------------------------ hand-offs

    def _layer_done(self, plan: StepPlan) -> Callable[[int], None]:
        """What each layer of a step is told to: its hand-offs, and whether to go on at all."""
        handoffs = self._handoffs_of(plan)
        stopping = self._state.stopping

        def layer_done(layer: int) -> None:
            if stopping.is_set():
                raise StepAbandoned
            for departure, start, end in handoffs:
                departure.layer_done(layer, start, end)

        return layer_done

    def _handoffs_of(self, plan: StepPlan) -> list[tuple[Departure, int, int]]:
        """Each hand-off in this step with the token range that it gets from it."""
        state = self._state
        found: list[tuple[Departure, int, int]] = []
        with state.changed:
            for work in plan.prefill:
                departure = state.departures.get(work.request.request_id)
                if departure is None:
                    continue
                if not departure.has_place:
                    # What this box had cached is there at once.
                    departure.lies_at(self._runner.place(work.request), work.start)
                found.append((departure, work.start, work.start + work.tokens))
        return found

    def _pass_on(self, outcome: StepOutcome, report: StepReport, now_s: float) -> None:
        """Tells hand-offs that they are read to the end, or not wanted any more."""
        firsts = {token.request_id: token for token in report.tokens}
        for request_id in outcome.handing_over:
            departure = self._state.departures.get(request_id)
            if departure is not None:
                departure.prefilled(firsts[request_id], now_s)
        for ended in outcome.ended:
            why = "the answer ended with its first token"
            self._state.let_go(ended.request_id, why, wanted=False)
