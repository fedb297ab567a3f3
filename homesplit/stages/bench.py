"""Offers a planned load to a server and keeps what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from homesplit_engine.status import RouterStatus
from homesplit_engine.words import Figures
from msgspec.structs import replace

from homesplit.core.bench_result import (
    BenchResult,
    bench_sentence,
    late_words,
    stopped_words,
)
from homesplit.core.events import LoadEnded, LoadStarted, StageEnded, StageStarted
from homesplit.core.load import LoadPlan, plan_load
from homesplit.core.say import counted
from homesplit.core.served import (
    ServerSide,
    Timed,
    as_asked_words,
    background_words,
    gather,
    server_side,
)
from homesplit.core.summary import RunSummary, summarise
from homesplit.core.window import Window, window
from homesplit.core.workload import Workload
from homesplit.errors import EngineError, UsageError
from homesplit.io import probe_store
from homesplit.io.endpoint import base_url, connect, served_context, served_models
from homesplit.io.load import LoadResult, new_session, run_load
from homesplit.io.own_machine import is_own_machine
from homesplit.io.router_status import read_router_status
from homesplit.stages.beside import beside
from homesplit.stages.context import Context
from homesplit.stages.load_watch import EventBox, Keep, LoadCounter, watching
from homesplit.stages.run_entry import RunEntry
from homesplit.stages.target import Prepared, Target

T = TypeVar("T")

STAGE = "bench"
ON_THIS_MACHINE = (
    "the server's address is this machine's own, so no network lies between; should a tunnel lead "
    "on from there, the figures hold its network"
)
DISTORTED_SHARE = 0.01
"""Above this share of the median TPOT, the generator's own lateness is worth a word."""


@contextlib.asynccontextmanager
async def prepared(target: Target) -> AsyncGenerator[Prepared, None]:
    """An open session to the server, calibrated; raises EngineError when it can't answer."""
    async with new_session() as session:
        status = await read_router_status(session, target.url, target.api_key)
        endpoint = await connect(
            session, target.url, api_key=target.api_key, model=target.model, api=target.api
        )
        loopback = status.loopback if status else await is_own_machine(base_url(target.url))
        if loopback and status is None:
            endpoint = dataclasses.replace(endpoint, notes=(*endpoint.notes, ON_THIS_MACHINE))
        yield Prepared(
            target=target, session=session, endpoint=endpoint, status=status, loopback=loopback
        )


async def context_of(target: Target) -> int | None:
    """How long a prompt with its answer may be there, None where the server doesn't tell."""
    async with new_session() as session:
        return await served_context(session, target.url, api_key=target.api_key, model=target.model)


async def router_status(target: Target) -> RouterStatus | None:
    """What homesplit's router tells there; None of another server, EngineError where none is."""
    async with new_session() as session:
        status = await read_router_status(session, target.url, target.api_key)
        if status is None:
            # It tells who doesn't answer at all.
            await served_models(session, target.url, api_key=target.api_key)
        return status


async def served_name(target: Target, model: str | None) -> str | None:
    """The model by that name if the server lists it, else None: what it lists first."""
    if model is None:
        return None
    async with new_session() as session:
        listed = await served_models(session, target.url, api_key=target.api_key)
    return model if model in listed else None


@contextlib.asynccontextmanager
async def deployed(ctx: Context) -> AsyncGenerator[Target, None]:
    """The current deployment's API while the block lasts; raises EngineError without one."""
    # Imported here: a foreign server needs nothing of deployments.
    from homesplit.stages import deploy

    deployment = await deploy.status(ctx)
    if deployment is None:
        raise EngineError(
            "nothing is deployed.",
            do_next="Start with `homesplit up`, or name a server with --url.",
        )
    async with deploy.forward(ctx, deployment) as api:
        yield Target(url=api.url, api_key=api.api_key)


async def bench(
    ctx: Context,
    target: Target,
    workload: Workload,
    *,
    seconds: float,
    seed: int,
    salt: int = 0,
    plan: LoadPlan | None = None,
    warm_up: float | None = None,
    drain: float | None = None,
    stop: asyncio.Event | None = None,
    keep: bool = True,
    price_per_kwh: float | None = None,
) -> BenchResult:
    """Run `workload` (or the given `plan`) for `seconds` and keep the run in the notebook.

    Raises UsageError for an impossible load, EngineError when the server can't be used or `stop`
    comes before that is known,
    NotebookError when the run can't be written down from its beginning.
    """
    planned = plan or make_load(workload, seconds=seconds, seed=seed)
    seen = counted_window(planned.seconds, warm_up, drain)
    ctx.emit(StageStarted(stage=STAGE, sentence=f"Asking {base_url(target.url)} who it is."))
    async with contextlib.AsyncExitStack() as stack:
        server = await _unless_stopped(stop, stack.enter_async_context(prepared(target)))
        entry = RunEntry(ctx, server, workload, planned, salt=salt, replayed=plan) if keep else None
        with entry.open(seen) if entry else contextlib.nullcontext():
            made = await run_once(
                ctx,
                server,
                workload,
                planned,
                salt=salt,
                warm_up=warm_up,
                drain=drain,
                stop=stop,
                watch=keep,
                keep=entry.so_far if entry else None,
            )
            trace = plan.workload if plan else None
            made = replace(made, price_per_kwh=price_per_kwh, trace=trace)
            result = await beside(entry.ended, made) if entry else made
    ctx.emit(StageEnded(stage=STAGE, sentence=bench_sentence(result)))
    return result


async def _unless_stopped(stop: asyncio.Event | None, asking: Coroutine[Any, Any, T]) -> T:
    """What `asking` gives; raises EngineError when the run is stopped before it does."""
    task = asyncio.ensure_future(asking)
    stopper = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait({task, stopper}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise EngineError("stopped before a request of the load was sent: nothing was measured.")
    finally:
        stopper.cancel()
        task.cancel()
        await asyncio.gather(stopper, task, return_exceptions=True)


def make_load(workload: Workload, *, seconds: float, seed: int) -> LoadPlan:
    """The planned load; raises UsageError where the workload can't be meant."""
    try:
        return plan_load(workload, seed=seed, seconds=seconds)
    except ValueError as error:
        raise UsageError(f"workload {workload.name}: {error}.") from error


def counted_window(seconds: float, warm_up: float | None, drain: float | None) -> Window:
    """What counts of a run of `seconds`; raises UsageError where its edges leave nothing."""
    seen = window(seconds, warm_up, drain)
    if seen.warm_up_s + seen.drain_s < seconds:
        return seen
    raise UsageError(
        f"warm-up ({seen.warm_up_s:.3g} s) and drain ({seen.drain_s:.3g} s) leave nothing of a run "
        f"of {seconds:.3g} s to be counted.",
        do_next="Give a longer --seconds, or a shorter --warm-up or --drain.",
    )


async def run_once(
    ctx: Context,
    server: Prepared,
    workload: Workload,
    plan: LoadPlan,
    *,
    salt: int = 0,
    warm_up: float | None = None,
    drain: float | None = None,
    stop: asyncio.Event | None = None,
    watch: bool = True,
    keep: Keep | None = None,
) -> BenchResult:
    """One load against a prepared server; tells events, writes no entry of its own.

    Without `watch` the router's events are not followed, and the result has no server side.
    `keep` is given what is about to be told of the run while it goes on.
    """
    run_id = f"hs{secrets.token_hex(4)}"
    arrivals = workload.arrivals
    ctx.emit(
        LoadStarted(
            workload=workload.name,
            rate_requests_per_s=arrivals.rate_requests_per_s,
            seconds=plan.seconds,
            classes=workload.classes,
        )
    )
    counter = LoadCounter(ctx, plan, STAGE, keep)
    async with _events(ctx, server, watch) as box:
        async with counter.telling():
            load = await run_load(
                server.session,
                server.endpoint,
                plan,
                run_id=run_id,
                salt=salt,
                tell=counter.count,
                stop=stop,
                ttft_target_s=workload.targets.ttft_s,
            )
        timed = await _told(box, load)
        seen = window(load.offered_s, warm_up, drain)
        side = await beside(_server_side, timed, workload, _idle_w(ctx, server), load, seen)
    status = await read_router_status(server.session, server.target.url, server.target.api_key)
    offered = replace(plan, seconds=load.offered_s)
    # Intervals of many requests take seconds.
    summary = await beside(
        summarise, offered, load.logs, workload.targets, warm_up=warm_up, drain=drain
    )
    result = _result(server, status, workload, plan, load, side, salt, summary)
    result = replace(result, timed=timed)
    ctx.emit(LoadEnded(workload=workload.name, figures=result.summary.figures))
    return result


@contextlib.asynccontextmanager
async def _events(
    ctx: Context, server: Prepared, watch: bool
) -> AsyncGenerator[EventBox | None, None]:
    """The router's events during the block; None unwatched or from a foreign server."""
    if server.status is None or not watch:
        yield None
        return
    async with watching(ctx, base_url(server.target.url), server.target.api_key) as box:
        yield box


async def _told(box: EventBox | None, load: LoadResult) -> Timed | None:
    """What the router told of this run, once its last records are here."""
    if box is None:
        return None
    await box.wait_for({log.request_id for log in load.logs})
    return await beside(gather, list(box.events), load.run_id)


def _server_side(
    timed: Timed | None,
    workload: Workload,
    idle_w: dict[str, float],
    load: LoadResult,
    seen: Window,
) -> ServerSide | None:
    """The server's figures of what counts of a run; None where nobody listened to it."""
    if timed is None:
        return None
    counted = {log.request_id for log in load.logs if seen.counts(log.due_s)}
    target_s = workload.targets.tpot_s
    return server_side(timed, tpot_target_s=target_s, idle_w=idle_w, counted=counted)


def _idle_w(ctx: Context, server: Prepared) -> dict[str, float]:
    """The power at rest of each box whose probe told it."""
    names = [worker.box for worker in server.status.workers] if server.status else []
    probed = ((name, probe_store.load_box(ctx.paths, name)) for name in names)
    return {name: box.idle_w.value for name, box in probed if box and box.idle_w.value is not None}


def _result(
    server: Prepared,
    status: RouterStatus | None,
    workload: Workload,
    plan: LoadPlan,
    load: LoadResult,
    side: ServerSide | None,
    salt: int,
    summary: RunSummary,
) -> BenchResult:
    late = _late(load, summary.figures)
    lag = (late_words(load.lag_p99_s or 0.0),) if late else ()
    gathered = (*_as_asked_note(side), *lag, *_background_notes(side))
    stopped = (stopped_words(load.offered_s, plan.seconds, load.logs),) if load.stopped else ()
    beside = (*server.endpoint.notes, *stopped, *_others_note(side), *gathered)
    return BenchResult(
        workload=workload,
        seconds=plan.seconds,
        seed=plan.seed,
        salt=salt,
        model=server.endpoint.model,
        api=server.endpoint.api,
        summary=replace(summary, notes=(*summary.notes, *beside)),
        beside=beside,
        gathered=gathered,
        late=late,
        server=side,
        setting=status.setting if status else None,
        fingerprint=status.fingerprint if status else None,
        loopback=server.loopback,
        boxes=tuple(worker.box for worker in status.workers) if status else (),
        started_at=load.started_at,
        lag_p99_s=load.lag_p99_s,
        stopped=load.stopped,
        logs=load.logs,
        url=None if status else server.endpoint.url,
    )


def _late(load: LoadResult, figures: Figures) -> bool:
    """Whether the generator woke late enough to colour the figures."""
    lag_s, each_s = load.lag_p99_s, figures.tpot_s.p50
    return lag_s is not None and each_s is not None and lag_s > DISTORTED_SHARE * each_s


def _others_note(side: ServerSide | None) -> tuple[str, ...]:
    if side is None or not side.others:
        return ()
    told = counted(side.others, "request")
    return (f"{told} of others ended meanwhile: the load was not this run's alone",)


def _as_asked_note(side: ServerSide | None) -> tuple[str, ...]:
    """What of a run was not served the way its mode says, where some was not."""
    if side is None or not side.not_as_asked:
        return ()
    return (as_asked_words(side.to_serve, side.not_as_asked),)


def _background_notes(side: ServerSide | None) -> tuple[str, ...]:
    """What ran on the boxes beside the load, where it was enough to colour the figures."""
    told = side.background.items() if side else ()
    return tuple(words for box, seen in told if (words := background_words(box, seen)))
