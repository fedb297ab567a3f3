"""Commands to a serving engine: follow it, switch its mode, cancel a request."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from homesplit.controller.base import Base, Served, io_module, stage_module
from homesplit.core import events
from homesplit.core.next_mode import following
from homesplit.errors import EngineError
from homesplit.stages.context import Context

_UNTOLD = EngineError(
    "the engine has not told its mode yet", do_next="Wait until it is shown, then press again."
)


class Serving(Base):
    """The engine in use."""

    def connect(self) -> None:
        """Forward the API of the deployment to this machine and follow its events."""
        deployment = self.state.deployment
        if deployment is None:
            return

        def reached(api: Any) -> None:
            known = self.state.deployment or deployment
            self.emit(events.DeploymentSeen(deployment=replace(known, url=api.url)))
            self.served = Served(api.url, api.api_key)

        def lost() -> None:
            self.served = None

        async def work(ctx: Context) -> None:
            again = stage_module("serve_again")
            await again.follow_deployment(ctx, deployment, reached, lost)

        self.start("serve", work)

    async def follow(self, ctx: Context, url: str, api_key: str | None) -> None:
        """Take `url` as the engine of this session and follow its events until cancelled."""
        self.served = Served(url, api_key)
        try:
            await stage_module("serve").follow(ctx, url, api_key)
        finally:
            self.served = None

    def next_mode(self) -> None:
        """Switch to the next arrangement while the engine serves."""
        setting, served = self.state.engine.setting, self.engine_for("mode")
        if served is None:
            return
        if setting is None:
            self.fail("mode", _UNTOLD)
            return
        predicted = self.state.plan.modes if self.state.plan is not None else ()
        wanted = following(setting, self.deployed_boxes(), predicted)

        async def work(ctx: Context) -> None:
            await stage_module("serve").set_mode(ctx, served.url, served.api_key, wanted)

        self.start("mode", work)

    def cancel_request(self, request_id: str) -> None:
        """Cancel one request in the engine."""
        served = self.served
        if served is None:
            return

        async def work(ctx: Context) -> None:
            client = io_module("engine_client")
            async with client.EngineClient(served.url, served.api_key) as engine:
                await engine.cancel(request_id)

        self.start("cancel", work)
