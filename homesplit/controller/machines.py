"""Commands of the Machines screen: look about, add, probe."""

from __future__ import annotations

from typing import Any

from homesplit.controller.base import Base, io_module, stage_module
from homesplit.core import events
from homesplit.core.state import link_between
from homesplit.errors import UsageError
from homesplit.stages.context import Context

LOOPBACK = "both workers are this machine, over loopback: there is no network to measure"


class Machines(Base):
    """Who is there, and what they can do."""

    _typed: Any = None
    """Takes what is named by hand, while somebody looks about."""

    def show_known(self) -> None:
        """Boxes and links that were measured before."""
        store = io_module("probe_store")
        for profile in store.list_boxes(self.paths):
            self.emit(events.BoxProbed(profile=profile))
        for link in store.list_links(self.paths):
            self.emit(events.LinkProbed(link=link))

    def look_about(self) -> None:
        """Show what is known already and watch for machines for as long as the app is open."""

        async def work(ctx: Context) -> None:
            stage = stage_module("discover")
            self._typed = stage.Typed()
            try:
                await stage.watch(ctx, self._typed)
            finally:
                self._typed = None

        self.start("discover", work)

    def add_box(self, text: str) -> None:
        """Add a machine by hand: it is tried at once, or when it is probed if nobody looks."""
        named = self._typed.add if self._typed else stage_module("discover").typed_box
        try:
            box = named(text.strip())
        except UsageError as error:
            self.fail("discover", error)
            return
        if all(other.name != box.name for other in self.state.boxes):
            self.emit(events.BoxFound(box=box))

    def needs_probe(self) -> bool:
        """Whether something about the chosen boxes is not measured yet."""
        chosen = self.state.choices.boxes
        if self.demo:
            return False
        if any(name not in self.state.profiles for name in chosen):
            return True
        return len(chosen) == 2 and link_between(self.state, *chosen) is None

    def probe(self) -> None:
        """Measure the chosen boxes and the link between them."""
        names = self.state.choices.boxes
        if self.demo:
            self.fail("probe", UsageError(LOOPBACK, do_next="Two real boxes can be measured."))
            return

        async def work(ctx: Context) -> None:
            await stage_module("probe").probe(ctx, names)

        self.start("probe", work)
