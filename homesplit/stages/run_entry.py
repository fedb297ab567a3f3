"""A run in the notebook: from its beginning, while it goes on, and whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from homesplit_engine.status import RouterStatus
from msgspec.structs import replace

from homesplit.core.bench_result import BenchResult, bench_document, bench_sentence, where_words
from homesplit.core.entry import About
from homesplit.core.events import Progress
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.window import Window
from homesplit.core.workload import Workload
from homesplit.errors import NotebookError
from homesplit.stages.context import Context
from homesplit.stages.notebook import Course, known_machines
from homesplit.stages.target import Prepared

REQUESTS = "requests"
"""Name of the raw records of a run's requests."""


def about_server(
    ctx: Context,
    server: Prepared,
    *,
    seeds: Mapping[str, int],
    settings: Mapping[str, Any],
) -> About:
    """What is known of a measured server before the first request."""
    status = server.status
    boxes, link = known_machines(ctx, box_names(status))
    return About(
        seeds=dict(seeds),
        model=server.endpoint.model,
        fingerprint=status.fingerprint if status else None,
        boxes=boxes,
        link=link,
        settings={**settings, "address": address(server)},
        loopback=server.loopback,
    )


def address(server: Prepared) -> str | None:
    """Where a server is that is known by its address; None of a deployment's."""
    named = server.status is None or server.target.named
    return server.endpoint.url if named else None


def box_names(status: RouterStatus | None) -> tuple[str, ...]:
    """The boxes of a deployment; none of another server, which doesn't tell."""
    return tuple(worker.box for worker in status.workers) if status else ()


class RunEntry:
    """The entry of one run; what was told of it is in the notebook before.

    A replayed load is kept whole: a workload can be drawn again, a trace may be gone by then.
    """

    def __init__(
        self,
        ctx: Context,
        server: Prepared,
        workload: Workload,
        plan: LoadPlan,
        *,
        salt: int = 0,
        replayed: LoadPlan | None = None,
    ) -> None:
        self._ctx = ctx
        self._course = Course(ctx, "run")
        self._plan = plan
        self._offered = replayed.requests if replayed else None
        self._trace = replayed.workload if replayed else None
        self._setting = server.status.setting if server.status else None
        self._url = None if server.status else server.endpoint.url
        self._where = where_words(workload, self._setting, server.endpoint.model)
        self._about = about_server(
            ctx,
            server,
            seeds={"load": plan.seed, "salt": salt},
            settings={"mode": self._setting, "workload": workload, "api": server.endpoint.api},
        )

    @contextlib.contextmanager
    def open(self, seen: Window) -> Generator[None, None, None]:
        """The entry is there from the beginning of the block on. Raises NotebookError."""
        body = {
            "seconds": self._plan.seconds,
            "warm_up_s": seen.warm_up_s,
            "drain_s": seen.drain_s,
            "trace": self._trace,
            "url": self._url,
        }
        raw = {"offered": self._offered} if self._offered is not None else {}
        self._course.so_far(self._unended("begun"), body, about=self._about, raw=raw)
        with self._course.open():
            yield

    async def so_far(self, told: str, fresh: Sequence[RequestLog]) -> None:
        """What is about to be told, and the requests that ended since. Raises NotebookError."""
        await self._course.grow(self._unended(told), REQUESTS, fresh)

    def _unended(self, told: str) -> str:
        return f"{self._where}, not ended: {told}, of {self._plan.seconds:.3g} s planned."

    def ended(self, result: BenchResult) -> BenchResult:
        """The run as it came out, with the entry's id; without one where it can't be written."""
        router = {"router": result.timed.records} if result.timed else {}
        raw = {REQUESTS: result.logs, **router}
        told, document = bench_sentence(result), bench_document(result)
        try:
            entry = self._course.so_far(told, document, about=self._about, raw=raw, ended=True)
        except NotebookError as error:
            said = f"This run is not in the notebook: {error.sentence()}"
            self._ctx.emit(Progress(stage="bench", step="write", sentence=said))
            return result
        return replace(result, entry=entry)
