"""A controller that plays a recorded run: every screen draws, no machine is touched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from homesplit.controller import Controller
from homesplit.core.events import Event
from homesplit.stages.context import Context


class Replay(Controller):
    """Applies recorded events at their own pace, `speed` times as fast; 0 means at once."""

    def __init__(self, recorded: Sequence[tuple[float, Event]], *, speed: float = 1.0) -> None:
        super().__init__()
        self._recorded = recorded
        self._speed = speed

    def begin(self) -> None:
        """Start playing."""
        if self._speed <= 0:
            for _, event in self._recorded:
                self.emit(event)
        else:
            self.start("replay", self._play)

    async def _play(self, ctx: Context) -> None:
        began = time.monotonic()
        for at_s, event in self._recorded:
            wait_s = at_s / self._speed - (time.monotonic() - began)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            ctx.emit(event)

    def begin_demo(self) -> None:
        """A recording has no demo of its own."""
        self.begin()
