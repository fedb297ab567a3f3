"""The plan's modes by what they take: goodput per box, per watt-hour and per unit of money."""

from __future__ import annotations

from homesplit.core.plan import ModePrediction, Plan
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, crop, fit, line, wrap

FIRST = 26
_HEADS = ("a box", "a Wh", "1,000 paid")


def per_hardware(plan: Plan, width: int) -> Lines:
    """A row for each arrangement; figures that aren't known are left out with the reason."""
    cell = max(9, min(14, (width - FIRST) // len(_HEADS)))
    top = [*fit(line(Span("goodput for", "dim")), FIRST)]
    for head in _HEADS:
        top.extend(fit(line(Span(head, "dim")), cell, right=True))
    rows = [crop(tuple(top), width)]
    rows.extend(_row(mode, recommended(mode, plan), cell, width) for mode in plan.modes)
    missing = [
        what
        for what, known in (
            ("power", any(m.goodput_per_watt_hour is not None for m in plan.modes)),
            ("price", any(m.goodput_per_price is not None for m in plan.modes)),
        )
        if not known
    ]
    if missing:
        said = f"The {' and '.join(missing)} of these boxes is not known to a probe or a profile."
        rows.extend(wrap(said, width, "dim"))
    return tuple(rows)


def recommended(mode: ModePrediction, plan: Plan) -> bool:
    """Whether this is the arrangement that the plan advises."""
    advice = plan.recommendation
    if mode.mode != advice.mode or mode.prefill != (advice.prefill or mode.prefill):
        return False
    roles = (mode.prefill_box, mode.decode_box), (advice.prefill_box, advice.decode_box)
    if mode.mode == "colocated":
        return mode.decode_box == advice.decode_box
    return mode.mode != "split" or roles[0] == roles[1]


def _row(mode: ModePrediction, best: bool, cell: int, width: int) -> Line:
    where = f"{mode.prefill} {mode.boxes[0]}" if mode.mode == "colocated" else mode.prefill
    if mode.mode == "split":
        where = f"{mode.prefill_box}▶{mode.decode_box}"
    name = line(
        Span("▸ " if best else "  ", "key"),
        Span(mode.mode, "strong" if best else ""),
        Span(f" {where}", "dim"),
    )
    price = None if mode.goodput_per_price is None else 1000.0 * mode.goodput_per_price
    hour = mode.goodput_per_watt_hour
    figures = (
        numbers.per_second(mode.goodput_per_box),
        numbers.MISSING if hour is None else numbers.significant(hour, 2),
        numbers.per_second(price),
    )
    role = "strong" if best else ""
    cells = [span for text in figures for span in fit(line(Span(text, role)), cell, right=True)]
    return crop((*fit(name, FIRST), *cells), width)
