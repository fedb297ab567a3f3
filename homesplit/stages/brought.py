"""How boxes stand: what runs there, and what `up` brought there when not all of it runs."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct

from homesplit.core.brought import Brought
from homesplit.core.deployment import Deployment
from homesplit.errors import TrustError, UnreachableError
from homesplit.io.box_contents import read_contents
from homesplit.io.deploy_store import DeployStore
from homesplit.io.locks import at_work
from homesplit.io.ssh import Connections
from homesplit.stages.context import Context
from homesplit.stages.deploy import status_over


class Standing(Struct, frozen=True, kw_only=True):
    """The deployment, None when there is none, and what lies on the boxes."""

    deployment: Deployment | None
    brought: tuple[Brought, ...] | None
    """None while all runs: what it runs from is there."""
    at_work: str | None = None
    """Another command of this desk that changes its boxes just now, in a sentence."""

    @property
    def runs(self) -> bool:
        """Whether there is a deployment and every part of it runs."""
        if self.deployment is None:
            return False
        words = [box.state for box in self.deployment.boxes] + [self.deployment.router_state]
        return all(word == "running" for word in words)


async def standing(ctx: Context, boxes: tuple[str, ...] = ()) -> Standing:
    """How these boxes stand, else those of this desk; changes nothing."""
    busy = at_work(DeployStore(ctx.paths.deployments).lock)
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        deployment = await status_over(ctx, connections, boxes)
        seen = Standing(deployment=deployment, brought=None, at_work=busy)
        if seen.runs:
            return seen
        names = _to_look_at(ctx, boxes, seen.deployment)
        brought = await asyncio.gather(*(_look(connections, name) for name in names))
    return msgspec.structs.replace(seen, brought=tuple(brought))


async def lying(ctx: Context) -> tuple[Brought, ...]:
    """What lies on each box that this desk brought something to; changes nothing."""
    names = DeployStore(ctx.paths.deployments).brought_to()
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        return tuple(await asyncio.gather(*(_look(connections, name) for name in names)))


def _to_look_at(
    ctx: Context, boxes: tuple[str, ...], deployment: Deployment | None
) -> tuple[str, ...]:
    """These boxes, or those that something was brought to; not those just out of reach."""
    away = {b.box for b in (deployment.boxes if deployment else ()) if b.state == "unreachable"}
    names = boxes or DeployStore(ctx.paths.deployments).brought_to()
    return tuple(name for name in names if name not in away)


async def _look(connections: Connections, name: str) -> Brought:
    try:
        return await read_contents(await connections.connect(name))
    except (UnreachableError, TrustError) as error:
        return Brought(box=name, why=error.sentence())
