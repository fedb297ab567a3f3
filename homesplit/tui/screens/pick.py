"""A dialog that lets one of several things be picked."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from homesplit.tui.screens.over import Over
from homesplit.tui.widgets.keys import Key, Keys
from homesplit.tui.widgets.lines import LinesView
from homesplit.tui.widgets.rows import Row, Rows
from homesplit.view.spans import wrap


class Pick(Over[str | None]):
    """Rows by id; enter picks, escape picks nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "pick", "Pick"),
        Binding("escape", "give_up", "Back"),
    ]

    def __init__(
        self,
        title: str,
        text: str,
        rows: tuple[Row, ...],
        *,
        danger: bool = False,
        at: str | None = None,
    ) -> None:
        """`at` is the row that the cursor begins on."""
        super().__init__()
        self._at = at
        self._title, self._text, self._rows, self._danger = title, text, rows, danger

    def compose(self) -> ComposeResult:
        """Title, text, rows."""
        with Vertical(classes="dialog danger" if self._danger else "dialog") as box:
            box.border_title = Content(self._title)
            yield LinesView(lambda width, height: (*wrap(self._text, width), ()))
            yield Rows(id="picks", grow=True)
            yield Keys(
                Key("↑", "", "move(-1)"),
                Key("↓", "choose", "move(1)"),
                Key("enter", "takes it", "pick", first=True),
                Key("escape", "goes back", "give_up"),
            )

    def on_mount(self) -> None:
        """Fill the list."""
        rows = self.query_one("#picks", Rows)
        rows.set_rows(self._rows)
        if self._at is not None:
            rows.go_to(self._at)
        rows.focus()

    @on(Rows.Clicked, "#picks")
    def action_pick(self) -> None:
        """Close with the row under the cursor."""
        self.dismiss(self.query_one("#picks", Rows).current)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.query_one("#picks", Rows).action_move(by)

    def action_give_up(self) -> None:
        """Escape: nothing."""
        self.dismiss(None)
