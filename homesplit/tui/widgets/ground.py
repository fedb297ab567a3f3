"""The theme's roles as they look on one widget's ground, made once and used for every line."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from homesplit.tui.theme import STYLES
from homesplit.view.spans import Line


class Ground:
    """Makes strips of spans without the work of general markup: for text that moves."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._key: tuple[str, Style] | None = None
        self._styles: dict[tuple[str, str], RichStyle] = {}

    def strip(self, parts: Line, over: str = "") -> Strip:
        """One line; `over` is a style that lies over all of it, such as a cursor's."""
        style = self._style
        return Strip([Segment(span.text, style(span.role, over)) for span in parts if span.text])

    def blank(self, width: int, over: str = "") -> Strip:
        """An empty line."""
        return Strip.blank(width, self._style("", over))

    def _style(self, role: str, over: str) -> RichStyle:
        key = (self._widget.app.theme, self._widget.visual_style)
        if key != self._key:
            self._key = key
            self._styles = {}
        known = self._styles.get((role, over))
        if known is None:
            whole = key[1] + Style.parse(STYLES[role])
            known = (whole + Style.parse(over) if over else whole).rich_style
            self._styles[role, over] = known
        return known
