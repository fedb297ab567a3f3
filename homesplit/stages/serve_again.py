"""Follows a deployment over SSH, and makes the way there anew when it breaks."""

from __future__ import annotations

from collections.abc import Callable

from homesplit.core.deployment import Deployment
from homesplit.errors import EngineError, UnreachableError
from homesplit.io.ssh_login import WithheldError
from homesplit.stages.context import Context
from homesplit.stages.deploy import Api, forward
from homesplit.stages.serve import Pauses, follow


async def follow_deployment(
    ctx: Context,
    deployment: Deployment,
    reached: Callable[[Api], None],
    lost: Callable[[], None],
) -> None:
    """Tell what the deployment's router tells, until cancelled, however often the way breaks.

    `reached` and `lost` are called as the way to it is made and ends. Raises HomesplitError when
    it can't be reached at first, and when a box that was lost shows another host key or wants a
    secret that nobody gave: that would be asked for, or tried, without end.
    """
    pauses, known = Pauses(ctx), False
    while True:
        try:
            async with forward(ctx, deployment) as api:
                known = True
                reached(api)
                try:
                    await follow(ctx, *api)
                finally:
                    lost()
        except (UnreachableError, EngineError) as error:
            if not known or isinstance(error, WithheldError):
                raise
            await pauses.wait(error)
