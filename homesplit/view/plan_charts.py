"""The plan's chart of goodput over the offered rate, a curve for each mode."""

from __future__ import annotations

from homesplit.core.plan_map import PlanMap
from homesplit.view import numbers
from homesplit.view.charts import Chart, Mark, Points, round_marks

LEGEND = "1 one box · 2 a copy on each · s split"
_DRAWN = {"colocated": ("1", "prefill"), "replica": ("2", "decode"), "split": ("s", "handoff")}
_UNITS = ((1.0, "/s"), (60.0, "/min"), (3600.0, "/h"))


def rates_chart(shown: PlanMap | None) -> Chart:
    """Each mode's goodput at rising offered rates; a mark stands where the question is."""
    if shown is None:
        return Chart(empty="being worked out")
    if not shown.rates:
        return Chart(empty="no arrangement completes a request, so there is nothing to draw")
    series = tuple(
        Points(
            label=curve.mode,
            marker=_DRAWN.get(curve.mode, ("•", "dim"))[0],
            role=_DRAWN.get(curve.mode, ("•", "dim"))[1],
            line=True,
            x=(0.0, *curve.rates_requests_per_s),
            y=(0.0, *curve.goodput_requests_per_s),
        )
        for curve in shown.rates
    )
    right = max(points.x[-1] for points in series)
    top = 1.1 * max(max(points.y) for points in series) or 1.0
    here = shown.here_rate
    marks = (Mark(x=here, text="here"),) if here is not None and here <= right else ()
    return Chart(
        series=series,
        marks=marks,
        x_range=(0.0, right),
        y_top=top,
        y_ticks=_ticks(top),
        x_ticks=_ticks(right),
    )


def rates_words(shown: PlanMap | None) -> str:
    """The chart's legend, and where the question stands."""
    if shown is None or not shown.rates:
        return ""
    here = shown.here_rate
    if here is None:
        return f"{LEGEND} · your users set the pace"
    right = shown.rates[0].rates_requests_per_s[-1]
    where = "┊ you" if here <= right else f"you: {numbers.per_second(here)}, beyond the right edge"
    return f"{LEGEND} · {where}"


def _ticks(top: float) -> tuple[tuple[float, str], ...]:
    """Round rates from 0 on, all in the unit in which the highest is 1 or more."""
    per, unit = next((u for u in _UNITS if top * u[0] >= 1.0), _UNITS[-1])
    return tuple(
        (mark / per, f"{mark:,g}{unit}" if mark else "0") for mark in round_marks(top * per)
    )
