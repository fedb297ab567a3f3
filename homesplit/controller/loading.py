"""Commands of the load: on, off, more, fewer."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from msgspec.structs import replace

from homesplit.controller.base import Base, Served, io_module, stage_module
from homesplit.core import events
from homesplit.core.choices import Choices
from homesplit.errors import EngineError
from homesplit.stages.context import Context


class Loading(Base):
    """Requests offered from here until they are stopped."""

    _load_stop: asyncio.Event | None = None

    def turn_load_rate(self, factor: float) -> None:
        """Change the offered rate of the load, between one a minute and a hundred a second."""
        rate = self.state.choices.load_rate_requests_per_s * factor
        bounded = min(max(rate, 1 / 60), 100.0)
        self.choose(replace(self.state.choices, load_rate_requests_per_s=bounded))
        if self.running("bench"):
            self._restart_load()

    def toggle_load(self) -> None:
        """Start the load, or stop it."""
        if self.running("bench"):
            self._stop_load()
        else:
            self.start_load()

    def _stop_load(self) -> None:
        if self._load_stop is None or self._load_stop.is_set():
            self.cancel("bench")
        else:
            self._load_stop.set()

    def _restart_load(self) -> None:
        self._stop_load()
        self.after("bench", self.start_load)

    def start_load(self) -> None:
        """Offer the chosen workload at the chosen rate until it is stopped."""
        served = self.served
        if served is None:
            self.fail("bench", EngineError("nothing is running", do_next="Deploy first (3)."))
            return
        choices = self.state.choices
        self._load_stop = asyncio.Event()
        stop = self._load_stop

        async def work(ctx: Context) -> None:
            try:
                await self._offer(ctx, served, choices, stop)
            finally:
                self.emit(events.LoadStopped())

        self.start("bench", work)

    async def _offer(
        self, ctx: Context, served: Served, choices: Choices, stop: asyncio.Event
    ) -> None:
        """Run after run of the workload until stopped; none is written into the notebook."""
        bench = stage_module("bench")
        workload = self.load_workload(choices)
        target = bench.Target(url=served.url, api_key=served.api_key)
        seed = 1
        while not stop.is_set():
            await bench.bench(
                ctx, target, workload, seconds=600.0, seed=seed, stop=stop, keep=False
            )
            seed += 1

    def measure_targets(self) -> None:
        """Take targets that suit these boxes from a few requests served alone."""
        served = self.served
        if served is None:
            self.fail("targets", EngineError("nothing is running", do_next="Deploy first (3)."))
            return

        async def work(ctx: Context) -> None:
            await self.take_own_targets(ctx, served)

        self.start("targets", work)

    async def take_own_targets(self, ctx: Context, served: Served) -> Any:
        """Measure and choose; returns what was measured."""
        target = stage_module("bench").Target(url=served.url, api_key=served.api_key)
        workload = self.load_workload(self.state.choices)
        found = await stage_module("own_targets").measure_alone(ctx, target, workload)
        core = importlib.import_module("homesplit.core.alone")
        told = (f"{core.TTFT_TIMES:g}× alone", f"{core.TPOT_TIMES:g}× alone")
        self.choose(replace(self.state.choices, targets=found.targets, targets_from=told))
        return found

    def load_workload(self, choices: Choices) -> Any:
        """The load generator's workload at the chosen rate, with the chosen targets."""
        profiles = io_module("profiles")
        name = choices.load_workload or choices.workload or "demo"
        workload = profiles.load_workload(name, self.paths)
        arrivals = replace(
            workload.arrivals, kind="open", rate_requests_per_s=choices.load_rate_requests_per_s
        )
        return replace(workload, arrivals=arrivals, targets=choices.targets)
