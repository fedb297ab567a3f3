"""Finds a server's capacity: the highest rate that keeps the targets for nine of ten requests."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from homesplit.core import say
from homesplit.core.bench_result import BenchResult
from homesplit.core.capacity import (
    LEAST_REQUESTS,
    CapacityResult,
    Trial,
    capacity_of,
    capacity_sentence,
    expected_s,
    next_rate,
    run_s,
    unended,
    with_run,
)
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.lateness import Lateness, could_turn
from homesplit.core.load import with_load
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.prng import FRESH_BITS, Prng
from homesplit.core.window import EDGE_SHARE
from homesplit.core.workload import Workload
from homesplit.errors import UsageError
from homesplit.stages.bench import make_load, prepared, run_once
from homesplit.stages.context import Context
from homesplit.stages.load_watch import Keep
from homesplit.stages.notebook import Course
from homesplit.stages.run_entry import about_server
from homesplit.stages.target import Prepared, Target

STAGE = "capacity"
WITHIN_S = 1800.0
"""A search begins no run that would end later, unless told otherwise."""


async def find_capacity(
    ctx: Context,
    target: Target,
    workload: Workload,
    *,
    seconds: float,
    seed: int,
    keep: bool = True,
    within_s: float | None = WITHIN_S,
) -> CapacityResult:
    """Search from the workload's own rate; each run lasts `seconds` or until it has enough.

    No run is begun that would end after `within_s`; None is as long as it takes. Raises UsageError
    for a load without a rate or targets, or whose first run is longer than that, EngineError.
    """
    first = check_search(workload, seconds, within_s)
    async with prepared(target) as server:
        # Drawn anew: a search before may have left its prompts in the prefix cache.
        salt = secrets.randbits(FRESH_BITS)
        seeds = {"load": seed, "salt": salt}
        kept = _Kept(ctx, server, workload, seconds, within_s, seeds) if keep else None
        with kept.open() if kept else contextlib.nullcontext():
            budget = _Budget(within_s)
            ctx.emit(StageStarted(stage=STAGE, sentence=_outlook(first, seconds, within_s)))
            trials = await _search(
                ctx, server, workload, first, seconds, seed, Prng(salt), kept, budget
            )
            over = within_s if budget.over else None
            result = capacity_of(trials, server.loopback, over)
            if kept is not None:
                result = replace(result, entry=kept.write(result, ended=True))
    ctx.emit(StageEnded(stage=STAGE, sentence=capacity_sentence(result)))
    return result


def check_search(workload: Workload, seconds: float, within_s: float | None) -> float:
    """The rate that a search begins with.

    Raises UsageError where there is nothing to search, or no time for the first run.
    """
    first = workload.arrivals.rate_requests_per_s
    if workload.arrivals.kind == "closed" or not first:
        raise UsageError("capacity is a rate: give an open loop to start from, with --rate.")
    if workload.targets.ttft_s is None and workload.targets.tpot_s is None:
        raise UsageError("capacity needs a target.", do_next="Give --ttft or --tpot.")
    length_s = _length_s(first, seconds)
    if within_s is not None and length_s > within_s:
        enough = f"so that {LEAST_REQUESTS} requests count" if length_s > seconds else "as asked"
        raise UsageError(
            f"the first rate, {say.rate(first)}, is tried for {say.seconds(length_s)}, {enough}, "
            f"and the whole search may take {say.seconds(within_s)}.",
            do_next=f"Give --within {math.ceil(length_s)} or more; a search tries several rates. "
            "Or begin with a higher --rate.",
        )
    return first


class _Budget:
    """How much of the time for a search is left."""

    def __init__(self, within_s: float | None) -> None:
        self._ends = time.monotonic() + (math.inf if within_s is None else within_s)
        self.over = False

    def allows(self, length_s: float) -> bool:
        """Whether a run of that length would end in time; once it would not, it is over."""
        self.over = time.monotonic() + length_s > self._ends
        return not self.over


def _length_s(rate: float, seconds: float) -> float:
    return max(seconds, run_s(rate, 2 * EDGE_SHARE))


def _outlook(first: float, seconds: float, within_s: float | None) -> str:
    """How long it will take, before it does."""
    each, whole = _length_s(first, seconds), expected_s(first, seconds, 2 * EDGE_SHARE)
    limit_s = math.inf if within_s is None else within_s
    higher = "higher ones shorter, " if each > seconds else ""
    end = f", and no run is begun that would end after {say.seconds(limit_s)}" if within_s else ""
    return (
        f"Searching for the capacity: the first rate is tried for {say.seconds(each)}, {higher}"
        f"lower ones longer, so that {LEAST_REQUESTS} requests count each time; "
        f"about {say.seconds(min(whole, limit_s))} in all{end}."
    )


async def _search(
    ctx: Context,
    server: Prepared,
    workload: Workload,
    first: float,
    seconds: float,
    seed: int,
    salts: Prng,
    kept: _Kept | None,
    budget: _Budget,
) -> tuple[Trial, ...]:
    """Rate after rate from `first` until the search, or the time for it, is over."""
    trials: tuple[Trial, ...] = ()
    number = 0
    while (rate := next_rate(trials, first)) is not None:
        length_s = _length_s(rate, seconds)
        # Of the first it is known to fit: else the search had been refused.
        if trials and not budget.allows(length_s):
            break
        told = f"Trying {say.rate(rate)} for {say.seconds(length_s)}."
        ctx.emit(StageStarted(stage=STAGE, sentence=told))
        keep = kept.keep(trials, rate) if kept else None
        salt = salts.fork(number).bits()
        run = await _run_at(ctx, server, workload, rate, seconds, seed + number, salt, keep)
        trials = with_run(trials, _trial(rate, run))
        if kept is not None:
            # Before it is shown: a search takes long, and may not come to its end.
            kept.run_ended(trials, run)
        ctx.emit(Progress(stage=STAGE, step="rate", sentence=trials[-1].words))
        number += 1
    return trials


async def _run_at(
    ctx: Context,
    server: Prepared,
    workload: Workload,
    rate: float,
    seconds: float,
    seed: int,
    salt: int,
    keep: Keep | None,
) -> BenchResult:
    """One run of the search, at `rate`: other requests in other words than any before it."""
    load = with_load(workload, rate_requests_per_s=rate)
    plan = make_load(load, seconds=_length_s(rate, seconds), seed=seed)
    return await run_once(ctx, server, load, plan, salt=salt, keep=keep)


class _Kept:
    """The search in the notebook: from its beginning, run by run, and whole."""

    def __init__(
        self,
        ctx: Context,
        server: Prepared,
        workload: Workload,
        seconds: float,
        within_s: float | None,
        seeds: Mapping[str, int],
    ) -> None:
        status = server.status
        settings = {
            "mode": status.setting if status else None,
            "workload": workload,
            "seconds": seconds,
            "within_s": within_s,
            "url": None if status else server.endpoint.url,
        }
        self._course = Course(ctx, "run")
        self._about = about_server(ctx, server, seeds=seeds, settings=settings)

    @contextlib.contextmanager
    def open(self) -> Generator[None, None, None]:
        """The entry is there from the beginning of the block on. Raises NotebookError."""
        self.write(unended((), self._about.loopback))
        with self._course.open():
            yield

    def keep(self, trials: Sequence[Trial], rate: float) -> Keep:
        """Takes the requests of the next run, at `rate`, as they end."""
        so_far = capacity_sentence(unended(trials, self._about.loopback)).rstrip()
        again = bool(trials) and trials[-1].rate_requests_per_s == rate
        name = _run_name(rate, trials[-1].runs + 1 if again else 1)

        async def take(told: str, fresh: Sequence[RequestLog]) -> None:
            await self._course.grow(f"{so_far} Now {name}: {told}.", name, fresh)

        return take

    def run_ended(self, trials: Sequence[Trial], run: BenchResult) -> None:
        """One more run has ended. Raises NotebookError."""
        name = _run_name(trials[-1].rate_requests_per_s, trials[-1].runs)
        self.write(unended(trials, self._about.loopback), raw={name: run.logs})

    def write(
        self,
        result: CapacityResult,
        *,
        raw: Mapping[str, Sequence[RequestLog]] | None = None,
        ended: bool = False,
    ) -> str:
        """What the search has shown; returns the entry's id. Raises NotebookError."""
        told, document = capacity_sentence(result), capacity_document(result)
        return self._course.so_far(told, document, about=self._about, raw=raw, ended=ended)


def _run_name(rate: float, run: int) -> str:
    return f"{say.rate(rate)}, run {run}"


def _trial(rate: float, run: BenchResult) -> Trial:
    found, seen = run.summary.figures, run.summary.window
    trial = Trial(
        rate_requests_per_s=rate,
        offered=found.offered,
        inside=found.inside,
        completed=found.completed,
        left=found.left,
        unjudged=found.unjudged,
    )
    late = Lateness(woke_s=run.lag_p99_s or 0.0, sent_s=run.summary.lateness_p99_s or 0.0)
    lines = [timeline(log) for log in run.logs if seen.counts(log.due_s)]
    if not could_turn(trial, lines, run.workload.targets, late, seen.offered_s):
        return trial
    return replace(trial, late_runs=1, late_s=late.most_s)


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
