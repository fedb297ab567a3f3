"""The pictures of a notebook's entry: what was measured or predicted, as SVG and as code for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.plan_map import CurvePoint, PlanMap, RateCurve
from homesplit.view import numbers, plan_map, svg
from homesplit.view.measured_rows import Page, ends, figure, mark, measured_rows
from homesplit.view.notebook_kinds import figure_rows

FIGURES = (
    ("ttft_s", "p50", "TTFT p50", "s"),
    ("ttft_s", "p90", "TTFT p90", "s"),
    ("tpot_s", "p50", "TPOT p50", "s"),
    ("stall_s", "p90", "stalled p90", "s"),
    ("attainment", None, "attainment", ""),
    ("goodput_requests_per_s", None, "goodput", "requests/s"),
)
_LEDGER = (
    ("queue_s", "queue"),
    ("tokenise_s", "tokenise"),
    ("prefill_s", "prefill"),
    ("handoff_exposed_s", "hand-off, exposed"),
    ("first_decode_s", "first decode step"),
)


class Picture(Struct, frozen=True):
    """A chart by the function of `svg` that draws it, and what it is given."""

    draw: Callable[..., str]
    title: str
    given: tuple[Any, ...]

    @property
    def drawn(self) -> str:
        """As SVG."""
        return self.draw(self.title, *self.given)

    @property
    def code(self) -> str:
        """The same as a line of Python for a notebook that has these functions."""
        return f"draw({self.draw.__name__}, {', '.join(map(repr, (self.title, *self.given)))})"

    @property
    def name(self) -> str:
        """Its title as a part of a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def pictures(page: Page) -> list[Picture]:
    """All of a page: a bar for each figure, and what advice draws."""
    bars = [Picture(svg.bars, title, tuple(rest)) for title, *rest in charts(page)]
    body = page.get("body")
    if page.get("kind") != "plan" or not isinstance(body, dict):
        return bars
    return [*bars, *_of_advice(body)]


# -------------------------------------------------------------------------------- bars


def drawn_rows(page: Page) -> list[tuple[str, dict[str, Any]]]:
    """Everything of a page that has figures to draw: measured, tried or predicted."""
    return measured_rows(page) or figure_rows(page)


Chart = tuple[str, str, list[svg.Bar], str]
"""Title, unit, bars, and what must be known of them."""


def charts(page: Page) -> list[Chart]:
    """Each figure of a page with figures; what was predicted stands under what was measured."""
    rows = [row for named in drawn_rows(page) for row in _with_prediction(*named)]
    note = LOOPBACK_LABEL if page.get("about", {}).get("loopback") else ""
    made: list[Chart] = []
    for key, part, title, unit in FIGURES:
        drawn: list[svg.Bar] = []
        for name, figures in rows:
            low, high = ends(figures, key, part) or _bounds(figures, key, part) or (None, None)
            told = f"{name} (estimate)" if mark(figures, key) else name
            drawn.append((told, figure(figures, key, part), low, high))
        if any(value is not None for _, value, _, _ in drawn):
            made.append((title, unit, drawn, note))
    return made


def _bounds(figures: dict[str, Any], key: str, part: str | None) -> tuple[float, float] | None:
    """What the lowest and the highest costs give of a prediction; None of what was measured."""
    if "offered" in figures or part != ("p90" if key == "stall_s" else "p50"):
        return None
    low, high = (figure(figures, key, end) for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def _with_prediction(name: str, figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    predicted = figures.get("predicted")
    more = [(f"{name}, predicted", predicted)] if isinstance(predicted, dict) else []
    return [(name, figures), *more]


# ------------------------------------------------------------------------------ advice


def _of_advice(body: dict[str, Any]) -> Iterator[Picture]:
    if rows := _ledger(body):
        names = [name for _, name in _LEDGER]
        title = "Where a request's time to its second token goes"
        yield Picture(svg.stacked, title, ("s", names, rows))
    shown = _map(body)
    if shown is None:
        return
    if shown.curve:
        yield _handoff(shown, shown.curve)
    if shown.rates:
        yield _rates(shown, shown.rates)
    if any(cell for row in shown.cells for cell in row):
        yield _winners(shown)


def _ledger(body: dict[str, Any]) -> list[svg.Stack]:
    """A bar for each class in each mode; of columns as the notebook keeps them."""
    rows = body.get("ledger")
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [
        (
            f"{row.get('mode')}, {row.get('class')}, {row.get('prompt_tokens')} tokens",
            [float(row.get(key) or 0.0) for key, _ in _LEDGER],
        )
        for row in known
    ]


def _map(body: dict[str, Any]) -> PlanMap | None:
    """What the advice would be elsewhere; None where it was not kept, or in a form that is gone."""
    try:
        return msgspec.convert(body.get("map"), PlanMap | None)
    except msgspec.ValidationError:
        return None


def _handoff(shown: PlanMap, curve: tuple[CurvePoint, ...]) -> Picture:
    series = [
        ("prefill", [(float(point.prompt_tokens), point.prefill_s) for point in curve]),
        ("hand-off of its KV", [(float(point.prompt_tokens), point.handoff_s) for point in curve]),
        ("of that exposed", [(float(point.prompt_tokens), point.exposed_s) for point in curve]),
    ]
    marks = [(shown.here_prompt, "the question")]
    marks += [(tokens, "equal") for tokens in shown.crossings]
    boxes = shown.curve_boxes
    title = "Prefill and hand-off by prompt length"
    named = f"{title}, {boxes[0]} to {boxes[1]}" if boxes else title
    drawn = [(name, [point for point in points if point[1] > 0]) for name, points in series]
    kept = [each for each in drawn if each[1]]
    axes = ("prompt tokens", "seconds")
    return Picture(svg.curves, named, (axes, kept, marks, True))


def _rates(shown: PlanMap, rates: tuple[RateCurve, ...]) -> Picture:
    series = [
        (
            each.mode,
            [(0.0, 0.0), *zip(each.rates_requests_per_s, each.goodput_requests_per_s, strict=True)],
        )
        for each in rates
    ]
    right = max(each.rates_requests_per_s[-1] for each in rates)
    here = shown.here_rate
    marks = [(here, "the question")] if here is not None and here <= right else []
    axes = ("offered requests/s", "goodput, requests/s")
    return Picture(svg.curves, "Predicted goodput over the offered rate", (axes, series, marks))


def _winners(shown: PlanMap) -> Picture:
    """Which mode wins by prompt length and the other quantity, the largest on top."""
    order = list(reversed(range(len(shown.others))))
    rows = [(plan_map.other_words(shown, row), list(shown.cells[row])) for row in order]
    row, column = plan_map.here(shown)
    columns = [numbers.count(tokens) for tokens in shown.prompt_tokens]
    axes = ("prompt tokens", plan_map.OTHERS.get(shown.other, shown.other))
    return Picture(
        svg.squares, plan_map.title(shown), (axes, columns, rows, (order.index(row), column))
    )
