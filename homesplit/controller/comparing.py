"""Command of the Compare screen: the same requests through each mode."""

from __future__ import annotations

from typing import Any

from homesplit.controller.base import Served, stage_module
from homesplit.controller.loading import Loading
from homesplit.core import events
from homesplit.stages.context import Context

REQUESTS = 30
"""With fewer in each mode, chance decides more than the mode."""
SHORTEST_S, LONGEST_S = 30.0, 120.0


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
    rate = workload.arrivals.rate_requests_per_s
    await compare.compare(ctx, target, modes, workload, seconds=compared_seconds(rate), repeats=1)


def compared_seconds(rate_requests_per_s: float | None) -> float:
    """How long each mode is offered the load: for enough requests to tell modes apart."""
    if not rate_requests_per_s:
        return SHORTEST_S
    return min(max(REQUESTS / rate_requests_per_s, SHORTEST_S), LONGEST_S)
