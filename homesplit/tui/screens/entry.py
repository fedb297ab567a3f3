"""A notebook entry opened: its charts to read, and what can be done with it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from homesplit.tui.screens.over import Over
from homesplit.tui.widgets.keys import Key, Keys
from homesplit.tui.widgets.lines import Draw, LinesView


class EntryScreen(Over[str | None]):
    """Closes with `repeat`, `note` or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "take('repeat')", "Repeat"),
        Binding("n", "take('note')", "Add a note to it"),
        Binding("escape,q,enter", "take('')", "Back"),
    ]

    def __init__(self, draw: Draw, *, repeatable: bool) -> None:
        super().__init__()
        self._draw, self._repeatable = draw, repeatable

    def compose(self) -> ComposeResult:
        """The page, scrolled, and the keys."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = "Notebook entry"
            with VerticalScroll(classes="body"):
                yield LinesView(self._draw)
            repeat = (Key("r", "repeats it", "take('repeat')"),) if self._repeatable else ()
            yield Keys(
                *repeat,
                Key("n", "adds a note to it", "take('note')"),
                Key("escape", "goes back", "take('')", first=True),
            )

    def action_take(self, what: str) -> None:
        """Close with what was chosen."""
        if what == "repeat" and not self._repeatable:
            return
        self.dismiss(what or None)
