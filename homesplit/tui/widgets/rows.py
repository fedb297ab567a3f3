"""A list of rows with a cursor, for keyboard and mouse; rows may change under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from homesplit.tui.theme import SIXTEEN
from homesplit.tui.widgets.ground import Ground
from homesplit.view.spans import Line, crop, fit

Row = tuple[str, Line | Callable[[], Line]]
"""An id and a line, or what makes the line once it is to be seen."""
CURSOR, CURSOR_AWAY = "on $foreground 14%", "on $panel"


def cursor_style(app: App[object], style: str) -> str:
    """A ground of its own; grey where there are sixteen colours, reversed where there are none."""
    if app.no_color:
        return "reverse"
    return "on $faint" if app.theme == SIXTEEN else style


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

    def __init__(
        self,
        *,
        id: str | None = None,
        header: Line = (),
        grow: bool = False,
        live: bool = False,
        led: bool = False,
    ) -> None:
        """`live` rows come in on top; a cursor that nobody moved stays there with the newest.

        The cursor of `led` rows is moved by keys that another widget has.
        """
        super().__init__(id=id)
        self._led = led
        self._live = live
        self._rows: tuple[Row, ...] = ()
        self._made: dict[int, Line] = {}
        self._header = header
        self._grow = grow
        self._cursor = 0
        self._top = 0
        self._ground = Ground(self)

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
        before = self._shown()
        self._rows, self._header, self._made = rows, header, {}
        place = next((n for n, (key, _) in enumerate(rows) if key == current), None)
        if self._live and self._cursor == 0:
            place = 0
        self._cursor = min(self._cursor, max(len(rows) - 1, 0)) if place is None else place
        if grown and self._grow:
            self.refresh(layout=True)
        else:
            self._paint_from(before)

    def _shown(self) -> list[object]:
        """What each line of the widget shows now."""
        first = self._first()
        head: list[object] = [self._header] if self._header else []
        last = min(first + self.size.height - len(head), len(self._rows))
        shown = head + [(self._line(n), n == self._cursor) for n in range(first, last)]
        return shown + [None] * (self.size.height - len(shown))

    def _line(self, place: int) -> Line:
        """A row's line, made when it is first asked for."""
        known = self._made.get(place)
        if known is None:
            line = self._rows[place][1]
            known = self._made[place] = line() if callable(line) else line
        return known

    def _paint_from(self, before: list[object]) -> None:
        """Paint the lines that are no longer as they were."""
        after = self._shown()
        if len(before) != len(after):
            self.refresh()
            return
        changed = [y for y, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

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

    def render_line(self, y: int) -> Strip:
        """The header or one of the rows that fit, scrolled so that the cursor is among them."""
        width = self.size.width
        if self._header and y == 0:
            return self._ground.strip(crop(self._header, width))
        place = self._first() + y - bool(self._header)
        if place >= len(self._rows):
            return self._ground.blank(width)
        parts = crop(self._line(place), width)
        if place != self._cursor:
            return self._ground.strip(parts)
        cursor = CURSOR if self.has_focus or self._led else CURSOR_AWAY
        return self._ground.strip(fit(parts, width), cursor_style(self.app, cursor))

    def _first(self) -> int:
        """The row on top."""
        room = max(self.size.height - bool(self._header), 1)
        self._top = max(min(self._top, self._cursor), self._cursor - room + 1, 0)
        return self._top
