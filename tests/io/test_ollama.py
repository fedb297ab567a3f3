"""The load generator against a far end that speaks as Ollama's OpenAI doors do.

By its source (openai/openai.go, middleware/openai.go, 2026): fields it doesn't know are passed
over, `ignore_eos` among them; usage comes only where it is asked for, in a last chunk without
choices; the completions door then puts a usage of zeros on every other chunk; without a model
the list is null; an error has a message, a type and no code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from homesplit_engine.words import itl_s, tpot_s
from msgspec.structs import replace

from homesplit.core.load import plan_load
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.summary import RunSummary, summarise
from homesplit.core.workload import Arrivals, Targets, fixed_lengths
from homesplit.errors import EngineError
from homesplit.io.endpoint import Endpoint, connect
from homesplit.io.load import LoadResult, new_session, run_load
from tests.engine.router_kit import PATIENCE_S

MODEL = "smollm2:135m"
TOKENS = 8
ITL_S = 0.02
END_AFTER = 6
"""Its own end token comes here, whatever length was asked for."""
CONTEXT = 128
"""Longer prompts are cut to this, unsaid."""
PLAN = plan_load(
    fixed_lengths(
        20,
        TOKENS,
        name="small",
        arrivals=Arrivals(rate_requests_per_s=20.0, burstiness=0.0),
    ),
    seed=1,
    seconds=0.2,
)
USAGE_OF_ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def chunk(chat: bool, text: str, reason: str | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "cmpl-7", "object": kind, "created": 1, "model": MODEL}
    return {**head, "system_fingerprint": "fp_ollama", "choices": [choice]}


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    chat = "messages" in body
    if body["model"] != MODEL:
        message = f'model "{body["model"]}" not found, try pulling it first'
        error = {"message": message, "type": "not_found_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=404)
    said = " ".join(m["content"] for m in body["messages"]) if chat else body["prompt"]
    wants_usage = (body.get("stream_options") or {}).get("include_usage", False)
    tokens = min(END_AFTER, body["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def tell(value: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    for index in range(tokens):
        told = chunk(chat, f" w{index}", None)
        if wants_usage and not chat:
            told["usage"] = USAGE_OF_ZEROS
        await tell(told)
        await asyncio.sleep(ITL_S)
    last = chunk(chat, "", "stop" if tokens < body["max_tokens"] else "length")
    if wants_usage and not chat:
        last["usage"] = USAGE_OF_ZEROS
    await tell(last)
    if wants_usage:
        read = min(len(said.split()), CONTEXT)
        usage = {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}
        await tell({**last, "choices": [], "usage": usage})
    await response.write(b"data: [DONE]\n\n")
    return response


@contextlib.asynccontextmanager
async def ollama(*models: str) -> AsyncGenerator[str, None]:
    """A far end with these models; its address."""

    async def listed(_: web.Request) -> web.Response:
        cards = [{"id": m, "object": "model", "created": 1, "owned_by": "library"} for m in models]
        return web.json_response({"object": "list", "data": cards or None})

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    app.router.add_post("/v1/completions", answer)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def offered(url: str, api: Any, plan: Any = PLAN) -> tuple[LoadResult, Endpoint, RunSummary]:
    async with new_session() as session:
        endpoint = await connect(session, url, api=api)
        result = await run_load(session, endpoint, plan, run_id="run", drain_s=PATIENCE_S)
    return result, endpoint, summarise(plan, result.logs, Targets(), warm_up=0.0, drain=0.0)


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_every_token_keeps_its_own_moment_though_each_chunk_tells_zero_tokens(
    api: str,
) -> None:
    async with ollama(MODEL) as url:
        result, endpoint, _ = await offered(url, api)
    assert endpoint.model == MODEL and endpoint.fit.measured
    for log in result.logs:
        line = timeline(log)
        assert (log.outcome, log.tokens_from, log.output_tokens) == ("completed", "usage", 6)
        assert log.prompt_tokens == 20
        assert line.arrival_tokens == () and line.first_tokens == 1
        assert len(itl_s(line)) == 5
        assert tpot_s(line) == pytest.approx((line.token_s[-1] - line.token_s[0]) / 5)


async def test_answers_that_end_early_are_told_since_no_refusal_tells_it() -> None:
    async with ollama(MODEL) as url:
        _, endpoint, summary = await offered(url, None)
    assert endpoint.dialect.ignore_eos
    assert any("4 of 4 answers ended before the length" in note for note in summary.notes)


async def test_a_prompt_that_is_cut_to_the_context_is_told() -> None:
    workload = fixed_lengths(
        200, 2, name="long", arrivals=Arrivals(rate_requests_per_s=20.0, burstiness=0.0)
    )
    async with ollama(MODEL) as url, new_session() as session:
        endpoint = await connect(session, url)
        plan = plan_load(workload, seed=1, seconds=0.1)
        result = await run_load(session, endpoint, plan, run_id="run")
    notes = summarise(plan, result.logs, Targets(), warm_up=0.0, drain=0.0).notes
    assert any("fewer prompt tokens than were sent in 2 of 2" in note for note in notes)


async def test_a_stream_that_is_cut_off_has_no_count_of_zero_tokens() -> None:
    plan = plan_load(
        fixed_lengths(20, TOKENS, name="x", arrivals=Arrivals(rate_requests_per_s=20.0)),
        seed=1,
        seconds=0.2,
    )
    hasty = tuple(replace(request, cancel_after_s=2.5 * ITL_S) for request in plan.requests)
    async with ollama(MODEL) as url:
        result, _, _ = await offered(url, "completions", replace(plan, requests=hasty))
    cut: list[RequestLog] = [log for log in result.logs if log.arrival_s]
    assert all(log.outcome == "cancelled" for log in result.logs)
    assert all(log.output_tokens == len(log.arrival_s) for log in cut)


async def test_a_server_without_a_model_and_one_that_lacks_it_are_told_in_its_words() -> None:
    async with new_session() as session:
        async with ollama() as url:
            with pytest.raises(EngineError, match="lists no model"):
                await connect(session, url)
        async with ollama(MODEL) as url:
            with pytest.raises(EngineError, match="try pulling it first"):
                await connect(session, url, model="llama3")
