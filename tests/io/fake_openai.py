"""A fake OpenAI-compatible server over real HTTP, with settable latency and bad manners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from aiohttp import web
from homesplit_engine.records import TTFT_TARGET_HEADER

FirstChunk = Literal["content", "role", "empty"]
ROUNDS_TO_READ = 10


@dataclass(slots=True, kw_only=True)
class Manners:
    """How the fake server behaves; times in seconds."""

    ttft_s: float = 0.01
    itl_s: float = 0.002
    tokens_per_chunk: int = 1
    usage: bool = True
    chunk_usage: bool = False
    first: FirstChunk = "content"
    first_wait_s: float = 0.0
    """How long after the first, empty chunk the content starts."""
    reasoning_only: bool = False
    comment: bool = False
    whole: bool = False
    """The whole answer as one chunk of the stream."""
    json_reply: bool = False
    """One JSON document instead of a stream."""
    no_chunks: bool = False
    hold_back: int = 1
    """So many chunks are sent in one write, as a proxy's buffer lets them through."""
    break_after: int | None = None
    """Close the connection after this many tokens."""
    error_after: int | None = None
    """Send an error event after this many tokens."""
    refuse_with: int | None = None
    answers_once_seen: int = 0
    """Answer no request of a load before so many have come."""
    serves_first: int | None = None
    """So many requests of a load are served; all that come after them are refused."""
    serve_one_in: int = 1
    """Only one in so many requests is answered, the others get `refuse_with`."""
    eos_after: int | None = None
    strict_fields: bool = False
    """Refuse fields that OpenAI's own server doesn't know."""
    chat_only: bool = False
    model: str = "fake"
    card: dict[str, Any] = field(default_factory=dict[str, Any])
    """What its list of models tells beside the name."""
    template_tokens: int = 0
    api_key: str | None = None


@dataclass(slots=True)
class Seen:
    """One request as the server saw it, with the moments at which it wrote its tokens."""

    body: dict[str, Any]
    request_id: str | None
    received_ns: int
    writes_ns: list[int] = field(default_factory=list[int])
    """When each chunk was ready; one that is held back goes out with the last of its bundle."""
    closed_by_client: bool = False
    ttft_target: str | None = None


@dataclass(slots=True)
class FakeServer:
    """The running server: where it is, how it behaves now, what it has seen."""

    url: str
    manners: Manners
    seen: list[Seen] = field(default_factory=list[Seen])
    writing: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once as many have come as `answers_once_seen` asks for."""

    def load_requests(self) -> list[Seen]:
        """What it saw of a load: all requests but the calibration's."""
        return [s for s in self.seen if s.request_id is not None]


@contextlib.asynccontextmanager
async def fake_server(
    manners: Manners | None = None, *, more: Sequence[web.RouteDef] = ()
) -> AsyncGenerator[FakeServer, None]:
    """Serve on a free port of the loopback until the block ends; `more` are further doors."""
    server = FakeServer(url="", manners=manners or Manners())
    app = web.Application(client_max_size=64 * 2**20)

    async def completions(request: web.Request) -> web.StreamResponse:
        return await _answer(server, request, chat=False)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _answer(server, request, chat=True)

    async def models(_: web.Request) -> web.Response:
        card = {"id": server.manners.model, **server.manners.card}
        return web.json_response({"object": "list", "data": [card]})

    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_routes(more)
    # Streams of events have no end of their own, so there is nothing to wait for.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def _answer(server: FakeServer, request: web.Request, *, chat: bool) -> web.StreamResponse:
    manners = server.manners
    received_ns = time.monotonic_ns()
    body = msgspec.json.decode(await request.read())
    seen = Seen(body, request.headers.get("X-Request-Id"), received_ns)
    seen.ttft_target = request.headers.get(TTFT_TARGET_HEADER)
    server.seen.append(seen)
    if len(server.load_requests()) >= manners.answers_once_seen:
        server.enough.set()
    refusal = _refusal(server, request, body, chat)
    if refusal is not None:
        return refusal
    total = body.get("max_tokens") or body.get("max_completion_tokens") or 16
    if manners.eos_after is not None:
        total = min(total, manners.eos_after)
    prompt_tokens = manners.template_tokens + len(_prompt(body).split())
    if manners.json_reply:
        return await _json(manners, seen, total, prompt_tokens, chat)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    server.writing += 1
    try:
        if manners.answers_once_seen and seen.request_id is not None:
            await server.enough.wait()
        await response.prepare(request)
        await _stream(manners, seen, response, body, total, prompt_tokens, chat)
    except (asyncio.CancelledError, ConnectionError):
        seen.closed_by_client = True
        raise
    finally:
        server.writing -= 1
    return response


def _refusal(
    server: FakeServer, request: web.Request, body: dict[str, Any], chat: bool
) -> web.Response | None:
    manners = server.manners
    if manners.api_key and request.headers.get("Authorization") != f"Bearer {manners.api_key}":
        return _error(401, "wrong key")
    if manners.chat_only and not chat:
        return _error(404, "no such door")
    if manners.strict_fields:
        unknown = "ignore_eos" in body or "continuous_usage_stats" in body.get("stream_options", {})
        if unknown:
            return _error(400, "Unrecognized request argument supplied")
    most = manners.serves_first
    if most is not None and len(server.load_requests()) > most:
        return _error(503, "too busy")
    if manners.refuse_with and len(server.seen) % manners.serve_one_in != 0:
        return _error(manners.refuse_with, "too busy")
    if manners.refuse_with and manners.serve_one_in == 1:
        return _error(manners.refuse_with, "too busy")
    return None


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": None}}, status=status)


def _prompt(body: dict[str, Any]) -> str:
    if "messages" in body:
        return " ".join(message["content"] for message in body["messages"])
    return str(body["prompt"])


def token(index: int) -> str:
    """The text of one token of an answer."""
    return f" w{index:03d}"


async def _json(
    manners: Manners, seen: Seen, total: int, prompt_tokens: int, chat: bool
) -> web.Response:
    await asyncio.sleep(manners.ttft_s + manners.itl_s * (total - 1))
    text = "".join(token(i) for i in range(total))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    seen.writes_ns.append(time.monotonic_ns())
    reply: dict[str, Any] = {"choices": [choice]}
    if manners.usage:
        reply["usage"] = _usage(prompt_tokens, total)
    return web.json_response(reply)


def _usage(prompt_tokens: int, total: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": total,
        "total_tokens": prompt_tokens + total,
    }


async def _stream(
    manners: Manners,
    seen: Seen,
    response: web.StreamResponse,
    body: dict[str, Any],
    total: int,
    prompt_tokens: int,
    chat: bool,
) -> None:
    if manners.no_chunks:
        await response.write(b"data: [DONE]\n\n")
        return
    if manners.comment:
        await response.write(b": ping\n\n")
    if manners.first != "content":
        delta = {"role": "assistant", "content": ""} if manners.first == "role" else {"content": ""}
        await _event(response, _choice(delta, "", chat, None))
        await asyncio.sleep(manners.first_wait_s)
    start = asyncio.get_running_loop().time()
    held = b""
    each = total if manners.whole else manners.tokens_per_chunk
    for begin in range(0, total, each):
        end = min(begin + each, total)
        # A server that bundles holds its first tokens back until the bundle is full.
        await _until(start + manners.ttft_s + (end - 1) * manners.itl_s)
        if manners.error_after is not None and begin >= manners.error_after:
            await _event(response, {"error": {"message": "the engine failed"}})
            return
        if manners.break_after is not None and begin >= manners.break_after:
            transport = response._req.transport  # pyright: ignore
            if transport is not None:
                transport.abort()
            return
        text = "".join(token(i) for i in range(begin, end))
        delta = {"reasoning_content": text} if manners.reasoning_only else {"content": text}
        chunk = _choice(delta, text, chat, "length" if end == total else None)
        if manners.chunk_usage:
            chunk["usage"] = _usage(prompt_tokens, end)
        seen.writes_ns.append(time.monotonic_ns())
        held += b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        if end == total or len(seen.writes_ns) % manners.hold_back == 0:
            await response.write(held)
            held = b""
            await _let_it_be_read()
    if manners.usage and body.get("stream_options", {}).get("include_usage"):
        await _event(response, {"choices": [], "usage": _usage(prompt_tokens, total)})
    await response.write(b"data: [DONE]\n\n")


def _choice(
    delta: dict[str, str], text: str, chat: bool, finish_reason: str | None
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason}
    choice |= {"delta": delta} if chat else {"text": text}
    return {"choices": [choice]}


async def _event(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + msgspec.json.encode(value) + b"\n\n")


async def _let_it_be_read() -> None:
    """Let a client on this event loop read what was written before there is more of it.

    Without this, one pause of this computer would let two chunks arrive as one.
    """
    for _ in range(ROUNDS_TO_READ):
        await asyncio.sleep(0)


async def _until(moment: float) -> None:
    left = moment - asyncio.get_running_loop().time()
    if left > 0:
        await asyncio.sleep(left)
