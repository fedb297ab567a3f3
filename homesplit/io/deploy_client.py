"""The little that deployment asks of a running router: is it well, and in which mode."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct

from homesplit.errors import EngineError

_ANSWER_S = 10.0


class _Status(Struct, frozen=True):
    setting: ModeSetting


async def read_setting(url: str, key: str | None) -> ModeSetting:
    """The mode in force; raises aiohttp.ClientError, OSError, TimeoutError or MsgspecError."""
    raw = await _get(f"{url}/homesplit/status", key)
    return msgspec.json.decode(raw, type=_Status).setting


async def wait_healthy(url: str, key: str | None, *, wait_s: float) -> None:
    """Return once `/health` answers 200; raises EngineError when it does not in time."""
    why = "no answer"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    await _get(f"{url}/health", key)
                    return
                except (aiohttp.ClientError, OSError) as error:
                    why = str(error) or type(error).__name__
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise EngineError(
            f"The router does not become healthy within {wait_s:.0f} s ({why}).",
            do_next="Its log lies in the box's run folder.",
        ) from None


async def _get(url: str, key: str | None) -> bytes:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(url) as reply,
    ):
        reply.raise_for_status()
        return await reply.read()
