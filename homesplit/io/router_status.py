"""Asks whether a server is homesplit's own router, and how it is set."""

from __future__ import annotations

import aiohttp
import msgspec
from homesplit_engine.status import RouterStatus

from homesplit.io.endpoint import base_url, request_headers

ASK_S = 10.0


async def read_router_status(
    session: aiohttp.ClientSession, url: str, api_key: str | None
) -> RouterStatus | None:
    """The router's status, None where the server isn't homesplit's or can't be reached."""
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    try:
        async with session.get(
            f"{base_url(url)}/homesplit/status", headers=request_headers(api_key), timeout=timeout
        ) as reply:
            if reply.status != 200:
                return None
            return msgspec.json.decode(await reply.read(), type=RouterStatus)
    except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.MsgspecError):
        return None
