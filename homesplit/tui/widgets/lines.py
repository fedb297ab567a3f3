"""A widget that shows the lines of a view, made for the width that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from homesplit.tui.theme import STYLES
from homesplit.view.spans import Line, Lines

Draw = Callable[[int, int], Lines]


def to_content(parts: Line) -> Content:
    """One line of spans in the theme's colours."""
    return Content.assemble(*((span.text, STYLES[span.role]) for span in parts))


def lines_to_content(lines: Iterable[Line]) -> Content:
    """Several lines of spans."""
    return Content("\n").join([to_content(parts) for parts in lines])


class LinesView(Widget):
    """Draws `draw(width, height)`; `redraw` asks for it anew."""

    DEFAULT_CSS = "LinesView { height: auto; width: 1fr; }"

    def __init__(
        self, draw: Draw | None = None, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._draw = draw
        self._drawn: tuple[int, int, Lines] | None = None

    def set_draw(self, draw: Draw) -> None:
        """Show something else from now on."""
        self._draw = draw
        self.redraw()

    def redraw(self) -> None:
        """Draw anew, and lay out anew when the number of lines changed."""
        before = len(self._drawn[2]) if self._drawn else -1
        self._drawn = None
        auto = self.styles.height is not None and self.styles.height.is_auto
        if auto and self.size.width and len(self._lines(self.size.width, 0)) != before:
            self.refresh(layout=True)
        else:
            self.refresh()

    def _lines(self, width: int, height: int) -> Lines:
        if self._drawn is None or self._drawn[:2] != (width, height):
            made = self._draw(width, height) if self._draw is not None and width > 0 else ()
            self._drawn = (width, height, made)
        return self._drawn[2]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the view gives lines for this width."""
        return len(self._lines(width, 0))

    def render(self) -> Content:
        """The view's lines."""
        auto = self.styles.height is not None and self.styles.height.is_auto
        return lines_to_content(self._lines(self.size.width, 0 if auto else self.size.height))
