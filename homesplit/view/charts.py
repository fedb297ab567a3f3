"""Charts as values: sets of points, a target, marks, ticks; a widget only has to draw them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.engine_state import Engine
from homesplit.core.plan_map import PlanMap
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.prompt_classes import PromptClass
from homesplit.view.watch import LATE_S


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
    y_low: float = 0.0
    y_ticks: tuple[tuple[float, str], ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    empty: str = "nothing to draw yet"


CELLS = (240, 64)
"""Points nearer to each other than the chart's width and height over these are drawn once."""


def requests_chart(
    engine: Engine,
    which: str,
    targets: Targets,
    now_s: float,
    classes: Sequence[PromptClass],
    span_s: float = 180.0,
) -> Chart:
    """One point a request over the last `span_s` seconds: TTFT (`ttft`) or TPOT (`tpot`)."""
    found = _values(engine, which, now_s - span_s)
    target = targets.ttft_s if which == "ttft" else targets.tpot_s
    highest = max((value for _, value, _ in found), default=0.0)
    top = max(highest, (target or 0.0) * 1.2) * 1.1 or 1.0
    return Chart(
        series=_by_class(found, classes, now_s, span_s, top),
        target=target,
        marks=_event_marks(engine, now_s, span_s),
        x_range=(-span_s, 0.0),
        y_top=top,
        y_ticks=time_ticks(top),
        x_ticks=tuple(
            (-span_s * part / 3, f"{span_s * part / 3:.0f} s ago" if part else "now")
            for part in (3, 2, 1, 0)
        ),
        empty="one point for each request, once some have been answered",
    )


def _values(engine: Engine, which: str, since_s: float) -> list[tuple[float, float, int]]:
    """When each completed request ended, its figure, its prompt's tokens."""
    first = bisect_left(engine.requests, since_s - LATE_S, key=lambda done: done.at_s)
    found: list[tuple[float, float, int]] = []
    for done in engine.requests[first:]:
        value = done.ttft_s if which == "ttft" else done.tpot_s
        if value is not None and done.outcome == "completed" and done.at_s >= since_s:
            found.append((done.at_s, value, done.prompt_tokens))
    return found


def _by_class(
    found: Sequence[tuple[float, float, int]],
    classes: Sequence[PromptClass],
    now_s: float,
    span_s: float,
    top: float,
) -> tuple[Points, ...]:
    cells: list[dict[tuple[int, int], tuple[float, float]]] = [{} for _ in classes]
    highs = [one.high for one in classes]
    across, up = CELLS[0] / span_s, CELLS[1] / top
    for at_s, value, prompt_tokens in found:
        place = min(bisect_right(highs, prompt_tokens), len(classes) - 1)
        cells[place][int(at_s * across), int(value * up)] = (at_s, value)
    return tuple(
        Points(
            label=one.name,
            role=one.role,
            marker=one.marker,
            x=tuple(round(at_s - now_s, 1) for at_s, _ in points.values()),
            y=tuple(value for _, value in points.values()),
        )
        for one, points in zip(classes, cells, strict=True)
    )


def _event_marks(engine: Engine, now_s: float, span_s: float) -> tuple[Mark, ...]:
    """Mode switches and faults."""
    switches = (Mark(x=one.at_s - now_s, text=one.setting.mode) for one in engine.switches)
    faults = (Mark(x=one.at_s - now_s, text=one.kind, role="bad") for one in engine.faults)
    return tuple(mark for mark in (*switches, *faults) if mark.x > -span_s)


def time_ticks(top: float, parts: int = 2) -> tuple[tuple[float, str], ...]:
    """Round moments from 0 up to `top` seconds."""
    step = 10.0**-6
    for scale in range(-6, 5):
        for factor in (1, 2, 5):
            if top / (factor * 10.0**scale) >= parts:
                step = factor * 10.0**scale
    marks = [step * number for number in range(int(top / step) + 1)]
    return tuple((mark, numbers.seconds(mark)) for mark in marks[:6])


def handoff_chart(shown: PlanMap | None) -> Chart:
    """Prefill against the hand-off of its KV over the prompt's length, both axes logarithmic.

    Left and right of the crossing, if there is one, the other of the two takes longer; marks
    stand at the crossing and at the present question.
    """
    if shown is None:
        return Chart(empty="being worked out")
    if not shown.curve:
        return Chart(empty="no split among the arrangements, so there is no hand-off to weigh")
    series = tuple(
        Points(
            label=label,
            role=role,
            marker="braille",
            line=True,
            x=tuple(math.log2(point.prompt_tokens) for point in shown.curve),
            y=tuple(math.log10(max(getattr(point, name), 1e-6)) for point in shown.curve),
        )
        for label, name, role in (
            ("prefill", "prefill_s", "prefill"),
            ("hand-off", "handoff_s", "handoff"),
        )
    )
    lows = [value for points in series for value in points.y]
    low, high = math.floor(min(lows)), math.ceil(max(lows) + 1e-9)
    marks = [Mark(x=math.log2(max(shown.here_prompt, 1.0)), text="here")]
    crossing = shown.crossing_tokens
    if crossing is not None:
        marks.append(Mark(x=math.log2(crossing), text="equal"))
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
