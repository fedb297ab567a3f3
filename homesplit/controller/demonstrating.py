"""The demo: two workers on this machine as if they were two boxes."""

from __future__ import annotations

from typing import Any

from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.controller.base import Served, stage_module
from homesplit.controller.faulting import Faulting
from homesplit.controller.loading import Loading
from homesplit.controller.notes import Notes
from homesplit.controller.serving import Serving
from homesplit.core import events
from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.core.machine import Address, FoundBox
from homesplit.stages.context import Context

MOST_REQUESTS_PER_S = 2.0
"""So that the strips show single requests, however quick the machine is."""


class Demonstrating(Serving, Loading, Notes, Faulting):
    """Starts the pair and a small load."""

    def begin_demo(self) -> None:
        """Start two workers and a router on this machine, follow them, offer a small load."""
        self.read_notebook()

        async def work(ctx: Context) -> None:
            async with stage_module("demo").demo_engine(ctx) as engine:
                await self._show_demo(engine)
                self._start_demo_load(Served(engine.url, None))
                await self.follow(ctx, engine.url, None)

        self.start("serve", work)

    async def _show_demo(self, engine: Any) -> None:
        """This machine twice, and the deployment over loopback."""
        self.worker_pids = {name: engine.pids[name] for name in engine.boxes}
        for name in engine.boxes:
            self.emit(events.BoxFound(box=demo_box(name)))
        status = await stage_module("serve").read_status(engine.url, None)
        self.choose(replace(self.state.choices, boxes=tuple(engine.boxes)))
        self.emit(events.DeploymentSeen(deployment=demo_deployment(engine, status.setting)))
        self.emit(events.StageEnded(stage="demo", sentence="Two workers serve on this machine."))

    def _start_demo_load(self, served: Served) -> None:
        """Targets and rate from requests that are alone, then the load."""

        async def work(ctx: Context) -> None:
            await self.fit_load(ctx, served, MOST_REQUESTS_PER_S)
            self.start_load()

        self.start("targets", work)


def demo_box(name: str) -> FoundBox:
    """This machine as one of the demo's two workers."""
    return FoundBox(
        name=name,
        addresses=(Address(address="127.0.0.1", interface="lo"),),
        found_by=("demo",),
        this_machine=True,
        trusted=True,
    )


def demo_deployment(engine: Any, setting: ModeSetting) -> Deployment:
    """The demo's pair as a deployment; it ends with the app."""
    boxes = tuple(
        DeployedBox(box=name, address="127.0.0.1", state="running", pid=engine.pids.get(name))
        for name in engine.boxes
    )
    return Deployment(
        id="demo",
        boxes=boxes,
        router_box=boxes[-1].box,
        model="smollm2-135m",
        setting=setting,
        router_port=int(engine.url.rsplit(":", 1)[-1].strip("/")),
        loopback=True,
        url=engine.url,
        router_state="running",
    )
