"""One streamed chat answer, as any client of the OpenAI-style API would ask for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import aiohttp
import msgspec

from homesplit.errors import EngineError
from homesplit.io.endpoint import base_url, request_headers

MAX_LINE_BYTES = 1 << 20
SILENCE_S = 120.0
"""Longest wait between two pieces of an answer."""

TEMPERATURE, TOP_P = 0.2, 0.9
"""As the model card of SmolLM2-Instruct asks; at 1.0 a model this small wanders off."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


async def stream(
    url: str,
    api_key: str | None,
    model: str,
    messages: Sequence[tuple[str, str]],
    *,
    max_tokens: int = 256,
) -> AsyncGenerator[str, None]:
    """The pieces of the answer as they come; raises EngineError in words."""
    body = {
        "model": model,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": max_tokens,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "stream": True,
    }
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=MAX_LINE_BYTES) as session,
            session.post(
                f"{base_url(url)}/v1/chat/completions", json=body, headers=request_headers(api_key)
            ) as reply,
        ):
            if reply.status != 200:
                told = (await reply.content.read(500)).decode(errors="replace")
                raise EngineError(
                    f"the model did not answer ({reply.status}): {told}",
                    do_next="Look at `homesplit status`, then ask again.",
                )
            async for raw in reply.content:
                piece = _piece(raw)
                if piece:
                    yield piece
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"the answer broke off: {error or type(error).__name__}",
            do_next="Monitor shows which box still answers; ask again.",
        ) from error


def _piece(raw: bytes) -> str:
    """The text of one line of the stream; empty when it carries none."""
    data = raw.strip().removeprefix(b"data:").strip()
    if not data or data == b"[DONE]" or not data.startswith(b"{"):
        return ""
    chunk = msgspec.json.decode(data, type=_Chunk)
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""
