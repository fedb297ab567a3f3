"""Commands to a serving engine: follow it, switch its mode, cancel a request."""

from __future__ import annotations

from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.controller.base import Base, Served, io_module, stage_module
from homesplit.core import events
from homesplit.errors import EngineError
from homesplit.stages.context import Context


class Serving(Base):
    """The engine in use."""

    def connect(self) -> None:
        """Forward the API of the deployment to this machine and follow its events."""
        deployment = self.state.deployment
        if deployment is None:
            return

        async def work(ctx: Context) -> None:
            async with stage_module("deploy").forward(ctx, deployment) as reached:
                known = self.state.deployment or deployment
                self.emit(events.DeploymentSeen(deployment=replace(known, url=reached.url)))
                await self.follow(ctx, *reached)

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
        setting = self.state.engine.setting
        served = self.served
        if setting is None or served is None:
            self.fail("mode", EngineError("nothing is running", do_next="Deploy first (3)."))
            return
        wanted = following(setting, self.deployed_boxes())

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


def following(setting: ModeSetting, boxes: tuple[str, ...]) -> ModeSetting:
    """The arrangement after `setting` in the order that the lesson tells them."""
    first, last = (boxes[0], boxes[-1]) if boxes else (None, None)
    order = (
        ModeSetting(mode="colocated", prefill="whole", decode_box=last, prefill_box=first),
        ModeSetting(mode="colocated", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="replica", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="split", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="auto", prefill="chunked", decode_box=last, prefill_box=first),
    )
    usable = order if len(boxes) > 1 else order[:2]
    place = next(
        (
            number
            for number, one in enumerate(usable)
            if one.mode == setting.mode
            and (setting.mode != "colocated" or one.prefill == setting.prefill)
        ),
        -1,
    )
    chosen = usable[(place + 1) % len(usable)]
    return replace(chosen, chunk_tokens=setting.chunk_tokens)
