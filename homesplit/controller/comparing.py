"""Command of the Compare screen: the same requests through each mode."""

from __future__ import annotations

from typing import Any

from homesplit.controller.base import Served, stage_module
from homesplit.controller.loading import Loading
from homesplit.core import events
from homesplit.core.window import EDGE_MOST_S
from homesplit.core.workload import Arrivals
from homesplit.stages.context import Context

REQUESTS = 30
"""So many are to count in each mode: with fewer, chance decides more than the mode."""
SHORTEST_S, LONGEST_S = 30.0, 300.0


class Comparing(Loading):
    """Mode against mode."""

    def compare(self) -> None:
        """The same requests through each mode on these boxes."""
        served = self.engine_for("compare")
        boxes = (
            tuple(box.box for box in self.state.deployment.boxes) if self.state.deployment else ()
        )
        if served is None:
            return
        self.cancel("targets")
        if self._load_stop is not None:
            self._load_stop.set()

        async def work(ctx: Context) -> None:
            told = "Waiting for the last answers of the load."
            self.emit(events.StageStarted(stage="compare", sentence=told))
            await self.ended("targets")
            await self.ended("bench")
            await self.fit_load(ctx, served)
            await run_compare(ctx, served, boxes, self.load_workload(self.state.choices))

        self.start("compare", work)


async def run_compare(ctx: Context, served: Served, boxes: tuple[str, ...], workload: Any) -> None:
    """Call the compare stage with every mode that these boxes can run."""
    bench, compare = stage_module("bench"), stage_module("compare")
    target = bench.Target(url=served.url, api_key=served.api_key)
    modes = ("colocated:whole", "colocated:chunked")
    if len(boxes) > 1:
        modes = (*modes, "replica", "split")
    seconds = compared_seconds(workload.arrivals)
    await compare.compare(ctx, target, modes, workload, seconds=seconds, repeats=1)


def compared_seconds(arrivals: Arrivals) -> float:
    """How long each mode is offered the load: so that enough requests count to tell modes apart."""
    rate = arrivals.mean_rate_requests_per_s
    if not rate:
        return SHORTEST_S
    # What is due at a run's ends counts nowhere.
    return min(max(REQUESTS / rate + 2 * EDGE_MOST_S, SHORTEST_S), LONGEST_S)
