"""A controller that plays a recorded run: every screen draws, no machine is touched."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from homesplit.controller import Controller, Opened
from homesplit.core.events import Event, Progress, StageEnded
from homesplit.core.state import RunState
from homesplit.errors import UsageError
from homesplit.stages.context import Context
from homesplit.view.chapters import at, chapters
from homesplit.view.machines import moment

LONGEST_GAP_S = 3.0
"""Waits in which nothing happened are cut to this."""
TELL_S = 1.0
SINCE_PROBE = timedelta(minutes=1)
"""A recording tells no time of day but that of the probes."""
PLAY = "replay"


class Replay(Controller):
    """Applies recorded events at their own pace, `speed` times as fast; 0 means at once.

    Nothing but the recording ever runs: a command that would act on a machine is refused.
    """

    recorded = True

    def __init__(self, recorded: Sequence[tuple[float, Event]], *, speed: float = 1.0) -> None:
        super().__init__()
        self._recorded = _without_gaps(recorded)
        self._chapters = chapters(self._recorded)
        self._speed = speed
        self._next = 0
        """The event that is told next."""
        self._began_s = 0.0
        """When the recording would have begun, had it been played from there to here."""
        self._jumped = asyncio.Event()

    def begin(self) -> None:
        """Start playing."""
        if self._speed <= 0:
            self._tell_until(len(self._recorded))
        else:
            self._play_on()

    def start(self, name: str, work: Callable[[Context], Awaitable[object]]) -> None:
        """Play; refuse everything else."""
        if name == PLAY:
            super().start(name, work)
            return
        why = "this is a recording: nothing is behind it that could act"
        self.fail(name, UsageError(why, do_next="Start homesplit without --replay."))

    def wall_clock(self) -> datetime:
        """The time of day soon after the last probe, when the run was recorded."""
        told = [profile.probed_at for profile in self.state.profiles.values()]
        moments = [then for at in told if (then := moment(at)) is not None]
        return max(moments) + SINCE_PROBE if moments else super().wall_clock()

    # ------------------------------------------------------------------------- chapters

    @property
    def leads_to(self) -> str | None:
        """The screen of the chapter that is being played; None where all was shown at once."""
        if not self._chapters or self._speed <= 0:
            return None
        return self._chapters[self._chapter].screen

    @property
    def chapter_words(self) -> str:
        """The chapter's number, how many there are, and its name."""
        if self.leads_to is None:
            return ""
        number = self._chapter
        return f"{number + 1} of {len(self._chapters)}, {self._chapters[number].title}"

    @property
    def _chapter(self) -> int:
        return at(self._chapters, max(self._next - 1, 0))

    def skip(self, by: int) -> None:
        """Go `by` chapters ahead, or back."""
        wanted = self._chapter + by
        if self.leads_to is None or wanted >= len(self._chapters):
            return
        place = self._chapters[max(wanted, 0)].first
        if place < self._next:
            self._forget()
        self._tell_until(place + 1)
        self._play_on()

    def _forget(self) -> None:
        """Back to before the first event."""
        self._waiting.clear()
        self._state = RunState()
        self._next = 0
        self.version += 1

    # -------------------------------------------------------------------------- playing

    def _tell_until(self, place: int) -> None:
        """Tell all events before number `place` at once."""
        for _, event in self._recorded[self._next : place]:
            self.emit(event)
        self._next = max(self._next, place)

    def _play_on(self) -> None:
        """Play from the next event on, which comes after its own pause."""
        reached_s = self._recorded[self._next - 1][0] if self._next else 0.0
        self._began_s = time.monotonic() - reached_s / self._speed
        self._jumped.set()
        self.start(PLAY, self._play)

    async def _play(self, ctx: Context) -> None:
        told_s = -TELL_S
        while self._next < len(self._recorded):
            at_s, event = self._recorded[self._next]
            if await self._has_jumped(at_s / self._speed - (time.monotonic() - self._began_s)):
                told_s = -TELL_S
                continue
            if abs(at_s - told_s) >= TELL_S * self._speed:
                told_s = at_s
                ctx.emit(self._progress(at_s))
            self._next += 1
            ctx.emit(event)
        ctx.emit(StageEnded(stage=PLAY, sentence="The recording has ended."))

    async def _has_jumped(self, wait_s: float) -> bool:
        """Wait for the next event's moment; whether another place was chosen meanwhile."""
        self._jumped.clear()
        if wait_s <= 0:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._jumped.wait()
        return self._jumped.is_set()

    def _progress(self, at_s: float) -> Progress:
        whole_s = self._recorded[-1][0]
        return Progress(
            stage=PLAY,
            step="play",
            done=at_s,
            total=whole_s,
            left_s=(whole_s - at_s) / self._speed,
            sentence=self.chapter_words,
        )

    def begin_demo(self) -> None:
        """A recording has no demo of its own."""
        self.begin()

    def look_at_boxes(self) -> None:
        """What lay on them was recorded."""

    def read_notebook(self) -> None:
        """The recording has its entries; this machine's own are none of it."""

    async def opened(self, entry_id: str) -> Opened | None:
        """Only an entry's sentence was recorded."""
        why = "a recording holds the entries' sentences, not their figures"
        self.fail("notebook", UsageError(why, do_next="Start homesplit without --replay."))
        return None

    async def looked_at(self, entry_id: str) -> Opened | None:
        """There is nothing to look at."""
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
