"""A completions server whose latencies are its own: each answer's are fixed by its turn alone.

    python -m tests.bench.spread     prints its address, serves until its input ends

The n-th request waits TTFT_S[0] + (TTFT_S[1] - TTFT_S[0]) * frac(n * golden ratio) for its first
token and has the gaps of another such sequence. These are spread evenly (Weyl, 1916), so that a
percentile is a property of the server and not of the machine's noise, and every client that
starts it anew with POST /begin meets the very same latencies. GET /truth tells when it really
received and wrote what.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TTFT_S = (0.1, 0.5)
GAP_S = (0.010, 0.030)
TOKENS = 32
"""An answer of this length counts as one of the load; others are questions about the server."""
GOLDEN, SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


def between(ends: tuple[float, float], share: float) -> float:
    """The value at `share` of the way between two ends."""
    return ends[0] + (ends[1] - ends[0]) * share


@dataclass(slots=True)
class Seen:
    """One request: when it was received and when each token was written, monotonic seconds."""

    received_s: float
    written_s: list[float] = field(default_factory=list[float])


class Server:
    """The doors and what was seen since the last POST /begin."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.post("/v1/completions", self.completions),
            web.post("/begin", self.begin),
            web.get("/truth", self.truth),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """It lives."""
        return web.Response(text="ok")

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        card = {"id": "tiny", "object": "model", "created": 1, "owned_by": "bench"}
        return web.json_response({"object": "list", "data": [card | {"max_model_len": 4096}]})

    async def begin(self, _: web.Request) -> web.Response:
        """Count from the first request again."""
        self._seen = []
        return web.Response(text="ok")

    async def truth(self, _: web.Request) -> web.Response:
        """Receipt and writes of each whole answer of the load."""
        whole = [s for s in self._seen if len(s.written_s) == TOKENS]
        return web.json_response([[s.received_s, s.written_s] for s in whole])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """One answer, streamed."""
        seen = Seen(time.monotonic())
        body = await request.json()
        total = int(body.get("max_tokens") or 16)
        number = len(self._seen)
        if total == TOKENS:
            self._seen.append(seen)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        options = body.get("stream_options") or {}
        first_s = between(TTFT_S, number * GOLDEN % 1.0)
        gap_s = between(GAP_S, number * SILVER % 1.0)
        usage = _usage(body["prompt"], total)
        for index in range(total):
            await _until(seen.received_s + first_s + index * gap_s)
            chunk = _chunk(f" w{index}", "length" if index == total - 1 else None)
            if options.get("continuous_usage_stats"):
                chunk["usage"] = _usage(body["prompt"], index + 1)
            seen.written_s.append(time.monotonic())
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if options.get("include_usage"):
            last = {**_chunk("", None), "choices": [], "usage": usage}
            await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _chunk(text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
    return {**head, "choices": [choice]}


def _usage(prompt: str | Sequence[int], tokens: int) -> dict[str, int]:
    read = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    return {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}


async def _until(moment_s: float) -> None:
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        await asyncio.sleep(left_s)


async def serve() -> None:
    """Serve on a free port of the loopback until the input ends."""
    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_routes(Server().routes())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
