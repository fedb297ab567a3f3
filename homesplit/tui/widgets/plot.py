"""A chart by plotext 6 in a widget: points by class, a target line, marks where a mode began.

plotext keeps one figure for the whole process, so each chart clears it and draws in one
go in the app's own thread; and it caps sizes to the process's terminal unless told not to.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from rich.text import Text
from textual.widget import Widget

from homesplit.tui.theme import colour_of
from homesplit.view.charts import Chart, Points

_BACKGROUND = re.compile(r"\x1b\[48;[0-9;]*m")
"""plotext paints a background of its own; the app's theme has one already."""


class Plot(Widget):
    """Shows a `Chart`."""

    DEFAULT_CSS = "Plot { height: 1fr; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chart = Chart()

    def show(self, chart: Chart) -> None:
        """Draw another chart."""
        if chart != self._chart:
            self._chart = chart
            self.refresh()

    def render(self) -> Text:
        """The chart as coloured text."""
        width, height = self.size
        if not any(points.x for points in self._chart.series):
            return Text(self._chart.empty, style="dim")
        if width < 20 or height < 4:
            return Text("make the window larger for the chart", style="dim")
        dark = self.app.current_theme.dark
        drawn = Text.from_ansi(draw(self._chart, width, height, dark=dark), no_wrap=True)
        return drawn


def _plotext() -> Any:
    """Imported with the first chart: it takes longer than the first picture may."""
    return importlib.import_module("plotext")


def draw(chart: Chart, width: int, height: int, *, dark: bool) -> str:
    """The chart as ANSI text of `width` by `height` characters."""
    plotext = _plotext()
    figure: Any = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    _frame(figure, chart, dark)
    for points in chart.series:
        _draw_points(figure, points, dark)
    if chart.target is not None:
        figure.line(
            chart.target, orientation="horizontal", pixel=_pixel("warn", dark), style="dotted"
        )
    for mark in chart.marks:
        figure.line(mark.x, orientation="vertical", pixel=_pixel(mark.role, dark), style="dotted")
    return _BACKGROUND.sub("", str(figure.build().string()))


def _pixel(role: str, dark: bool) -> Any:
    """A role's hue as plotext wants it; a bare triple would mean foreground, background, style."""
    return _plotext().pixel(foreground=colour_of(role, dark))


def _frame(figure: Any, chart: Chart, dark: bool) -> None:
    quiet = _pixel("quiet", dark)
    figure.axes(False, side="upper", axis="x")
    figure.axes(False, side="right", axis="y")
    figure.axes(True, pixel=_pixel("faint", dark), side="lower", axis="x")
    figure.axes(True, pixel=_pixel("faint", dark), side="left", axis="y")
    across, up = figure.ruler("x", "lower"), figure.ruler("y", "left")
    across.pixel(quiet)
    up.pixel(quiet)
    figure.legend(False)
    if chart.x_range is not None:
        across.lim(*chart.x_range)
    if chart.y_top is not None:
        up.lim(chart.y_low, chart.y_top)
    if chart.y_ticks:
        up.ticks([at for at, _ in chart.y_ticks], [text for _, text in chart.y_ticks])
    if chart.x_ticks:
        across.ticks([at for at, _ in chart.x_ticks], [text for _, text in chart.x_ticks])


def _draw_points(figure: Any, points: Points, dark: bool) -> None:
    if not points.x:
        return
    marker = _plotext().marker(points.marker, pixel=_pixel(points.role, dark))
    signal = figure.signal(list(points.x), list(points.y), marker=marker)
    if points.line:
        signal.lines()
    figure.draw(signal)
