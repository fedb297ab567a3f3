"""Does a probe or a plan of the notebook again, and holds it against its former self."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from homesplit.core.entry import Entry
from homesplit.core.plan import Plan, Recommendation
from homesplit.core.remeasured import Advised, Figure, box_again, link_again
from homesplit.errors import UsageError
from homesplit.stages.beside import beside
from homesplit.stages.context import Context
from homesplit.stages.notebook import list_entries
from homesplit.stages.plan import PlanQuestion, make_plan
from homesplit.stages.plan_entry import curves_of, keep_plan
from homesplit.stages.probe import ProbeResult, probe

_Kept = TypeVar("_Kept")


async def probe_again(ctx: Context, entry: Entry) -> tuple[str, Sequence[Figure]]:
    """The same boxes measured anew; raises what `probe` raises, UsageError without boxes."""
    former = _read(entry, entry.body, ProbeResult)
    names = [box.name for box in former.boxes]
    link = former.link
    if not names and link is not None:
        names = [link.a, link.b]
    if not names:
        raise UsageError(
            f"entry {entry.number} doesn't say which boxes it measured.",
            do_next="Measure them anew with `homesplit probe`.",
        )
    found = await probe(ctx, names, only_link=not former.boxes)
    changes = [
        figure
        for then, now in zip(former.boxes, found.boxes, strict=True)
        for figure in box_again(then, now)
    ]
    if link is not None and found.link is not None:
        changes += link_again(link, found.link)
    return list_entries(ctx, "probe")[-1].id, changes


async def plan_again(ctx: Context, entry: Entry) -> tuple[str, Sequence[Advised]]:
    """The same question asked of what is known now; raises what `make_plan` raises."""
    body = entry.body if isinstance(entry.body, dict) else {}
    former = _read(entry, body.get("recommendation"), Recommendation)
    question = _read(entry, entry.about.settings, PlanQuestion)
    found = await asyncio.to_thread(make_plan, ctx, question)
    key = await beside(_keep, ctx, question, found)
    told = Advised(name="recommended", then=_mode(former), now=_mode(found.recommendation))
    return key, [told]


def _keep(ctx: Context, question: PlanQuestion, found: Plan) -> str:
    return keep_plan(ctx, question, found, curves_of(ctx, question))


def _mode(chosen: Recommendation) -> str:
    if chosen.mode is None:
        return "nothing"
    return f"{chosen.mode} ({chosen.prefill})" if chosen.prefill else chosen.mode


def _read(entry: Entry, value: Any, kind: type[_Kept]) -> _Kept:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"entry {entry.number} doesn't hold what it takes to do it again: {error}.",
            do_next="Run the command that made it once more.",
        ) from error
