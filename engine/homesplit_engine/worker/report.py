"""What a step did, as the router is told it. Pure."""

from __future__ import annotations

from homesplit_engine.records import PrefillSlice, StepEvent
from homesplit_engine.runner import StepResult
from homesplit_engine.scheduler import Sampled, Scheduler, StepOutcome, StepPlan
from homesplit_engine.wire.messages import Finished, PrefillDone, StepReport, Token


def step_report(
    scheduler: Scheduler,
    plan: StepPlan,
    result: StepResult,
    outcome: StepOutcome,
    *,
    box: str,
    start_s: float,
    end_s: float,
) -> StepReport:
    """One step's event, tokens and ends in one message."""
    return StepReport(
        event=_event(scheduler, plan, box, start_s, end_s),
        tokens=tuple(_token(token, result) for token in outcome.tokens),
        prefilled=tuple(
            PrefillDone(
                request_id=one.request_id,
                queue_s=one.queue_s,
                prefill_s=one.prefill_s,
                cached_tokens=one.cached_tokens,
            )
            for one in outcome.prefilled
        ),
        finished=tuple(
            Finished(request_id=ended.request_id, reason=ended.reason) for ended in outcome.ended
        ),
    )


def _event(
    scheduler: Scheduler, plan: StepPlan, box: str, start_s: float, end_s: float
) -> StepEvent:
    return StepEvent(
        box=box,
        step=plan.step,
        start_s=start_s,
        end_s=end_s,
        decode=tuple(request.request_id for request in plan.decode),
        prefill=tuple(
            PrefillSlice(
                request_id=work.request.request_id,
                start=work.start,
                tokens=work.tokens,
                last=work.last,
            )
            for work in plan.prefill
        ),
        context_tokens=plan.context_tokens,
        running=scheduler.running,
        waiting=scheduler.waiting,
        blocks_free=scheduler.pool.blocks_available,
        blocks_total=scheduler.pool.blocks_total,
    )


def _token(token: Sampled, result: StepResult) -> Token:
    choice = result.choices[token.request_id]
    return Token(
        request_id=token.request_id,
        index=token.index,
        token_id=token.token_id,
        logprob=choice.logprob,
        top_logprobs=choice.top_logprobs,
    )
