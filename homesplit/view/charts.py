"""Charts as values: sets of points, a target, marks, ticks; a widget only has to draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.engine_state import Engine
from homesplit.core.plan_map import PlanMap
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.trails import SPAN_S, Trails


class Points(Struct, frozen=True, kw_only=True):
    """One set of points; `line` joins them."""

    label: str
    role: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    marker: str = "•"
    line: bool = False


class Mark(Struct, frozen=True, kw_only=True):
    """A vertical line with a word, such as a mode switch."""

    x: float
    text: str
    role: str = "key"


class Chart(Struct, frozen=True, kw_only=True):
    """Everything a chart shows."""

    series: tuple[Points, ...] = ()
    target: float | None = None
    marks: tuple[Mark, ...] = ()
    x_range: tuple[float, float] | None = None
    y_top: float | None = None
    """A point above it stands at the upper edge, as an arrow."""
    y_low: float = 0.0
    y_ticks: tuple[tuple[float, str], ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    empty: str = "nothing to draw yet"


def requests_chart(
    engine: Engine, trails: Trails, which: str, targets: Targets, now_s: float
) -> Chart:
    """One point a request over the last minutes: TTFT (`ttft`) or TPOT (`tpot`)."""
    found = trails.of(which)
    target = targets.ttft_s if which == "ttft" else targets.tpot_s
    top = _fair_top([value for trail in found for value in trail.values], target)
    return Chart(
        series=tuple(
            Points(
                label=one.name,
                role=one.role,
                marker=one.marker,
                x=tuple([at_s - now_s for at_s in trail.at_s]),
                y=tuple(trail.values),
            )
            for one, trail in zip(trails.classes, found, strict=True)
        ),
        target=target,
        marks=_event_marks(engine, now_s, SPAN_S),
        x_range=(-SPAN_S, 0.0),
        y_top=top,
        y_ticks=time_ticks(top),
        x_ticks=tuple(
            (-SPAN_S * part / 3, f"{SPAN_S * part / 3:.0f} s ago" if part else "now")
            for part in (3, 2, 1, 0)
        ),
        empty="one point for each request, once some have been answered",
    )


def _fair_top(values: Sequence[float], target: float | None) -> float:
    """Where the axis ends: at the highest, unless a few of them would press all others flat."""
    ordered = sorted(values)
    highest = ordered[-1] if ordered else 0.0
    most = ordered[int(len(ordered) * 0.95)] if ordered else 0.0
    fair = max(2.0 * most, 4.0 * (target or 0.0))
    if target is not None and highest > fair:
        return fair
    return max(highest, (target or 0.0) * 1.2) * 1.1 or 1.0


def _event_marks(engine: Engine, now_s: float, span_s: float) -> tuple[Mark, ...]:
    """Mode switches and faults."""
    switches = (Mark(x=one.at_s - now_s, text=one.setting.mode) for one in engine.switches)
    faults = (Mark(x=one.at_s - now_s, text=one.kind, role="bad") for one in engine.faults)
    return tuple(mark for mark in (*switches, *faults) if mark.x > -span_s)


def time_ticks(top: float, parts: int = 2) -> tuple[tuple[float, str], ...]:
    """Round moments from 0 up to `top` seconds."""
    return tuple((mark, numbers.seconds(mark)) for mark in round_marks(top, parts))


def round_marks(top: float, parts: int = 2) -> tuple[float, ...]:
    """At most six round numbers from 0 up to `top`, so many apart that `parts` fit."""
    step = 10.0**-6
    for scale in range(-6, 5):
        for factor in (1, 2, 5):
            if top / (factor * 10.0**scale) >= parts:
                step = factor * 10.0**scale
    return tuple(step * number for number in range(int(top / step) + 1))[:6]


def handoff_chart(shown: PlanMap | None) -> Chart:
    """Prefill against the hand-off of its KV over the prompt's length, both axes logarithmic.

    Left and right of a crossing, if there is one, the other of the two takes longer; marks
    stand at each crossing and at the present question.
    """
    if shown is None:
        return Chart(empty="being worked out")
    if not shown.curve:
        return Chart(empty="no split among the arrangements, so there is no hand-off to weigh")
    series = tuple(
        Points(
            label=label,
            role=role,
            marker=marker,
            line=True,
            x=tuple(math.log2(point.prompt_tokens) for point in shown.curve),
            y=tuple(math.log10(max(getattr(point, name), 1e-6)) for point in shown.curve),
        )
        for label, name, role, marker in (
            ("prefill", "prefill_s", "prefill", "p"),
            ("hand-off", "handoff_s", "handoff", "h"),
        )
    )
    lows = [value for points in series for value in points.y]
    low, high = math.floor(min(lows)), math.ceil(max(lows) + 1e-9)
    marks = [Mark(x=math.log2(max(shown.here_prompt, 1.0)), text="here")]
    marks += [Mark(x=math.log2(tokens), text="equal") for tokens in shown.crossings]
    tokens = [point.prompt_tokens for point in shown.curve]
    return Chart(
        series=series,
        marks=tuple(marks),
        x_range=(math.log2(tokens[0]), math.log2(tokens[-1])),
        y_low=float(low),
        y_top=float(max(high, low + 1)),
        y_ticks=tuple((float(n), numbers.seconds(10.0**n)) for n in range(low, high + 1)),
        x_ticks=tuple((math.log2(count), f"{count}") for count in tokens[::2]),
    )
