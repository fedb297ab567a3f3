"""A line of keys and what each does; a click on one does it too."""

from __future__ import annotations

from typing import NamedTuple

from textual import events

from homesplit.tui.widgets.lines import LinesView
from homesplit.view.spans import Line, Lines, Span, crop, width_of


class Key(NamedTuple):
    """A key as it is shown, what it does in words, and the action of the screen that does it."""

    shown: str
    words: str
    action: str
    first: bool = False
    """Whether it is the one that the eye should find."""


class Keys(LinesView):
    """The keys of a dialog."""

    ALLOW_SELECT = False

    def __init__(self, *keys: Key) -> None:
        super().__init__(self._line, classes="answers")
        self._keys = keys

    def _line(self, width: int, height: int) -> Lines:
        parts = [span for key in self._keys for span in _spans(key)]
        return (crop(tuple(parts), width),)

    async def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        reached = 0
        for key in self._keys:
            reached += width_of(_spans(key))
            if event.x < reached:
                await self.screen.run_action(key.action)
                return


def _spans(key: Key) -> Line:
    role = "!key" if key.first else "!strong"
    return (Span(f" {key.shown} ", role), Span(f" {key.words}   ", "dim"))
