"""Waiting for one thing while listening to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def wait_listening(
    what: Coroutine[Any, Any, None], inbox: asyncio.Queue[_T], hear: Callable[[_T], None]
) -> None:
    """Wait for `what`; `hear` gets all that comes meanwhile, and ends the wait by raising."""

    async def listen() -> None:
        while True:
            hear(await inbox.get())

    waiting, listening = asyncio.ensure_future(what), asyncio.ensure_future(listen())
    try:
        await asyncio.wait({waiting, listening}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        listening.cancel()
        ends = await asyncio.gather(waiting, listening, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
