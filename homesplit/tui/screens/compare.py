"""Compare: the same requests through each mode on the same boxes, and the verdict."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import compare, road
from homesplit.view.spans import EMPTY, Lines

TALL, TOWERING = 34, 50
"""Rows from which on the figures stand apart, and from which on their meaning is told below."""


class CompareScreen(StageScreen):
    """The fifth stop."""

    STAGE = "compare"
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = (
        LongWork(
            "compare",
            "Stop the comparison?",
            "The modes that have been run stay in the table; there will be no verdict.",
        ),
    )

    def compose_body(self) -> ComposeResult:
        """Verdict above, the table below."""
        with Vertical(classes="panel", id="compare-verdict") as verdict:
            verdict.border_title = "Verdict"
            yield LinesView(self._verdict, id="verdict")
        with VerticalScroll(classes="panel grow") as table:
            table.border_title = "The same requests through each mode"
            table.border_subtitle = "meas. measured · pred. predicted"
            yield LinesView(self._table, id="table")

    def _verdict(self, width: int, height: int) -> Lines:
        return compare.verdict(self.state, width, tall=self.size.height >= TALL)

    def _table(self, width: int, height: int) -> Lines:
        tall = self.size.height
        table = compare.table(self.state, width, tall=tall >= TALL)
        return (*table, EMPTY, *compare.meaning(width)) if tall >= TOWERING else table

    def show_body(self) -> None:
        """Verdict and table as they are now."""
        self.query_one("#verdict", LinesView).redraw()
        self.query_one("#table", LinesView).redraw()

    def action_advance(self) -> None:
        """Run the comparison."""
        if self.controller.running("compare"):
            return
        if not road.is_serving(self.state):
            self.go("deploy")
        else:
            self.controller.compare()
