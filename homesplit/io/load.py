"""Sends a planned load to a server and stamps every arrival; decides nothing about it.

Send times are fixed beforehand: a slow server can't slow an open loop. TTFT as the client
sees it starts when the request is handed to the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import aiohttp
from homesplit_engine.records import TTFT_TARGET_HEADER, Outcome

from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.measured import CUT, RequestLog
from homesplit.io.answer import Answer, AnswerError, refusal_text
from homesplit.io.endpoint import Endpoint, request_body
from homesplit.io.kept_connections import posted, watching_reuse

REQUEST_S = 600.0
"""Longest life of one request."""
CONNECT_S = 10.0
DRAIN_S = 120.0
"""How long the last requests may take after offering has ended; later ones failed by time-out."""
STOPPED_S = 20.0
"""The same for a run that the person has stopped."""
PREPARED_BYTES = 64 * 2**20
"""Request bodies made before the run begins; the others are made while waiting to send."""
_REFUSED = (429, 503, 529)
_LAG_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Every request that was offered, in the order of the plan, and how the generator did."""

    logs: tuple[RequestLog, ...]
    started_at: str
    """UTC, ISO 8601."""
    lag_p99_s: float | None
    """How late this process's own event loop woke: a bound on the error of its stamps."""
    stopped: bool
    offered_s: float
    """How long requests were offered: to the plan's end, or until it was stopped."""
    run_id: str


@dataclass(slots=True)
class _Run:
    """What the requests of one run share while it goes on."""

    session: aiohttp.ClientSession
    endpoint: Endpoint
    plan: LoadPlan
    salt: int
    run_id: str
    tell: Callable[[RequestLog], None]
    stop: asyncio.Event
    ttft_target_s: float | None = None
    start_ns: int = 0
    bodies: dict[int, bytes] = field(default_factory=dict[int, bytes])
    logs: dict[int, RequestLog] = field(default_factory=dict[int, RequestLog])
    ended: dict[int, asyncio.Event] = field(default_factory=dict[int, asyncio.Event])

    def seconds(self, moment_ns: int) -> float:
        return (moment_ns - self.start_ns) / 1e9

    def now_s(self) -> float:
        return self.seconds(time.monotonic_ns())


def new_session() -> aiohttp.ClientSession:
    """A client session without a limit on connections and with generous lines."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300)
    return aiohttp.ClientSession(
        connector=connector, read_bufsize=2**18, trace_configs=[watching_reuse()]
    )


def _tell_nobody(log: RequestLog) -> None:
    """No one wants to hear of single requests."""


async def run_load(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    plan: LoadPlan,
    *,
    run_id: str,
    salt: int = 0,
    tell: Callable[[RequestLog], None] = _tell_nobody,
    stop: asyncio.Event | None = None,
    drain_s: float = DRAIN_S,
    ttft_target_s: float | None = None,
) -> LoadResult:
    """Offer the plan's requests and wait for the answers; `stop` ends offering early.

    Once it is set nothing is sent, and answers on their way are waited for `STOPPED_S` at most;
    what is then left was given up by the user and is no failure.
    `ttft_target_s` is told to the server: homesplit's router refuses nobody for another one.
    """
    stop = stop or asyncio.Event()
    run = _Run(session, endpoint, plan, salt, run_id, tell, stop, ttft_target_s)
    _prepare(run)
    gc.collect()
    gc.freeze()
    lags: list[float] = []
    watcher = asyncio.create_task(_watch_lag(lags), name="load-lag")
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    run.start_ns = time.monotonic_ns()
    try:
        stopped, offered_s = await _offer(run, drain_s)
    finally:
        watcher.cancel()
        gc.unfreeze()
    lags.sort()
    return LoadResult(
        logs=tuple(run.logs[key] for key in sorted(run.logs)),
        started_at=started_at,
        lag_p99_s=lags[int(0.99 * (len(lags) - 1))] if lags else None,
        stopped=stopped,
        offered_s=offered_s,
        run_id=run_id,
    )


def _prepare(run: _Run) -> None:
    """Make the first bodies beforehand: making them takes time that sending hasn't."""
    total = 0
    for request in run.plan.requests:
        if request.user is not None and request.after is not None:
            continue
        body = request_body(run.endpoint, request, run.salt)
        total += len(body)
        run.bodies[request.id] = body
        if total > PREPARED_BYTES:
            return


async def _watch_lag(lags: list[float]) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(_LAG_EVERY_S)
        lags.append(time.monotonic() - before - _LAG_EVERY_S)


async def _offer(run: _Run, drain_s: float) -> tuple[bool, float]:
    """Start every request in its time; then wait for the answers.

    Whether it was stopped before all of it was offered or answered, and how long requests were
    offered, seconds.
    """
    chains = _chains(run.plan.requests)
    run.ended = {request.id: asyncio.Event() for chain in chains for request in chain}
    tasks: set[asyncio.Task[None]] = set()
    stopper = asyncio.create_task(run.stop.wait(), name="load-stop")
    try:
        for chain in chains:
            at_s = chain[0].send_at_s or 0.0
            if await _wait_until(run, at_s, stopper):
                break
            task = asyncio.create_task(_chain(run, chain, stopper), name=f"load-{chain[0].id}")
            tasks.add(task)
        await _offering_over(run, stopper, tasks)
        early = run.stop.is_set()
        offered_s = min(run.now_s(), run.plan.seconds) if early else run.plan.seconds
        await _drain(run, tasks, stopper, min(drain_s, STOPPED_S) if early else drain_s)
        return early or any(log.error == CUT for log in run.logs.values()), offered_s
    finally:
        stopper.cancel()
        await _cancel_all(tasks)


def _chains(requests: Sequence[OfferedRequest]) -> list[list[OfferedRequest]]:
    """Requests that wait for each other, in order; chains in the order of their first send."""
    by_first: dict[int, list[OfferedRequest]] = {}
    first_of: dict[int, int] = {}
    for request in requests:
        first = request.id if request.after is None else first_of[request.after]
        first_of[request.id] = first
        by_first.setdefault(first, []).append(request)
    return sorted(by_first.values(), key=lambda chain: chain[0].send_at_s or 0.0)


async def _wait_until(run: _Run, at_s: float, stopper: asyncio.Task[Literal[True]]) -> bool:
    """Sleep until `at_s` of the run; True when the run was stopped instead."""
    left_s = at_s - run.now_s()
    if left_s > 0:
        await asyncio.wait({stopper}, timeout=left_s)
    return run.stop.is_set()


async def _offering_over(
    run: _Run, stopper: asyncio.Task[Literal[True]], tasks: set[asyncio.Task[None]]
) -> None:
    """Until the plan's end, or everything planned is done (a closed loop may run dry)."""
    while not run.stop.is_set() and (left_s := run.plan.seconds - run.now_s()) > 0:
        pending = {task for task in tasks if not task.done()}
        if not pending and run.plan.closed:
            return
        await asyncio.wait({stopper, *pending}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not pending:
            return


async def _drain(
    run: _Run,
    tasks: set[asyncio.Task[None]],
    stopper: asyncio.Task[Literal[True]],
    drain_s: float,
) -> None:
    """Wait for the answers on their way; what is left then has failed by time-out.

    Who stops a run that is being drained waits no longer than for one that was stopped before.
    """
    pending = {task for task in tasks if not task.done()}
    if pending:
        every = asyncio.create_task(asyncio.wait(pending), name="load-drain")
        heard = set[asyncio.Task[Literal[True]]]() if stopper.done() else {stopper}
        await asyncio.wait({every, *heard}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if heard and stopper.done():
            await asyncio.wait({every}, timeout=min(drain_s, STOPPED_S))
        every.cancel()
    await _cancel_all(tasks)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _chain(
    run: _Run, chain: list[OfferedRequest], stopper: asyncio.Task[Literal[True]]
) -> None:
    """One conversation, or one user of a closed loop: each request after its predecessor."""
    due_s = chain[0].send_at_s
    for request in chain:
        if run.stop.is_set():
            return
        if due_s is None:
            due_s = run.now_s() + request.pause_s
            if due_s >= run.plan.seconds or await _wait_until(run, due_s, stopper):
                return
        await _one(run, request, due_s)
        due_s = None


@dataclass(slots=True)
class _Reply:
    """What became of one request so far."""

    answer: Answer = field(default_factory=Answer)
    status: int | None = None
    error: str | None = None
    streamed: bool = True


async def _one(run: _Run, request: OfferedRequest, due_s: float) -> None:
    """Send one request, read its answer, and keep its record whatever happens."""
    body = run.bodies.pop(request.id, None) or request_body(run.endpoint, request, run.salt)
    reply = _Reply()
    sent_ns = time.monotonic_ns()
    outcome: Outcome = "failed"
    try:
        outcome = await _within(run, request, body, reply)
    except asyncio.CancelledError:
        reply.error = "no answer before the end of the run's waiting time"
        if run.stop.is_set():
            outcome, reply.error = "cancelled", CUT
        raise
    finally:
        ended_ns = time.monotonic_ns()
        log = _log(run, request, reply, outcome, due_s, sent_ns, ended_ns)
        run.logs[request.id] = log
        run.tell(log)


async def _within(run: _Run, request: OfferedRequest, body: bytes, reply: _Reply) -> Outcome:
    """The exchange inside its time limits; a user who gives up closes the connection."""
    patience_s = request.cancel_after_s
    limit_s = REQUEST_S if patience_s is None else min(patience_s, REQUEST_S)
    try:
        async with asyncio.timeout(limit_s):
            await _exchange(run, request, body, reply)
    except TimeoutError:
        if patience_s is not None:
            return "cancelled"
        reply.error = f"no answer within {limit_s:.0f} s"
        return "failed"
    except (aiohttp.ClientError, OSError) as error:
        reply.error = f"the connection failed: {error or type(error).__name__}"
        return "failed"
    except AnswerError as error:
        reply.error = str(error)
        return "failed"
    return _judge(reply)


async def _exchange(run: _Run, request: OfferedRequest, body: bytes, reply: _Reply) -> None:
    headers = {**run.endpoint.headers, "X-Request-Id": f"{run.run_id}-{request.id}"}
    if run.ttft_target_s:
        headers[TTFT_TARGET_HEADER] = f"{run.ttft_target_s:g}"
    async with posted(
        run.session,
        run.endpoint.address,
        data=body,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
    ) as response:
        reply.status = response.status
        if response.status != 200:
            reply.error = f"{response.status} {refusal_text(await response.read())}".strip()
            return
        if "json" in response.content_type:
            reply.streamed = False
            raw = await response.read()
            reply.answer.whole(raw, time.monotonic_ns())
            return
        await _stream(response.content, reply.answer)


async def _stream(content: aiohttp.StreamReader, answer: Answer) -> None:
    with contextlib.suppress(aiohttp.ClientPayloadError):
        # A stream that breaks off is judged by what came: the finish reason tells.
        while data := await content.readany():
            answer.feed(data, time.monotonic_ns())
            if answer.done:
                break
    answer.close(time.monotonic_ns())


def _judge(reply: _Reply) -> Outcome:
    """Completed, rejected or failed, by what the server said."""
    if reply.status != 200:
        return "rejected" if reply.status in _REFUSED else "failed"
    answer = reply.answer
    if answer.error is not None:
        reply.error = f"the server broke off: {answer.error}"
        return "failed"
    if not answer.done and answer.finish_reason is None:
        reply.error = "the stream broke off without an end"
        return "failed"
    if not answer.arrivals:
        reply.error = "the answer holds no content"
        return "failed"
    return "completed"


def _log(
    run: _Run,
    request: OfferedRequest,
    reply: _Reply,
    outcome: Outcome,
    due_s: float,
    sent_ns: int,
    ended_ns: int,
) -> RequestLog:
    answer = reply.answer
    tokens, each, source = answer.token_counts()
    usage = answer.usage
    details = usage.prompt_tokens_details if usage else None
    return RequestLog(
        id=request.id,
        request_id=f"{run.run_id}-{request.id}",
        class_=request.class_,
        due_s=due_s,
        sent_s=run.seconds(sent_ns),
        outcome=outcome,
        arrival_s=tuple(run.seconds(moment) for moment in answer.arrivals),
        arrival_tokens=each,
        arrival_characters=tuple(len(text) for text in answer.texts),
        ended_s=run.seconds(answer.arrivals[-1] if outcome == "completed" else ended_ns),
        prompt_tokens_asked=request.prompt_tokens,
        output_tokens_asked=request.output_tokens,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=tokens,
        cached_tokens=details.cached_tokens if details else None,
        tokens_from=source,
        finish_reason=answer.finish_reason,
        text=answer.text,
        streamed=reply.streamed,
        reasoning=answer.reasoning,
        status=reply.status,
        error=reply.error,
    )
