"""Runs stages as tasks and applies their events to the state; the controller builds on it."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.state import RunState, apply_all
from homesplit.errors import HomesplitError
from homesplit.io.event_log import EventLog
from homesplit.io.paths import Paths, user_paths
from homesplit.stages.context import Ask, AskNobody, Context

_STREAM = frozenset((events.StepSeen, events.TransferSeen, events.StatusSeen, events.RequestDone))
"""Events that come by the hundred: they wait, and are applied together when the state is read."""
MOST_WAITING = 1000
ENDLESS = ("discover", "serve", "record")
"""Stages that go on until they are let go, so that their end is nothing to tell."""


class StageRunner:
    """Holds the state; every stage runs as a task of its own that can be cancelled."""

    def __init__(
        self,
        *,
        paths: Paths | None = None,
        ask: Ask | None = None,
        log: EventLog | None = None,
        state: RunState | None = None,
    ) -> None:
        self._state = state or RunState()
        self._waiting: list[events.Event] = []
        self._arrived_s = 0.0
        self.version = 0
        """Grows with every event but the engine's own steps, hand-offs, requests and statuses."""
        self.stream_version = 0
        """Grows with those: screens look at them at their own pace."""
        self.details: dict[str, str] = {}
        """The full trace of a stage's last failure, for those who open it."""
        self.paths = paths or user_paths()
        self.ask: Ask = ask or AskNobody()
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()
        self._lead_s: float | None = None

    def wall_clock(self) -> datetime:
        """The time of day, for ages such as `4 min ago`."""
        return datetime.now(UTC)

    # -------------------------------------------------------------------------- events

    def emit(self, event: events.Event) -> None:
        """Apply an event; may be called from any thread."""
        if threading.get_ident() == self._thread or self._loop is None:
            self._apply(event)
        else:
            self._loop.call_soon_threadsafe(self._apply, event)

    def _apply(self, event: events.Event) -> None:
        self._waiting.append(event)
        self._arrived_s = time.monotonic()
        if self._log is not None:
            self._log.write(event)
        if type(event) in _STREAM:
            self.stream_version += 1
        else:
            self.version += 1
        if len(self._waiting) >= MOST_WAITING:
            self._fold()

    @property
    def state(self) -> RunState:
        """Everything known, with all events that were told until now."""
        if self._waiting:
            self._fold()
        return self._state

    def _fold(self) -> None:
        told, self._waiting = self._waiting, []
        before_s = self._state.engine.latest_s
        self._state = apply_all(self._state, told)
        if self._state.engine.latest_s != before_s:
            self._keep_time(self._state.engine.latest_s)

    def _keep_time(self, latest: float | None) -> None:
        """Remember how far the router's clock is ahead of ours, so that strips move evenly."""
        if latest is not None:
            lead = latest - self._arrived_s
            if self._lead_s is None or lead > self._lead_s or lead < self._lead_s - 5:
                self._lead_s = lead

    def engine_now_s(self) -> float:
        """Now on the router's clock; in a replayed run, the newest moment that was told."""
        latest = self.state.engine.latest_s or 0.0
        if self._lead_s is None or not self.is_live:
            return latest
        return max(latest, time.monotonic() + self._lead_s)

    @property
    def is_live(self) -> bool:
        """Whether something is connected, so that time goes on without events."""
        return self.running("serve")

    def context(self) -> Context:
        """What stages are given."""
        return Context(emit=self.emit, ask=self.ask, paths=self.paths)

    # --------------------------------------------------------------------------- tasks

    def attach(self) -> None:
        """Take the running loop and thread as the ones that apply events."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def running(self, name: str) -> bool:
        """Whether a stage's task goes on."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    def start(self, name: str, work: Callable[[Context], Awaitable[object]]) -> None:
        """Run a stage as a task; one that runs is left alone, and none begins once all ends."""
        if self.running(name) or self._closed:
            return
        self._tasks[name] = asyncio.create_task(self._run(name, work), name=name)

    async def _run(self, name: str, work: Callable[[Context], Awaitable[object]]) -> None:
        try:
            await work(self.context())
        except asyncio.CancelledError:
            self._tell_stopped(name)
            raise
        except HomesplitError as error:
            self._tell_failed(name, error)
        except Exception as error:
            # The edge of the app: a mistake of ours must not take the screen down.
            unexpected = HomesplitError(
                f"this is a mistake in homesplit: {type(error).__name__}: {error}",
                do_next="The detail (e) shows where; the other screens go on working.",
            )
            self._tell_failed(name, unexpected)

    def _tell_failed(self, name: str, error: HomesplitError) -> None:
        self.details[name] = "".join(traceback.format_exc())
        self.emit(
            events.StageFailed(
                stage=name, what=error.what, where=error.where, do_next=error.do_next
            )
        )

    def fail(self, name: str, error: HomesplitError) -> None:
        """Tell a failure that happened before any stage began."""
        self.details.pop(name, None)
        self.emit(
            events.StageFailed(
                stage=name, what=error.what, where=error.where, do_next=error.do_next
            )
        )

    def after(self, name: str, then: Callable[[], None]) -> None:
        """Call `then` once a stage's task has ended."""
        task = self._tasks.get(name)
        if task is None or task.done():
            then()
        else:
            task.add_done_callback(lambda _: then())

    async def ended(self, name: str) -> None:
        """Wait until a stage's task has ended, however it ends."""
        task = self._tasks.get(name)
        if task is not None:
            await asyncio.wait({task})

    def _tell_stopped(self, name: str) -> None:
        if self._closed or name in ENDLESS or self.state.stage(name).status != "running":
            return
        if name in ("bench", "targets"):
            self.emit(events.StageEnded(stage=name, sentence="The load is off."))
        else:
            self.emit(
                events.StageFailed(
                    stage=name, what="stopped at your word", do_next="Enter starts it again."
                )
            )

    def cancel(self, name: str) -> None:
        """Stop a stage's task."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop everything that runs here; engines on boxes go on."""
        self._closed = True
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=15)
        # What a thread tells later is in no log.
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def dismiss_failure(self) -> None:
        """Take the newest failure off the screen."""
        self._state = replace(self.state, failures=self.state.failures[:-1])
        self.version += 1

    def failure_detail(self) -> str:
        """The newest failure with everything known of it; empty when there is none."""
        if not self.state.failures:
            return ""
        failure = self.state.failures[-1]
        where = failure.where or "this machine"
        parts = [f"What: {failure.what}", f"Where: {where} (stage {failure.stage})"]
        if failure.do_next:
            parts.append(f"Do next: {failure.do_next}")
        trace = self.details.get(failure.stage)
        return "\n\n".join(parts) + (f"\n\nDetail:\n{trace}" if trace else "")
