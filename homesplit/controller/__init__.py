"""The only mutable object of the app: every action of a screen is a method of `Controller`.

Screens read `state` and call these; they hold no logic of their own. Stage modules are
imported when they are first used, so that the first picture comes at once.
"""

from __future__ import annotations

import asyncio

from homesplit.controller.base import Served, stage_module
from homesplit.controller.chatting import Chatting, Said
from homesplit.controller.comparing import Comparing
from homesplit.controller.demonstrating import Demonstrating
from homesplit.controller.deploying import Deploying
from homesplit.controller.machines import Machines
from homesplit.controller.notes import Opened
from homesplit.controller.planning import Planning
from homesplit.stages.context import Context
from homesplit.view import road

__all__ = ["Controller", "Opened", "Said", "Served"]

FIRST_STAGES = ("discover", "deploy", "notebook", "brought")


def _import_stages() -> None:
    for name in FIRST_STAGES:
        stage_module(name)


class Controller(Machines, Planning, Deploying, Chatting, Comparing, Demonstrating):
    """The commands of the app, a class for each stop of the road."""

    def begin(self) -> None:
        """What the app does by itself once it is shown."""
        self.show_known()

        async def work(ctx: Context) -> None:
            # In a thread: what reaches machines takes long to import, and keys must be answered.
            await asyncio.to_thread(_import_stages)
            self.look_about()
            self.find_deployment()
            self.watch_record()
            self.read_notebook()

        self.start("begin", work)

    def would_be_lost(self) -> str:
        """What quitting now would cut short, in words; empty when nothing would be lost."""
        lost: list[str] = []
        if self.running("deploy"):
            lost.append("A deployment is under way; what is copied stays and is used next time.")
        if self.running("compare"):
            lost.append("A comparison is running; it would end without a verdict.")
        if self.running("repeat"):
            lost.append("A measurement is being repeated; its figures would be lost.")
        if self.running("probe"):
            lost.append("A probe is measuring; its figures would be lost.")
        if lost and not self.demo and road.is_serving(self.state):
            lost.append("The engine on the boxes goes on running.")
        return "\n".join(lost)
