"""The advice as an entry of the notebook."""

from __future__ import annotations

from typing import Any

import msgspec

from homesplit.core.elsewhere import PlanMap, open_atlas
from homesplit.core.entry import About
from homesplit.core.plan import Plan
from homesplit.stages.context import Context
from homesplit.stages.notebook import known_machines, record, record_if_possible
from homesplit.stages.plan import PlanQuestion, read_question


def keep_plan(
    ctx: Context, question: PlanQuestion, plan: Plan, shown: PlanMap | None = None
) -> str:
    """Write the advice, and its map where there is one, into the notebook; the entry's id.

    Raises NotebookError.
    """
    about, body = _about(ctx, question, plan), _body(plan, shown)
    return record(ctx, "plan", plan.recommendation.sentence, body, about=about)


def keep_plan_if_possible(
    ctx: Context, question: PlanQuestion, plan: Plan, shown: PlanMap | None = None
) -> str | None:
    """The same for advice that stands whether or not it can be written down."""
    about, body = _about(ctx, question, plan), _body(plan, shown)
    return record_if_possible(ctx, "plan", plan.recommendation.sentence, body, about=about)


def keep_with_curves_if_possible(ctx: Context, question: PlanQuestion, plan: Plan) -> str | None:
    """The same with its curves, which are worked out only where they can be written down."""

    def body() -> dict[str, Any]:
        return _body(plan, curves_of(ctx, question))

    about = _about(ctx, question, plan)
    return record_if_possible(ctx, "plan", plan.recommendation.sentence, body, about=about)


def curves_of(ctx: Context, question: PlanQuestion) -> PlanMap | None:
    """What the Plan screen draws but for the map's cells, which take long; None without flips."""
    if not question.flips:
        return None
    atlas = open_atlas(read_question(ctx, question), "load")
    return atlas.map if atlas else None


def _body(plan: Plan, shown: PlanMap | None) -> dict[str, Any]:
    return {**msgspec.to_builtins(plan), "map": msgspec.to_builtins(shown)}


def _about(ctx: Context, question: PlanQuestion, plan: Plan) -> About:
    boxes, probed = known_machines(ctx, plan.boxes)
    link = probed if question.link in (None, "probed") and probed else plan.link
    return About(model=plan.model, boxes=boxes, link=link, settings=question)
