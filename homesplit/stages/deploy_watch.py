"""Notices what another shell deploys, stops or switches: the desk's record of it changes."""

from __future__ import annotations

import asyncio

from homesplit.core.deployment import Deployment
from homesplit.io.deploy_store import DeployStore
from homesplit.stages.context import Context

LOOK_EVERY_S = 2.0


class Record:
    """What this desk remembers of its deployment, looked at again and again."""

    def __init__(self, ctx: Context) -> None:
        self._store = DeployStore(ctx.paths.deployments)
        self._seen = self._store.stamp()

    async def changed(self) -> None:
        """Wait until it has been written anew, or is gone, since it was last read."""
        while True:
            if self._store.stamp() != self._seen:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def read(self) -> Deployment | None:
        """The deployment as it is recorded now; raises DeployError when it can't be read."""
        self._seen = self._store.stamp()
        memory = self._store.load()
        return memory.deployment if memory else None


def is_same(shown: Deployment | None, recorded: Deployment) -> bool:
    """Whether what is shown runs in the place and with the boxes that are recorded."""
    return shown is not None and _place(shown) == _place(recorded)


def _place(deployment: Deployment) -> tuple[object, ...]:
    boxes = tuple((box.box, box.address) for box in deployment.boxes)
    return deployment.id, deployment.router_box, deployment.router_port, deployment.model, boxes
