"""Asks whether a server is homesplit's own router, and how it is set."""

from __future__ import annotations

import aiohttp
import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct, field

from homesplit.io.endpoint import base_url, request_headers

ASK_S = 10.0


class _ReadyFields(Struct):
    max_context: int | None = None


class StatusWorker(Struct):
    """One worker as the router lists it."""

    box: str
    alive: bool = True
    ready: _ReadyFields | None = None


class RouterStatus(Struct):
    """What the load generator needs of `GET /homesplit/status`."""

    model_name: str
    fingerprint: str | None = None
    setting: ModeSetting = field(default_factory=ModeSetting)
    loopback: bool = False
    workers: list[StatusWorker] = field(default_factory=list[StatusWorker])

    @property
    def max_context(self) -> int | None:
        """The longest prompt with its answer that every worker takes; None when not told."""
        told = [w.ready.max_context for w in self.workers if w.ready and w.ready.max_context]
        return min(told, default=None)


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
