"""A chart of points as lines of text: axes with their ticks, a target, marks, a glyph a point.

Drawn once a second on Monitor, where a general plotting library would take a fifth of what
the whole app may take; and as spans it follows the theme, sixteen colours and none.
"""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.view.charts import Chart, Points
from homesplit.view.spans import Line, Lines, Span, crop, line, merge, wrap

LEAST_WIDTH, LEAST_HEIGHT = 20, 4
LOW = 9
"""Below so many lines the axis has its words in itself: that leaves a line more for points."""
BEYOND = "↑"
"""A point that is higher than the axis goes."""
Cell = tuple[str, str]
_EMPTY: Cell = (" ", "")


def scatter(chart: Chart, width: int, height: int) -> Lines:
    """The chart in exactly `height` lines of `width` characters, or a word why there is none."""
    if not any(points.x for points in chart.series):
        return wrap(chart.empty, width, "dim")
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return wrap("make the window larger for the chart", width, "dim")
    label = max((len(text) for _, text in chart.y_ticks), default=0)
    plot = _Plot(chart, width - label - 1, height - (1 if height < LOW else 2))
    plot.target()
    plot.marks()
    for points in chart.series:
        plot.points(points)
    lined = None if chart.target is None else plot.row(chart.target)
    # Where rows are few, the line of the target may lie on another value's: it is not that value.
    names = {
        row: text
        for at, text in chart.y_ticks
        if (row := plot.row(at)) != lined or at in (0.0, chart.target)
    }
    rows = [_row(names.get(n), label, cells) for n, cells in enumerate(plot.cells)]
    return (*rows, *_across(chart, plot, label, width, low=height < LOW))


class _Plot:
    """The cells between the axes."""

    def __init__(self, chart: Chart, columns: int, rows: int) -> None:
        self._chart = chart
        self._left, self._right = chart.x_range or _span(chart.series)
        self._top, self._low = chart.y_top or 1.0, chart.y_low
        self.columns, self.rows = columns, rows
        self.cells: list[list[Cell]] = [[_EMPTY] * columns for _ in range(rows)]

    def column(self, x: float) -> int:
        """The column of a moment; may lie outside."""
        share = (x - self._left) / ((self._right - self._left) or 1.0)
        return round(share * (self.columns - 1))

    def row(self, y: float) -> int:
        """The row of a value, counted from the top; may lie outside."""
        share = (y - self._low) / ((self._top - self._low) or 1.0)
        return round((1 - share) * (self.rows - 1))

    def target(self) -> None:
        """A dotted line across."""
        if self._chart.target is not None:
            row = self.row(self._chart.target)
            if 0 <= row < self.rows:
                self.cells[row] = [("┈", "warn")] * self.columns

    def marks(self) -> None:
        """A dotted line upwards for each."""
        for mark in self._chart.marks:
            column = self.column(mark.x)
            if 0 <= column < self.columns:
                for cells in self.cells:
                    cells[column] = ("┊", mark.role)

    def points(self, points: Points) -> None:
        """A glyph for each."""
        # As `column` and `row` say, without calling them: there may be thousands.
        cell, beyond = (points.marker, points.role), (BEYOND, points.role)
        columns, rows, cells = self.columns, self.rows, self.cells
        left, low = self._left, self._low
        across = (columns - 1) / ((self._right - left) or 1.0)
        up = (rows - 1) / ((self._top - low) or 1.0)
        for x, y in zip(points.x, points.y, strict=True):
            column, row = int((x - left) * across + 0.5), rows - 1 - int((y - low) * up + 0.5)
            if 0 <= column < columns and row < rows:
                cells[max(row, 0)][column] = cell if row >= 0 else beyond


def _span(series: Sequence[Points]) -> tuple[float, float]:
    known = [x for points in series for x in points.x]
    return min(known), max(known)


def _row(name: str | None, label: int, cells: list[Cell]) -> Line:
    edge = "┤" if name else "│"
    return (Span((name or "").rjust(label), "dim"), Span(edge, "faint"), *merge(cells))


def _across(chart: Chart, plot: _Plot, label: int, width: int, *, low: bool) -> Lines:
    """The axis below, and its ticks' words; the last one ends where the axis ends."""
    axis, words = ["─"] * plot.columns, [" "] * plot.columns
    for x, text in chart.x_ticks:
        column = plot.column(x)
        if not 0 <= column < plot.columns:
            continue
        axis[column] = "┬"
        start = min(max(column - len(text) // 2, 0), max(plot.columns - len(text), 0))
        around = slice(max(start - 1, 0), start + len(text) + 1)
        if all(char == " " for char in words[around]):
            words[start : start + len(text)] = text[: plot.columns - start]
            if low:
                axis[around] = " " * len(axis[around])
    if low:
        cells = [
            (edge, "faint") if word == " " else (word, "dim")
            for edge, word in zip(axis, words, strict=True)
        ]
        return (crop(line(" " * label, Span("└", "faint"), *merge(cells)), width),)
    return (
        crop(line(" " * label, Span("└" + "".join(axis), "faint")), width),
        crop(line(" " * (label + 1), Span("".join(words), "dim")), width),
    )
