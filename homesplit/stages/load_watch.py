"""What goes on beside a running load: progress told once a second, the router's events kept."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from homesplit.core.events import Event, Progress, RequestDone, StatusSeen
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.errors import NotebookError
from homesplit.stages.context import Context

TELL_EVERY_S = 1.0
FIRST_EVENT_S = 3.0
"""How long to wait for the router's event stream before a load begins."""
LAST_RECORDS_S = 2.0
"""How long to wait after a load for the router's last records."""
MAX_EVENTS = 500_000
"""Of one run; of what comes later only the requests' records and the boxes' state (power) are."""


Keep = Callable[[str, Sequence[RequestLog]], Awaitable[None]]
"""Takes what is about to be told of a run, and the requests that ended since the last time."""


class LoadCounter:
    """Counts what has ended and tells it once a second; what is told was kept before."""

    def __init__(self, ctx: Context, plan: LoadPlan, stage: str, keep: Keep | None = None) -> None:
        self._ctx = ctx
        self._plan = plan
        self._stage = stage
        self._keep = keep
        self._fresh: list[RequestLog] = []
        self._ended = 0
        self._bad: Counter[str] = Counter()
        self._began = time.monotonic()

    def count(self, log: RequestLog) -> None:
        """One request has ended."""
        self._ended += 1
        if self._keep is not None:
            self._fresh.append(log)
        if log.outcome != "completed":
            self._bad[log.outcome] += 1

    @contextlib.asynccontextmanager
    async def telling(self) -> AsyncGenerator[None, None]:
        """Tell the progress until the block ends."""
        self._began = time.monotonic()
        task = asyncio.create_task(self._tell(), name="load-progress")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            passed_s = time.monotonic() - self._began
            left_s = max(0.0, self._plan.seconds - passed_s)
            told = f"{passed_s:.0f} s: {ended_words(self._ended, self._bad)}"
            await self._kept(told)
            self._ctx.emit(
                Progress(
                    stage=self._stage,
                    step="load",
                    done=min(passed_s, self._plan.seconds),
                    total=self._plan.seconds,
                    unit="s",
                    left_s=left_s,
                    sentence=told,
                )
            )

    async def _kept(self, told: str) -> None:
        """Into the notebook before it is shown; a run goes on where that can't be."""
        if self._keep is None:
            return
        fresh, self._fresh = self._fresh, []
        try:
            await self._keep(told, fresh)
        except NotebookError as error:
            self._keep = None
            said = f"This run is not in the notebook as it goes: {error.sentence()}"
            self._ctx.emit(Progress(stage=self._stage, step="write", sentence=said))


def ended_words(ended: int, bad: Mapping[str, int]) -> str:
    """How many requests have ended, and how many of them in another way than whole."""
    words = {"rejected": "refused", "failed": "failed", "cancelled": "given up"}
    told = [f"{count} {words.get(kind, kind)}" for kind, count in bad.items()]
    return ", ".join([f"{ended} request{'' if ended == 1 else 's'} ended", *told])


class EventBox:
    """The router's events of one run, kept as they come."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first = asyncio.Event()
        self._records: set[str] = set()
        self._more = asyncio.Event()

    def take(self, event: Event) -> None:
        """Keep one event."""
        self.first.set()
        if len(self.events) < MAX_EVENTS or isinstance(event, RequestDone | StatusSeen):
            self.events.append(event)
        if isinstance(event, RequestDone):
            self._records.add(event.record.request_id)
            self._more.set()

    async def wait_for(self, ids: set[str]) -> None:
        """Until the records of all these requests are here, or the time for that is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_RECORDS_S):
                while not ids <= self._records:
                    self._more.clear()
                    await self._more.wait()


@contextlib.asynccontextmanager
async def watching(ctx: Context, url: str, api_key: str | None) -> AsyncGenerator[EventBox, None]:
    """Follow the router's event stream until the block ends."""
    # Imported here: the stages of serving pull in more than a foreign server needs.
    from homesplit.stages.serve import follow

    box = EventBox()
    own = replace(ctx, emit=box.take)
    task = asyncio.create_task(follow(own, url, api_key), name="load-events")
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(box.first.wait(), FIRST_EVENT_S)
        yield box
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
