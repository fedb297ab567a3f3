"""POST over connections that are kept open, where the server may close one at any moment.

Some servers close a connection right after an answer without having said so. The next request
then fails on it though the server is well; it goes once more, by another connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

MOST_KEPT = 1_000
"""More closed connections than this in a row are not the server's tidiness."""


@dataclass(slots=True)
class _Seen:
    reused: bool = False


def watching_reuse() -> aiohttp.TraceConfig:
    """What a session needs for `posted` to tell kept connections from new ones."""
    config = aiohttp.TraceConfig()

    async def reused(_session: Any, context: Any, _what: Any) -> None:
        seen = context.trace_request_ctx
        if isinstance(seen, _Seen):
            seen.reused = True

    config.on_connection_reuseconn.append(reused)
    return config


@contextlib.asynccontextmanager
async def posted(
    session: aiohttp.ClientSession,
    url: str,
    *,
    data: bytes,
    headers: Mapping[str, str],
    timeout: aiohttp.ClientTimeout,
) -> AsyncGenerator[aiohttp.ClientResponse]:
    """The response to a POST; raises aiohttp's errors, but none of a kept connection's end."""
    response = await _response(session, url, data=data, headers=headers, timeout=timeout)
    async with response:
        yield response


async def _response(
    session: aiohttp.ClientSession, url: str, **words: Any
) -> aiohttp.ClientResponse:
    for _ in range(MOST_KEPT):
        seen = _Seen()
        try:
            return await session.post(url, trace_request_ctx=seen, **words)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            # Nothing of an answer has come: on a new connection that is the server's failure.
            if not seen.reused:
                raise
    return await session.post(url, **words)
