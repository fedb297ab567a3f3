"""Runs the engine's program and writes down whose processor time each step of a worker took.

    HOMESPLIT_STEP_PARTS=FOLDER python -m tests.bench.step_parts worker --config BOX.json

One line a step into FOLDER/BOX.jsonl; Linux alone tells a thread's time from outside.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from homesplit_engine.scheduler import StepPlan
from homesplit_engine.worker.steps import Steps

FOLDER = "HOMESPLIT_STEP_PARTS"
OWN = "step"
"""The thread that computes the step; the others have their own names."""
_TASKS = Path("/proc/self/task")

Threads = dict[tuple[int, str], float]


def threads_s() -> Threads:
    """Seconds of processor that each thread of this process has had, by its id and name."""
    named = {one.native_id: one.name for one in threading.enumerate()}
    named[threading.get_native_id()] = OWN
    found: Threads = {}
    for task in _TASKS.iterdir():
        try:
            run_ns = int((task / "schedstat").read_text().split()[0])
            name = named.get(int(task.name)) or (task / "comm").read_text().strip()
        except OSError:
            continue  # it has ended meanwhile
        found[int(task.name), name] = run_ns / 1e9
    return found


def _between(before: Threads, after: Threads) -> dict[str, float]:
    """What those of each name have had meanwhile."""
    parts = defaultdict[str, float](float)
    for thread, seconds in after.items():
        parts[thread[1]] += seconds - before.get(thread, 0.0)
    return parts


def main() -> None:
    """Run the program with its steps watched."""
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    told = open(Path(os.environ[FOLDER]) / f"{config.stem}.jsonl", "a", buffering=1)  # noqa: SIM115
    step = Steps._step  # pyright: ignore[reportPrivateUsage]

    def watched(self: Steps, plan: StepPlan) -> None:
        before, begin_s = threads_s(), time.monotonic()
        step(self, plan)
        end_s, parts = time.monotonic(), _between(before, threads_s())
        told.write(json.dumps({"begin_s": begin_s, "end_s": end_s, "cpu_s": parts}) + "\n")

    Steps._step = watched  # pyright: ignore[reportPrivateUsage]
    runpy.run_module("homesplit_engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
