"""The advice as an entry of the notebook."""

from __future__ import annotations

from homesplit.core.entry import About
from homesplit.core.plan import Plan
from homesplit.stages.context import Context
from homesplit.stages.notebook import known_machines, record, record_if_possible
from homesplit.stages.plan import PlanQuestion


def keep_plan(ctx: Context, question: PlanQuestion, plan: Plan) -> str:
    """Write the advice into the notebook; the entry's id. Raises NotebookError."""
    about = _about(ctx, question, plan)
    return record(ctx, "plan", plan.recommendation.sentence, plan, about=about)


def keep_plan_if_possible(ctx: Context, question: PlanQuestion, plan: Plan) -> str | None:
    """The same for advice that stands whether or not it can be written down."""
    about = _about(ctx, question, plan)
    return record_if_possible(ctx, "plan", plan.recommendation.sentence, plan, about=about)


def _about(ctx: Context, question: PlanQuestion, plan: Plan) -> About:
    boxes, probed = known_machines(ctx, plan.boxes)
    link = probed if question.link in (None, "probed") and probed else plan.link
    return About(model=plan.model, boxes=boxes, link=link, settings=question)
