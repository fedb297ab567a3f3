"""Charts as values: sets of points, a target, marks, ticks; a widget only has to draw them."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSwitch
from msgspec import Struct

from homesplit.core.plan import LedgerRow, Plan
from homesplit.core.state import Done, Engine
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.monitor import CLASSES


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


class Chart(Struct, frozen=True, kw_only=True):
    """Everything a chart shows."""

    series: tuple[Points, ...] = ()
    target: float | None = None
    marks: tuple[Mark, ...] = ()
    x_range: tuple[float, float] | None = None
    y_top: float | None = None
    y_ticks: tuple[tuple[float, str], ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    empty: str = "nothing to draw yet"


_CLASS_LOOK = {"short": ("decode", "•"), "medium": ("handoff", "▴"), "long": ("prefill", "◆")}


def requests_chart(
    engine: Engine, which: str, targets: Targets, now_s: float, span_s: float = 180.0
) -> Chart:
    """One point a request over the last `span_s` seconds: TTFT (`ttft`) or TPOT (`tpot`)."""
    seen = [done for done in engine.requests if done.at_s >= now_s - span_s]
    series = tuple(
        _class_points(seen, name, low, high, which, now_s) for name, low, high in CLASSES
    )
    target = targets.ttft_s if which == "ttft" else targets.tpot_s
    tops = [value for points in series for value in points.y]
    top = max([*tops, (target or 0.0) * 1.2], default=1.0) * 1.1 or 1.0
    return Chart(
        series=series,
        target=target,
        marks=_switch_marks(engine.switches, now_s, span_s),
        x_range=(-span_s, 0.0),
        y_top=top,
        y_ticks=time_ticks(top),
        x_ticks=tuple(
            (-span_s * part / 3, f"{span_s * part / 3:.0f} s ago" if part else "now")
            for part in (3, 2, 1, 0)
        ),
        empty="one point for each request, once some have been answered",
    )


def _class_points(
    seen: Sequence[Done], name: str, low: int, high: int, which: str, now_s: float
) -> Points:
    pairs = [
        (done.at_s - now_s, done.ttft_s if which == "ttft" else done.tpot_s)
        for done in seen
        if low <= done.prompt_tokens < high and done.outcome == "completed"
    ]
    known = [(x, y) for x, y in pairs if y is not None]
    role, marker = _CLASS_LOOK[name]
    return Points(
        label=name,
        role=role,
        marker=marker,
        x=tuple(round(x, 1) for x, _ in known),
        y=tuple(y for _, y in known),
    )


def _switch_marks(switches: Sequence[ModeSwitch], now_s: float, span_s: float) -> tuple[Mark, ...]:
    return tuple(
        Mark(x=switch.at_s - now_s, text=switch.setting.mode)
        for switch in switches
        if switch.at_s > now_s - span_s
    )


def time_ticks(top: float, parts: int = 2) -> tuple[tuple[float, str], ...]:
    """Round moments from 0 up to `top` seconds."""
    step = 10.0**-6
    for scale in range(-6, 5):
        for factor in (1, 2, 5):
            if top / (factor * 10.0**scale) >= parts:
                step = factor * 10.0**scale
    marks = [step * number for number in range(int(top / step) + 1)]
    return tuple((mark, numbers.seconds(mark)) for mark in marks[:6])


def handoff_chart(plan: Plan) -> Chart:
    """Hand-off against prefill over the prompt's length, from the plan's own ledger.

    Where the hand-off's line is the lower one, a split's hand-off costs less than the
    prefill that it moves away.
    """
    rows = sorted(
        (row for row in plan.ledger if row.mode == "split"), key=lambda row: row.prompt_tokens
    )
    if not rows:
        return Chart(empty="no split among the arrangements, so there is no hand-off to weigh")
    prefill = _ledger_points(rows, "prefill", "prefill_s", "prefill")
    handoff = _ledger_points(rows, "hand-off", "handoff_s", "handoff")
    top = max(*prefill.y, *handoff.y) * 1.15 or 1.0
    widest = float(rows[-1].prompt_tokens)
    return Chart(
        series=(prefill, handoff),
        x_range=(0.0, widest * 1.05),
        y_top=top,
        y_ticks=time_ticks(top),
        x_ticks=tuple(
            (widest * part / 4, f"{widest * part / 4:.0f}" + (" tokens" if part == 4 else ""))
            for part in range(5)
        ),
    )


def _ledger_points(rows: Sequence[LedgerRow], label: str, name: str, role: str) -> Points:
    return Points(
        label=label,
        role=role,
        marker="braille",
        line=True,
        x=(0.0, *(float(row.prompt_tokens) for row in rows)),
        y=(0.0, *(float(getattr(row, name)) for row in rows)),
    )
