"""Commands of the Deploy screen: list the changes, make them, take up, stop, remove."""

from __future__ import annotations

import asyncio

from homesplit_engine.records import ModeSetting

from homesplit.controller.base import stage_module
from homesplit.controller.loading import Loading
from homesplit.controller.serving import Serving
from homesplit.core import events
from homesplit.core.deployment import Deployment
from homesplit.errors import HomesplitError
from homesplit.stages.context import Context
from homesplit.view import road

OWN = ("deploy", "down", "remove", "status")
"""Stages of this app that write the record, or read it already."""
CHANGING = ("deploy", "down", "remove")


class Deploying(Serving, Loading):
    """What runs on the boxes."""

    def _setting(self) -> ModeSetting:
        """The mode to deploy with: the chosen one, else the plan's, else one box."""
        choices, plan = self.state.choices, self.state.plan
        if choices.setting is not None:
            return choices.setting
        advice = None if plan is None else plan.recommendation
        if advice is None or advice.mode is None:
            return ModeSetting(decode_box=choices.boxes[0] if choices.boxes else None)
        boxes = choices.boxes
        return ModeSetting(
            mode=advice.mode,
            prefill="whole" if advice.prefill == "whole" else "chunked",
            chunk_tokens=advice.chunk_tokens or 256,
            prefill_box=advice.prefill_box or (boxes[0] if boxes else None),
            decode_box=advice.decode_box or (boxes[-1] if boxes else None),
            kv_wire=advice.kv_wire or "same",
        )

    def plan_deployment(self) -> None:
        """List what would change on each box."""
        boxes, model, setting = self.state.choices.boxes, self.state.choices.model, self._setting()

        async def work(ctx: Context) -> None:
            plan = await stage_module("deploy").plan_deployment(ctx, boxes, model, setting)
            self.emit(events.DeployPlanned(plan=plan))

        self.start("deploy", work)

    def deploy(self) -> None:
        """Make the changes, start the engine, follow it."""
        boxes, model, setting = self.state.choices.boxes, self.state.choices.model, self._setting()
        plan, asked, shown = self.state.plan, self._answered, self.state.plan_map

        async def work(ctx: Context) -> None:
            if plan is not None and asked is not None:
                # The advice that is acted on is an entry; each turn of a knob is none.
                keep = stage_module("plan_entry").keep_plan_if_possible
                await asyncio.to_thread(keep, ctx, asked, plan, shown)
            before = self.state.deployment
            deployment = await stage_module("deploy").up(ctx, boxes, model, setting)
            self._compare_fit(before, deployment)
            self.emit(events.DeploymentSeen(deployment=deployment))
            self.connect()

        self.start("deploy", work)
        self.after("deploy", self.look_at_boxes)

    def look_at_boxes(self) -> None:
        """See what lies on the boxes, unless it is in use or is being changed; asks nobody."""
        if self.demo or road.is_serving(self.state) or any(self.running(one) for one in CHANGING):
            return

        async def work(ctx: Context) -> None:
            module = stage_module("brought")
            told = await module.lying(Context(emit=ctx.emit, paths=ctx.paths))
            self.emit(events.BroughtSeen(boxes=told))

        self.start("look", work)

    def _compare_fit(self, before: Deployment | None, now: Deployment) -> None:
        """Forget a load that was fitted to other boxes or another model."""
        if before is None or _what(before) != _what(now):
            self.forget_fit()

    def find_deployment(self) -> None:
        """Take up a deployment that was left running."""

        async def work(ctx: Context) -> None:
            before = self.state.deployment
            deployment = await stage_module("deploy").status(ctx)
            if deployment is not None:
                self._compare_fit(before, deployment)
                if road.is_serving(self.state):
                    self.connect()

        self.start("status", work)

    def watch_record(self) -> None:
        """Notice for as long as the app is open what another shell deploys or stops."""

        async def work(ctx: Context) -> None:
            record = stage_module("deploy_watch").Record(ctx)
            while True:
                await record.changed()
                for name in OWN:
                    await self.ended(name)
                try:
                    await self._follow_record(record.read())
                except HomesplitError as error:
                    self.fail("record", error)

        self.start("record", work)

    async def _follow_record(self, recorded: Deployment | None) -> None:
        shown = self.state.deployment
        same = stage_module("deploy_watch").is_same
        if recorded is None:
            if shown is None or shown.held_by is not None:
                return
            told = "Another shell stopped the deployment."
        elif road.is_serving(self.state) and same(shown, recorded):
            return
        else:
            told = "Another shell changed the deployment."
        self._let_go()
        await self.ended("serve")
        if recorded is None:
            self.emit(events.DeploymentSeen(deployment=None))
        else:
            self.find_deployment()
            await self.ended("status")
        self.emit(events.StageEnded(stage="deploy", sentence=told))

    def down(self) -> None:
        """Stop the engine on the boxes."""

        async def work(ctx: Context) -> None:
            self._let_go()
            await stage_module("deploy").down(ctx)
            self.emit(events.DeploymentSeen(deployment=None))

        self.start("down", work)
        self.after("down", self.look_at_boxes)

    def remove(self) -> None:
        """Take everything off the chosen boxes, or off those that serve when none is chosen."""
        boxes = self.removable_boxes()

        async def work(ctx: Context) -> None:
            self._let_go()
            for box in boxes:
                await stage_module("deploy").remove(ctx, box)
            self.emit(events.DeploymentSeen(deployment=None))

        self.start("remove", work)
        self.after("remove", self.look_at_boxes)

    def _let_go(self) -> None:
        """Offer no more requests to what is about to end, and follow it no longer."""
        for name in ("bench", "targets", "serve"):
            self.cancel(name)

    def removable_boxes(self) -> tuple[str, ...]:
        """The chosen boxes; after a new start, those that serve, or that something lies on."""
        lying = tuple(one.box for one in self.state.brought if one.folder)
        return self.state.choices.boxes or self.deployed_boxes() or lying


def _what(deployment: Deployment) -> tuple[object, ...]:
    """The boxes and the model."""
    return tuple(box.box for box in deployment.boxes), deployment.model
