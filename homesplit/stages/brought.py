"""Looks at what lies on boxes that `up` brought something to; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from homesplit.core.brought import Brought
from homesplit.errors import TrustError, UnreachableError
from homesplit.io.box_contents import read_contents
from homesplit.io.deploy_store import DeployStore
from homesplit.io.ssh import Connections
from homesplit.stages.context import Context


def boxes_brought_to(ctx: Context) -> tuple[str, ...]:
    """The boxes to which this desk brought something and which were not removed since."""
    return DeployStore(ctx.paths.deployments).brought_to()


async def look_at(ctx: Context, boxes: Sequence[str]) -> tuple[Brought, ...]:
    """What lies on each of these boxes; one that can't be reached says why."""
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        return tuple(await asyncio.gather(*(_look(connections, box) for box in boxes)))


async def _look(connections: Connections, name: str) -> Brought:
    try:
        return await read_contents(await connections.connect(name))
    except (UnreachableError, TrustError) as error:
        return Brought(box=name, why=error.sentence())
