"""Finds a server's capacity: the highest rate that keeps the targets for nine of ten requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from homesplit_engine.words import Figures
from msgspec.structs import replace

from homesplit.core import say
from homesplit.core.bench_result import BenchResult
from homesplit.core.capacity import (
    CapacityResult,
    Trial,
    capacity_of,
    capacity_sentence,
    next_rate,
    run_s,
    unended,
    with_run,
)
from homesplit.core.entry import LOOPBACK_LABEL, About
from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.load import with_load
from homesplit.core.prng import Prng
from homesplit.core.summary import WARM_UP_SHARE
from homesplit.core.workload import Workload
from homesplit.errors import UsageError
from homesplit.stages.bench import Prepared, Target, make_load, prepared, run_once
from homesplit.stages.context import Context
from homesplit.stages.notebook import Course, known_machines

STAGE = "capacity"


async def find_capacity(
    ctx: Context,
    target: Target,
    workload: Workload,
    *,
    seconds: float,
    seed: int,
    keep: bool = True,
) -> CapacityResult:
    """Search from the workload's own rate; each run lasts `seconds` or until it has enough.

    Raises UsageError for a load without a rate or targets, EngineError.
    """
    first = workload.arrivals.rate_requests_per_s
    if workload.arrivals.kind == "closed" or not first:
        raise UsageError("capacity is a rate: give an open loop to start from, with --rate.")
    if workload.targets.ttft_s is None and workload.targets.tpot_s is None:
        raise UsageError("capacity needs a target.", do_next="Give --ttft or --tpot.")
    kept = Course(ctx, "run") if keep else None
    trials: tuple[Trial, ...] = ()
    about, number = About(), 0
    async with prepared(target) as server:
        while (rate := next_rate(trials, first)) is not None:
            ctx.emit(StageStarted(stage=STAGE, sentence=f"Trying {say.rate(rate)}."))
            run = await _run_at(ctx, server, workload, rate, seconds, seed, number)
            trials = with_run(trials, _trial(rate, run.summary.figures))
            about = _about(ctx, run, workload, seconds, seed)
            if kept is not None:
                _keep_so_far(kept, trials, about, run)
            ctx.emit(Progress(stage=STAGE, step="rate", sentence=trials[-1].words))
            number += 1
    result = capacity_of(trials, about.loopback)
    sentence = capacity_sentence(result)
    if kept is not None:
        entry = kept.so_far(sentence, capacity_document(result), about=about, ended=True)
        result = replace(result, entry=entry)
    ctx.emit(StageEnded(stage=STAGE, sentence=sentence))
    return result


async def _run_at(
    ctx: Context,
    server: Prepared,
    workload: Workload,
    rate: float,
    seconds: float,
    seed: int,
    number: int,
) -> BenchResult:
    """Run `number` of the search, at `rate`: other requests in other words than any before it."""
    load = with_load(workload, rate_requests_per_s=rate)
    length_s = max(seconds, run_s(rate, WARM_UP_SHARE))
    plan = make_load(load, seconds=length_s, seed=seed + number)
    return await run_once(ctx, server, load, plan, salt=Prng(seed).fork(11, number).bits())


def _keep_so_far(kept: Course, trials: Sequence[Trial], about: About, run: BenchResult) -> None:
    """Into the notebook before it is shown: a search takes long, and may not come to its end."""
    so_far = unended(trials, about.loopback)
    last = trials[-1]
    raw = {f"{say.rate(last.rate_requests_per_s)}, run {last.runs}": run.logs}
    kept.so_far(capacity_sentence(so_far), capacity_document(so_far), about=about, raw=raw)


def _about(ctx: Context, run: BenchResult, workload: Workload, seconds: float, seed: int) -> About:
    """What the search rests on, as its last run shows it."""
    boxes, link = known_machines(ctx, run.boxes)
    return About(
        seeds={"load": seed},
        model=run.model,
        fingerprint=run.fingerprint,
        boxes=boxes,
        link=link,
        settings={"mode": run.setting, "workload": workload, "seconds": seconds, "url": run.url},
        loopback=run.loopback,
    )


def _trial(rate: float, found: Figures) -> Trial:
    return Trial(
        rate_requests_per_s=rate,
        offered=found.offered,
        inside=found.inside,
        completed=found.completed,
        left=found.left,
    )


def capacity_document(result: CapacityResult) -> dict[str, Any]:
    """What `bench --capacity --json` prints."""
    trials = [
        {
            **msgspec.to_builtins(trial),
            "attainment": trial.attainment,
            "low": trial.interval[0] if trial.completed else None,
            "high": trial.interval[1] if trial.completed else None,
            "holds": trial.holds,
        }
        for trial in result.trials
    ]
    document: dict[str, Any] = msgspec.to_builtins(result)
    label = {"label": LOOPBACK_LABEL} if result.loopback else {}
    return {**document, "trials": trials, **label, "sentence": capacity_sentence(result)}
