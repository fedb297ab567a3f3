"""Measures a few requests alone and takes targets from them that suit these machines."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from homesplit.core.alone import Alone, alone
from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.prng import FRESH_BITS
from homesplit.core.workload import Arrivals, Workload
from homesplit.errors import EngineError
from homesplit.io.load import run_load
from homesplit.stages.bench import Target, make_load, prepared
from homesplit.stages.context import Context

STAGE = "targets"
EACH_CLASS = 2
RUN = "targets"
"""What these requests are called in the records that a person reads: `targets-0`, …"""


async def measure_alone(ctx: Context, target: Target, workload: Workload) -> Alone:
    """Two requests of each class, one after another; raises EngineError where none completes."""
    told = "Measuring single requests alone, to set targets that suit these machines."
    ctx.emit(StageStarted(stage=STAGE, sentence=told))
    plan = plan_alone(workload)
    total = float(len(plan.requests))
    done = 0

    def tell(log: RequestLog) -> None:
        nonlocal done
        done += 1
        ctx.emit(Progress(stage=STAGE, step="alone", done=done, total=total, unit="requests"))

    # Drawn anew: prompts of the last time may still be in the prefix cache.
    salt = secrets.randbits(FRESH_BITS)
    async with prepared(target) as server:
        load = await run_load(
            server.session, server.endpoint, plan, run_id=RUN, salt=salt, tell=tell
        )
    found = alone(load.logs)
    if found is None:
        why = next((log.error for log in load.logs if log.error), None)
        raise EngineError(
            "no request completed, so there is nothing to take targets from",
            do_next=why or "Look at the boxes' state on Monitor.",
        )
    ctx.emit(StageEnded(stage=STAGE, sentence=found.sentence))
    return found


def plan_alone(workload: Workload) -> LoadPlan:
    """The first few planned requests of each class, longest class last."""
    arrivals = Arrivals(kind="closed", users=1)
    plan = make_load(
        replace(workload, arrivals=arrivals, turns=1, cancel_share=0.0), seconds=600.0, seed=7
    )
    chosen = [
        request
        for kind in workload.classes
        for request in [r for r in plan.requests if r.class_ == kind.name][:EACH_CLASS]
    ]
    in_turn = tuple(
        replace(request, id=n, after=n - 1 if n else None, send_at_s=None, pause_s=0.0)
        for n, request in enumerate(chosen)
    )
    return replace(plan, requests=in_turn)
