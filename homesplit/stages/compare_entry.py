"""A comparison in the notebook: as each run ends, and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homesplit.core.bench_result import BenchResult
from homesplit.core.compare_result import CompareResult, ModeRuns, compare_document, unended
from homesplit.core.entry import About
from homesplit.core.load import LoadPlan
from homesplit.stages.context import Context
from homesplit.stages.notebook import Course, known_machines


class CompareEntry:
    """The entry of one comparison; what a run gave is in it before it is told."""

    def __init__(
        self, ctx: Context, *, repeats: int, runs: int, seed: int, replayed: LoadPlan | None
    ) -> None:
        """`runs` is how many there will be in all."""
        self._ctx = ctx
        self._course = Course(ctx, "comparison")
        self._repeats = repeats
        self._runs = runs
        self._seed = seed
        self._raw: dict[str, Sequence[Any]] = {"offered": replayed.requests} if replayed else {}
        """What the next writing adds."""

    def run_ended(self, modes: Sequence[ModeRuns], last: ModeRuns) -> None:
        """One more run of `last` has ended; `modes` are all that have figures. NotebookError."""
        name, run = f"{last.name} round {len(last.runs)}", last.runs[-1]
        self._raw[name] = run.logs
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
            seeds={"load": self._seed},
            model=first.model,
            fingerprint=first.fingerprint,
            boxes=boxes,
            link=link,
            settings={
                "workload": first.workload,
                "seconds": first.seconds,
                "repeats": self._repeats,
                "warm_up_s": first.summary.warm_up_s,
            },
            loopback=result.loopback,
        )
