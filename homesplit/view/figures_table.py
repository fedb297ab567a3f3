"""The figures of a run by class, or of a comparison by mode, as a narrow table to read."""

from __future__ import annotations

from typing import Any

from homesplit.view import numbers
from homesplit.view.notebook_pages import Page, figure, mark, measured_rows

_TIMES = (("ttft_s", "p50"), ("ttft_s", "p90"), ("tpot_s", "p50"), ("stall_s", "p90"))
_HEAD = ("", "offered", "done", "TTFT p50", "p90", "TPOT p50", "stalled p90", "inside", "goodput")


def figures_table(page: Page) -> list[list[str]]:
    """Head and rows; empty where the page has none. What was predicted stands under its mode."""
    rows = measured_rows(page)
    if not rows:
        return []
    return [list(_HEAD), *(row for name, figures in rows for row in _rows(name, figures))]


def _rows(name: str, figures: dict[str, Any]) -> list[list[str]]:
    counts = [str(figures.get(key, numbers.MISSING)) for key in ("offered", "completed")]
    made = [[name, *counts, *_cells(figures)]]
    predicted = figures.get("predicted")
    if isinstance(predicted, dict):
        made.append(["  predicted", "", "", *_cells(predicted)])
    return made


def _cells(figures: dict[str, Any]) -> list[str]:
    times = [(key, numbers.seconds(figure(figures, key, part))) for key, part in _TIMES]
    share = ("attainment", numbers.share(figure(figures, "attainment", None)))
    good = figure(figures, "goodput_requests_per_s", None)
    # One unit in all rows, so that they can be compared at a glance.
    rate = ("goodput_requests_per_s", numbers.MISSING if good is None else f"{good:.3g}/s")
    cells = (*times, share, rate)
    return [text if text == numbers.MISSING else mark(figures, key) + text for key, text in cells]
