"""Commands of the load: on, off, more, fewer."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from typing import Any

from msgspec.structs import replace

from homesplit.controller.base import Base, Served, io_module, stage_module
from homesplit.core import events
from homesplit.core.choices import Choices, names_targets
from homesplit.core.prng import FRESH_BITS
from homesplit.errors import EngineError
from homesplit.stages.context import Context

FIRST_RATE_REQUESTS_PER_S = 1.0
"""Where turning the rate begins that nobody has named and no request was measured for."""


class Loading(Base):
    """Requests offered from here until they are stopped."""

    _load_stop: asyncio.Event | None = None

    def turn_load_rate(self, factor: float) -> None:
        """Change the offered rate of the load, between one a minute and a hundred a second."""
        rate = self.state.choices.load_rate_requests_per_s or FIRST_RATE_REQUESTS_PER_S
        bounded = min(max(rate * factor, 1 / 60), 100.0)
        self.choose(replace(self.state.choices, load_rate_requests_per_s=bounded))
        if self.running("bench"):
            self._restart_load()

    def toggle_load(self) -> None:
        """Start the load, or stop it, or what measures the rate for it."""
        if self.running("targets"):
            self.cancel("targets")
        elif self.running("bench"):
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
        """Offer the chosen workload until it is stopped, at the chosen rate or one that fits."""
        if self.running("bench"):
            # Keys pressed in a row each ask for it anew: the first has done it.
            return
        served = self.engine_for("bench")
        if served is None:
            return
        choices = self.state.choices
        if choices.load_rate_requests_per_s is None:
            self._start_fitting_load(served)
            return
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
        # Drawn anew: the prompts of a load before may still be in the prefix cache.
        salt = secrets.randbits(FRESH_BITS)
        try:
            while not stop.is_set():
                await bench.bench(
                    ctx,
                    target,
                    workload,
                    seconds=600.0,
                    seed=seed,
                    salt=salt,
                    stop=stop,
                    keep=False,
                )
                seed += 1
        except EngineError:
            if not stop.is_set():
                raise
            # Stopped while the server was still asked who it is.
            self._tell_stopped("bench")

    def _start_fitting_load(self, served: Served) -> None:
        """The rate from requests that are alone, then the load."""

        async def work(ctx: Context) -> None:
            await self.fit_load(ctx, served)
            self.start_load()

        self.start("targets", work)

    def measure_targets(self) -> None:
        """Take targets that suit these boxes from a few requests served alone."""
        served = self.engine_for("targets")
        if served is None:
            return

        async def work(ctx: Context) -> None:
            self._take_targets(await self._measured_alone(ctx, served))

        self.start("targets", work)

    async def fit_load(
        self, ctx: Context, served: Served, most_requests_per_s: float = 100.0
    ) -> None:
        """A rate that these boxes hold where nobody named one, and targets likewise."""
        if self.state.choices.load_rate_requests_per_s is not None:
            return
        found = await self._measured_alone(ctx, served)
        if not names_targets(self.state.choices):
            self._take_targets(found)
        rate = min(found.rate_requests_per_s, most_requests_per_s)
        self.choose(replace(self.state.choices, load_rate_requests_per_s=rate))

    def forget_fit(self) -> None:
        """Other boxes or another model: what was measured of the last ones fits no more."""
        if any(self.state.choices.targets_from):
            fresh = Choices()
            self.choose(
                replace(
                    self.state.choices,
                    targets=fresh.targets,
                    targets_from=fresh.targets_from,
                    load_rate_requests_per_s=None,
                )
            )

    async def _measured_alone(self, ctx: Context, served: Served) -> Any:
        target = stage_module("bench").Target(url=served.url, api_key=served.api_key)
        # Requests that are alone need no rate.
        choices = replace(self.state.choices, load_rate_requests_per_s=FIRST_RATE_REQUESTS_PER_S)
        workload = self.load_workload(choices)
        return await stage_module("own_targets").measure_alone(ctx, target, workload)

    def _take_targets(self, found: Any) -> None:
        core = importlib.import_module("homesplit.core.alone")
        told = (f"{core.TTFT_TIMES:g}× alone", f"{core.TPOT_TIMES:g}× alone")
        self.choose(replace(self.state.choices, targets=found.targets, targets_from=told))

    def load_workload(self, choices: Choices) -> Any:
        """The load generator's workload at the chosen rate, with the chosen targets."""
        profiles = io_module("profiles")
        name = choices.load_workload or choices.workload or "demo"
        workload = profiles.load_workload(name, self.paths)
        arrivals = replace(
            workload.arrivals, kind="open", rate_requests_per_s=choices.load_rate_requests_per_s
        )
        return replace(workload, arrivals=arrivals, targets=choices.targets)
