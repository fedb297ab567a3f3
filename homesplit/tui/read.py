"""Pages to read: one screen is made beforehand and kept, so that they open at once."""

from __future__ import annotations

from typing import Any

from textual.app import App

from homesplit.tui.screens.dialogs import Reading
from homesplit.tui.screens.over import keep
from homesplit.tui.widgets.lines import Draw

KEPT = "reading"


def get_ready(app: App[Any], title: str, draw: Draw) -> None:
    """Make the screen, and lay out what will likely be read first."""
    keep(app, Reading(title, draw), KEPT)


def read(app: App[Any], title: str, draw: Draw | str) -> None:
    """Show a page, or plain text, over the present screen."""
    kept = app.get_screen(KEPT, Reading) if app.is_screen_installed(KEPT) else None
    # One that lies open, here or over another stop, stays as it is.
    stacks = app._screen_stacks.values()  # pyright: ignore[reportPrivateUsage]
    if kept is None or any(kept in stack for stack in stacks):
        app.push_screen(Reading(title, draw))
        return
    kept.turn_to(title, draw)
    app.push_screen(kept)
