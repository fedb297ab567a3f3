"""A widget that shows the lines of a view, made for the width that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from homesplit.tui.theme import STYLES
from homesplit.tui.widgets.ground import Ground
from homesplit.view.spans import Line, Lines, crop

Draw = Callable[[int, int], Lines]


def to_content(parts: Line) -> Content:
    """One line of spans in the theme's colours."""
    return Content.assemble(*((span.text, STYLES[span.role]) for span in parts))


def lines_to_content(lines: Iterable[Line]) -> Content:
    """Several lines of spans."""
    return Content("\n").join([to_content(parts) for parts in lines])


def subtitle(panel: Widget, text: str) -> None:
    """Put words into a panel's lower border; the same words again paint nothing."""
    content = Content(text)
    if panel._border_subtitle != content:  # pyright: ignore[reportPrivateUsage]
        panel.border_subtitle = content


class LinesView(Widget):
    """Draws `draw(width, height)`; `redraw` asks for it anew and paints what has changed."""

    DEFAULT_CSS = "LinesView { height: auto; width: 1fr; text-wrap: nowrap; }"

    def __init__(
        self, draw: Draw | None = None, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._draw = draw
        self._drawn: tuple[int, int, Lines] | None = None
        self._painted: tuple[int, int, Lines] | None = None
        """What the screen shows; `_drawn` may be another width's, made for the layout."""
        self._ground = Ground(self)

    def redraw(self) -> None:
        """Draw anew: paint the lines that changed, lay out anew when their number did."""
        known, self._drawn = self._drawn is not None, None
        if not self.size.width:
            # Hidden, or not laid out yet: drawn when it is shown, and told of only once.
            if known:
                self.refresh()
            return
        made, painted, auto = self._current(), self._painted, self._is_auto
        if painted is None or painted[:2] != self._room or len(made) != len(painted[2]):
            if made or self.size.height:
                self.refresh(layout=auto)
            if not made:
                # Without a line nothing is asked to be painted, so nobody else would note it.
                self._painted = self._drawn
        elif made != painted[2]:
            changed = [y for y, (a, b) in enumerate(zip(made, painted[2], strict=True)) if a != b]
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    @property
    def _is_auto(self) -> bool:
        return self.styles.height is not None and self.styles.height.is_auto

    @property
    def _room(self) -> tuple[int, int]:
        return self.size.width, 0 if self._is_auto else self.size.height

    def _current(self) -> Lines:
        """The lines for the size that the widget has."""
        return self._lines(*self._room)

    def _lines(self, width: int, height: int) -> Lines:
        if self._drawn is None or self._drawn[:2] != (width, height):
            made = self._draw(width, height) if self._draw is not None and width > 0 else ()
            # A line that is too long would push the others down.
            self._drawn = (width, height, tuple(crop(parts, width) for parts in made))
        return self._drawn[2]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the view gives lines for this width."""
        return len(self._lines(width, 0))

    def render_line(self, y: int) -> Strip:
        """One of the view's lines; what is selected takes Textual's own, slower way."""
        if self.ALLOW_SELECT and self.text_selection is not None:
            return super().render_line(y)
        lines = self._current()
        self._painted = self._drawn
        if y >= len(lines):
            return self._ground.blank(self.size.width)
        strip = self._ground.strip(lines[y])
        return strip.apply_offsets(0, y) if self.ALLOW_SELECT else strip

    def render(self) -> Content:
        """The view's lines, for what reads or selects them."""
        lines = self._current()
        self._painted = self._drawn
        return lines_to_content(lines)


class MovingLines(LinesView):
    """Lines that change several times a second: not to be selected, for they would not stay."""

    ALLOW_SELECT = False
