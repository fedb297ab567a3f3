"""Watching and steering a deployment that serves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from homesplit_engine.records import ModeSetting, ModeSwitch
from homesplit_engine.status import RouterStatus

from homesplit.core.events import ModeSwitched, Progress
from homesplit.errors import EngineError, HomesplitError
from homesplit.io.engine_client import EngineClient
from homesplit.stages.context import Context

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Pauses between attempts to reach a router double from the first to the longest."""
HEARD = "events"
"""The step that tells whether the router is heard: its sentence is empty while it is."""


class Pauses:
    """Told waits between attempts to reach a router, each longer than the one before."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._next_s = FIRST_PAUSE_S
        self._began_s = time.monotonic()

    async def wait(self, error: HomesplitError) -> None:
        """Tell why the router is not heard and wait; after a good while begin with short ones."""
        if time.monotonic() - self._began_s > LONGEST_PAUSE_S:
            self._next_s = FIRST_PAUSE_S
        told = Progress(stage="serve", step=HEARD, sentence=error.what, left_s=self._next_s)
        self._ctx.emit(told)
        await asyncio.sleep(self._next_s)
        self._next_s = min(LONGEST_PAUSE_S, 2 * self._next_s)
        self._began_s = time.monotonic()


async def follow(
    ctx: Context, url: str, api_key: str | None, is_broken: Callable[[], bool] = lambda: False
) -> None:
    """Tell everything that the router tells, until cancelled; reconnects when it breaks.

    Raises EngineError once the way to it `is_broken`.
    """
    pauses = Pauses(ctx)
    async with EngineClient(url, api_key) as client:
        while True:
            try:
                await _follow_once(ctx, client)
            except EngineError as error:
                if is_broken():
                    raise
                await pauses.wait(error)


async def _follow_once(ctx: Context, client: EngineClient) -> None:
    heard = False
    async with contextlib.aclosing(client.events()) as events:
        async for event in events:
            if not heard:
                heard = True
                ctx.emit(Progress(stage="serve", step=HEARD))
            ctx.emit(event)


async def set_mode(ctx: Context, url: str, api_key: str | None, setting: ModeSetting) -> ModeSwitch:
    """Switch the mode of a serving deployment; raises EngineError."""
    async with EngineClient(url, api_key) as client:
        switch = await client.set_mode(setting)
    ctx.emit(ModeSwitched(switch=switch))
    return switch


async def read_status(url: str, api_key: str | None) -> RouterStatus:
    """What the router knows now; raises EngineError."""
    async with EngineClient(url, api_key) as client:
        return await client.status()
