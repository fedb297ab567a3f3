"""The Plan screen's map: which mode wins by prompt length and one other quantity."""

from __future__ import annotations

import math

from homesplit.core.plan_map import NOBODY, PlanMap
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, crop, fit, flow, line

LABEL = 13
LEAST_LEGEND = 50
"""Characters behind the labels from which on the legend stands there."""
_ROLES = {"colocated": "prefill", "replica": "decode", "split": "handoff"}
_SHORT = {"colocated": "one", "replica": "copy", "split": "split", NOBODY: "none"}
OTHERS = {"users": "users", "requests/s": "load", "bytes/s": "link"}


def plan_map(shown: PlanMap | None, width: int) -> Lines:
    """A row for each value of the other quantity, a column for each prompt length."""
    if shown is None:
        return (line(Span("Being worked out.", "dim")),)
    cell = max(5, min(9, (width - LABEL) // max(len(shown.prompt_tokens), 1)))
    here_row, here_column = here(shown)
    rows: list[Line] = []
    for row in reversed(range(len(shown.others))):
        label = Span(other_words(shown, row), "strong" if row == here_row else "dim")
        parts = [*fit(line(label, " "), LABEL, right=True)]
        for column in range(len(shown.prompt_tokens)):
            is_here = (row, column) == (here_row, here_column)
            parts.extend(_cell(shown.cells[row][column], is_here, cell))
        rows.append(crop(tuple(parts), width))
    foot = [*fit(line(Span("prompt ", "dim")), LABEL, right=True)]
    for column, tokens in enumerate(shown.prompt_tokens):
        role = "strong" if column == here_column else "dim"
        foot.extend(fit(line(Span(_tokens(tokens), role)), cell))
    rows.append(crop(tuple(foot), width))
    return (*rows, *_legend(shown, width))


def _cell(mode: str | None, here: bool, width: int) -> Line:
    text = _SHORT.get(mode or "", "·")
    role = _ROLES.get(mode or "", "faint")
    if here:
        return fit(line(Span(f"[{text}]", "!key")), width)
    return fit(line(Span(text, role)), width)


def here(shown: PlanMap) -> tuple[int, int]:
    """Row and column of the cell in which the question lies."""
    row = _nearest(shown.others, shown.here_other)
    return row, _nearest(shown.prompt_tokens, shown.here_prompt)


def other_words(shown: PlanMap, row: int) -> str:
    """What a row stands for."""
    value = shown.others[row]
    if shown.other == "users":
        return f"{value:.0f} user{'s' if value > 1 else ''}"
    if shown.other == "requests/s":
        return numbers.per_second(value, " req")
    return numbers.link_rate(value)


def _tokens(count: int) -> str:
    return f"{round(count / 1024)}k" if count % 1024 == 0 or count > 9999 else f"{count}"


def _nearest(values: tuple[float, ...] | tuple[int, ...], here: float) -> int:
    return min(
        range(len(values)), key=lambda n: abs(math.log(values[n]) - math.log(max(here, 1e-9)))
    )


def _legend(shown: PlanMap, width: int) -> Lines:
    """What the words stand for, each with its meaning, in as many lines as that takes."""
    words: list[Line] = [
        line(Span("one", "prefill"), Span(" box (colocated)", "dim")),
        line(Span("copy", "decode"), Span(" on each (replica)", "dim")),
        line(Span("split", "handoff")),
        line(Span("[you are here]", "!key")),
    ]
    if any(NOBODY in row for row in shown.cells):
        words.insert(3, line(Span("none inside the targets", "faint")))
    room = max(width - LABEL, 1)
    indent, rows = (LABEL, flow(words, room)) if room >= LEAST_LEGEND else (0, flow(words, width))
    return tuple((Span(" " * indent), *row) for row in rows)


def title(shown: PlanMap | None) -> str:
    """What the map's rows are, for its border."""
    rows = OTHERS.get(shown.other, shown.other) if shown is not None else "load"
    return f"Who wins, by prompt length and {rows}"


def crossing(shown: PlanMap | None) -> str:
    """Where hand-off and prefill take equally long, in words."""
    if shown is None or not shown.curve:
        return ""
    if shown.crossings:
        return f"equal at {' and '.join(map(numbers.count, shown.crossings))} tokens"
    cheaper = shown.curve[0].handoff_s < shown.curve[0].prefill_s
    return "the hand-off takes less at every length" if cheaper else "the prefill takes less"
