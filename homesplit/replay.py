"""A controller that plays a recorded run: every screen draws, no machine is touched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from homesplit.controller import Controller, Opened
from homesplit.core.events import Event, Progress, StageEnded
from homesplit.errors import UsageError
from homesplit.stages.context import Context

LONGEST_GAP_S = 3.0
"""Waits in which nothing happened are cut to this."""
TELL_S = 1.0
PLAY = "replay"


class Replay(Controller):
    """Applies recorded events at their own pace, `speed` times as fast; 0 means at once.

    Nothing but the recording ever runs: a command that would act on a machine is refused.
    """

    recorded = True

    def __init__(self, recorded: Sequence[tuple[float, Event]], *, speed: float = 1.0) -> None:
        super().__init__()
        self._recorded = _without_gaps(recorded)
        self._speed = speed

    def begin(self) -> None:
        """Start playing."""
        if self._speed <= 0:
            for _, event in self._recorded:
                self.emit(event)
        else:
            self.start(PLAY, self._play)

    def start(self, name: str, work: Callable[[Context], Awaitable[object]]) -> None:
        """Play; refuse everything else."""
        if name == PLAY:
            super().start(name, work)
            return
        why = "this is a recording: nothing is behind it that could act"
        self.fail(name, UsageError(why, do_next="Start homesplit without --replay."))

    async def _play(self, ctx: Context) -> None:
        began = time.monotonic()
        told_s = -TELL_S
        whole_s = self._recorded[-1][0] if self._recorded else 0.0
        for at_s, event in self._recorded:
            wait_s = at_s / self._speed - (time.monotonic() - began)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if at_s - told_s >= TELL_S * self._speed:
                told_s = at_s
                left_s = (whole_s - at_s) / self._speed
                ctx.emit(Progress(stage=PLAY, step="play", done=at_s, total=whole_s, left_s=left_s))
            ctx.emit(event)
        ctx.emit(StageEnded(stage=PLAY, sentence="The recording has ended."))

    def begin_demo(self) -> None:
        """A recording has no demo of its own."""
        self.begin()

    def read_notebook(self) -> None:
        """The recording has its entries; this machine's own are none of it."""

    async def opened(self, entry_id: str) -> Opened | None:
        """Only an entry's sentence was recorded."""
        why = "a recording holds the entries' sentences, not their figures"
        self.fail("notebook", UsageError(why, do_next="Start homesplit without --replay."))
        return None


def _without_gaps(recorded: Sequence[tuple[float, Event]]) -> tuple[tuple[float, Event], ...]:
    """The same events with long silences cut short."""
    found: list[tuple[float, Event]] = []
    before_s, now_s = 0.0, 0.0
    for at_s, event in recorded:
        now_s += min(max(at_s - before_s, 0.0), LONGEST_GAP_S)
        before_s = at_s
        found.append((now_s, event))
    return tuple(found)
