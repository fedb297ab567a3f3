"""Finds a server's capacity: the highest rate that keeps the targets for nine of ten requests."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from homesplit.core.bench_result import BenchResult
from homesplit.core.capacity import (
    CapacityResult,
    Trial,
    capacity_of,
    capacity_sentence,
    next_rate,
    run_s,
    with_run,
)
from homesplit.core.entry import LOOPBACK_LABEL, About
from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.load import with_load
from homesplit.core.prng import Prng
from homesplit.core.summary import WARM_UP_SHARE
from homesplit.core.workload import Workload
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, make_load, prepared, run_once
from homesplit.stages.context import Context
from homesplit.stages.notebook import known_machines, record

STAGE = "capacity"


async def find_capacity(
    ctx: Context, target: Target, workload: Workload, *, seconds: float, seed: int
) -> CapacityResult:
    """Search from the workload's own rate; each run lasts `seconds` or until it has enough.

    Raises UsageError for a load without a rate or targets, EngineError.
    """
    first = workload.arrivals.rate_requests_per_s
    if workload.arrivals.kind == "closed" or not first:
        raise UsageError("capacity is a rate: give an open loop to start from, with --rate.")
    if workload.targets.ttft_s is None and workload.targets.tpot_s is None:
        raise UsageError("capacity needs a target.", do_next="Give --ttft or --tpot.")
    trials: tuple[Trial, ...] = ()
    about = About()
    async with prepared(target) as server:
        number = 0
        while (rate := next_rate(trials, first)) is not None:
            ctx.emit(StageStarted(stage=STAGE, sentence=f"Trying {rate:.3g} requests/s."))
            load = with_load(workload, rate_requests_per_s=rate)
            length_s = max(seconds, run_s(rate, WARM_UP_SHARE))
            plan = make_load(load, seconds=length_s, seed=seed + number)
            salt = Prng(seed).fork(11, number).bits()
            run = await run_once(ctx, server, load, plan, salt=salt)
            figures = run.summary.figures
            trials = with_run(trials, rate, figures.offered, figures.inside, figures.completed)
            ctx.emit(Progress(stage=STAGE, step="rate", sentence=_told(trials[-1])))
            about = _about(ctx, run, workload, seconds, seed)
            number += 1
    result = capacity_of(trials, about.loopback)
    sentence = capacity_sentence(result)
    entry = record(ctx, "run", sentence, capacity_document(result), about=about)
    ctx.emit(StageEnded(stage=STAGE, sentence=sentence))
    return replace(result, entry=entry)


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


def _told(trial: Trial) -> str:
    low, high = trial.interval
    words = {True: "holds", False: "too much", None: "not clear yet"}[trial.holds]
    return (
        f"{trial.rate_requests_per_s:.3g} requests/s: {trial.inside} of {trial.offered} inside "
        f"({low:.0%} to {high:.0%}), {words}"
    )


def capacity_document(result: CapacityResult) -> dict[str, Any]:
    """What `bench --capacity --json` prints."""
    trials = [
        {
            **msgspec.to_builtins(trial),
            "attainment": trial.inside / trial.offered if trial.offered else None,
            "low": trial.interval[0],
            "high": trial.interval[1],
            "holds": trial.holds,
        }
        for trial in result.trials
    ]
    document: dict[str, Any] = msgspec.to_builtins(result)
    label = {"label": LOOPBACK_LABEL} if result.loopback else {}
    return {**document, "trials": trials, **label, "sentence": capacity_sentence(result)}
