"""A comparison in the notebook: as each run ends, and whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from homesplit.core.bench_result import BenchResult
from homesplit.core.compare_result import CompareResult, ModeRuns, compare_document, unended
from homesplit.core.entry import About
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.say import counted
from homesplit.core.window import Window
from homesplit.core.workload import Workload
from homesplit.stages.context import Context
from homesplit.stages.load_watch import Keep
from homesplit.stages.notebook import Course, known_machines
from homesplit.stages.run_entry import about_server, address
from homesplit.stages.target import Prepared


class CompareEntry:
    """The entry of one comparison; what a run gave is in it before it is told."""

    def __init__(
        self,
        ctx: Context,
        *,
        repeats: int,
        runs: int,
        seed: int,
        salt: int,
        replayed: LoadPlan | None,
    ) -> None:
        """`runs` is how many there will be in all."""
        self._ctx = ctx
        self._done = 0
        self._course = Course(ctx, "comparison")
        self._repeats = repeats
        self._address: str | None = None
        self._runs = runs
        self._seed = seed
        self._seeds = {"load": seed, "salt": salt}
        self._raw: dict[str, Sequence[Any]] = {"offered": replayed.requests} if replayed else {}
        """What the next writing adds."""

    @contextlib.contextmanager
    def open(
        self, server: Prepared, workload: Workload, seen: Window
    ) -> Generator[None, None, None]:
        """The entry is there from the beginning of the block on. Raises NotebookError."""
        self._address = address(server)
        settings = self._settings(workload, seen)
        about = about_server(self._ctx, server, seeds=self._seeds, settings=settings)
        nothing: dict[str, Any] = {"modes": [], "repeats": self._repeats, "seed": self._seed}
        self._course.so_far(self._unended("begun"), nothing, about=about, raw=self._raw)
        self._raw = {}
        with self._course.open():
            yield

    def _unended(self, told: str) -> str:
        runs = counted(self._runs, "run")
        return f"Comparison, not ended: {self._done} of {runs} done; {told}."

    def keep(self, name: str, turn: int) -> Keep:
        """Takes the requests of run `turn` of the column `name` as they end."""

        async def take(told: str, fresh: Sequence[RequestLog]) -> None:
            run = f"{name} round {turn}"
            await self._course.grow(self._unended(f"{run}, {told}"), run, fresh)

        return take

    def run_ended(self, modes: Sequence[ModeRuns], last: ModeRuns) -> None:
        """One more run of `last` has ended; `modes` are all that have figures. NotebookError."""
        name, run = f"{last.name} round {len(last.runs)}", last.runs[-1]
        self._raw[name] = run.logs
        self._done += 1
        if run.timed is not None and run.timed.records:
            self._raw[f"{name}, router"] = run.timed.records
        so_far = unended(modes, repeats=self._repeats, runs=self._runs, seed=self._seed)
        self._write(so_far, so_far.verdict.sentence, ended=False)

    def ended(self, result: CompareResult, sentence: str) -> str:
        """The whole comparison; returns the entry's id. Raises NotebookError."""
        return self._write(result, sentence, ended=True)

    def _write(self, result: CompareResult, sentence: str, *, ended: bool) -> str:
        first = result.modes[0].runs[0]
        about = self._about(first, result)
        document = compare_document(result)
        entry = self._course.so_far(sentence, document, about=about, raw=self._raw, ended=ended)
        self._raw = {}
        return entry

    def _about(self, first: BenchResult, result: CompareResult) -> About:
        boxes, link = known_machines(self._ctx, first.boxes)
        return About(
            seeds=self._seeds,
            model=first.model,
            fingerprint=first.fingerprint,
            boxes=boxes,
            link=link,
            settings=self._settings(first.workload, first.summary.window),
            loopback=result.loopback,
        )

    def _settings(self, workload: Workload, seen: Window) -> dict[str, Any]:
        return {
            "workload": workload,
            "seconds": seen.offered_s,
            "repeats": self._repeats,
            "warm_up_s": seen.warm_up_s,
            "drain_s": seen.drain_s,
            "address": self._address,
        }
