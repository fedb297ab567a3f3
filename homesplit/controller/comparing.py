"""Command of the Compare screen: the same requests through each mode."""

from __future__ import annotations

from typing import Any

from homesplit.controller.base import Served, stage_module
from homesplit.controller.loading import Loading
from homesplit.core import events
from homesplit.errors import EngineError
from homesplit.stages.context import Context


class Comparing(Loading):
    """Mode against mode."""

    def compare(self) -> None:
        """The same requests through each mode on these boxes."""
        served = self.served
        boxes = (
            tuple(box.box for box in self.state.deployment.boxes) if self.state.deployment else ()
        )
        if served is None:
            self.fail("compare", EngineError("nothing is running", do_next="Deploy first (3)."))
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
    await compare.compare(ctx, target, modes, workload, repeats=1)
