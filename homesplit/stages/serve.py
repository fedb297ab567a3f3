"""Watching and steering a deployment that serves."""

from __future__ import annotations

import asyncio
import contextlib
import time

from homesplit_engine.records import ModeSetting, ModeSwitch
from homesplit_engine.status import RouterStatus

from homesplit.core.events import ModeSwitched, Progress
from homesplit.errors import EngineError
from homesplit.io.engine_client import EngineClient
from homesplit.stages.context import Context

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Pauses between attempts to reach a router double from the first to the longest."""


async def follow(ctx: Context, url: str, api_key: str | None) -> None:
    """Tell everything that the router tells, until cancelled; reconnects when it breaks."""
    pause_s = FIRST_PAUSE_S
    async with EngineClient(url, api_key) as client:
        while True:
            began_s = time.monotonic()
            try:
                await _follow_once(ctx, client)
            except EngineError as error:
                if time.monotonic() - began_s > LONGEST_PAUSE_S:
                    pause_s = FIRST_PAUSE_S
                ctx.emit(
                    Progress(
                        stage="serve",
                        step="events",
                        sentence=f"{error.sentence()} Trying again in {pause_s:.1f} s.",
                        left_s=pause_s,
                    )
                )
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


async def _follow_once(ctx: Context, client: EngineClient) -> None:
    async with contextlib.aclosing(client.events()) as events:
        async for event in events:
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
