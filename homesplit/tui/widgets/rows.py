"""A list of rows with a cursor, for keyboard and mouse; rows may change under the cursor."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget

from homesplit.tui.widgets.lines import to_content
from homesplit.view.spans import Line, crop

Row = tuple[str, Line]


class Rows(Widget, can_focus=True):
    """Rows by id; the cursor stays on its id when rows come, go or move."""

    DEFAULT_CSS = """
    Rows { height: 1fr; width: 1fr; }
    Rows:focus { background-tint: $foreground 3%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("home", "move(-9999)", "First", show=False),
        Binding("end", "move(9999)", "Last", show=False),
        Binding("pageup", "move(-10)", "Page up", show=False),
        Binding("pagedown", "move(10)", "Page down", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, rows: Rows, row_id: str) -> None:
            super().__init__()
            self.rows = rows
            self.row_id = row_id

        @property
        def control(self) -> Rows:
            """The list it happened in."""
            return self.rows

    class Clicked(Message):
        """A row was clicked once more while the cursor was on it."""

        def __init__(self, rows: Rows, row_id: str) -> None:
            super().__init__()
            self.rows = rows
            self.row_id = row_id

        @property
        def control(self) -> Rows:
            """The list it happened in."""
            return self.rows

    def __init__(self, *, id: str | None = None, header: Line = (), grow: bool = False) -> None:
        super().__init__(id=id)
        self._rows: tuple[Row, ...] = ()
        self._header = header
        self._grow = grow
        self._cursor = 0
        self._top = 0

    @property
    def current(self) -> str | None:
        """The id under the cursor, None when there are no rows."""
        return self._rows[self._cursor][0] if self._rows else None

    def set_rows(self, rows: tuple[Row, ...], header: Line = ()) -> None:
        """Show these rows; the cursor follows its id."""
        if rows == self._rows and header == self._header:
            return
        current = self.current
        grown = len(rows) != len(self._rows)
        self._rows, self._header = rows, header
        place = next((n for n, (key, _) in enumerate(rows) if key == current), None)
        self._cursor = min(self._cursor, max(len(rows) - 1, 0)) if place is None else place
        self.refresh(layout=grown and self._grow)

    def go_to(self, row_id: str) -> None:
        """Put the cursor on a row."""
        for place, (key, _) in enumerate(self._rows):
            if key == row_id:
                self._cursor = place
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        if not self._rows:
            return
        before = self._cursor
        self._cursor = max(0, min(len(self._rows) - 1, self._cursor + by))
        if self._cursor != before:
            self.post_message(self.Moved(self, self._rows[self._cursor][0]))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; on the cursor's row it counts as choosing."""
        place = self._top + event.y - bool(self._header)
        if not 0 <= place < len(self._rows):
            return
        key = self._rows[place][0]
        if place == self._cursor:
            self.post_message(self.Clicked(self, key))
        else:
            self._cursor = place
            self.post_message(self.Moved(self, key))
        self.refresh()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(-1)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """All rows and the header, for lists whose height is `auto`."""
        return len(self._rows) + bool(self._header)

    def render(self) -> Content:
        """The rows that fit, scrolled so that the cursor is among them."""
        room = max(self.size.height - bool(self._header), 1)
        self._top = max(min(self._top, self._cursor), self._cursor - room + 1, 0)
        shown: list[Content] = (
            [to_content(crop(self._header, self.size.width))] if self._header else []
        )
        for place, (_, parts) in enumerate(self._rows[self._top : self._top + room]):
            content = to_content(crop(parts, self.size.width))
            if self._top + place == self._cursor:
                padded = content.pad_right(max(self.size.width - content.cell_length, 0))
                content = padded.stylize("on $foreground 14%" if self.has_focus else "on $panel")
            shown.append(content)
        return Content("\n").join(shown)
