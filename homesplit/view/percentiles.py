"""Percentiles of times with their intervals: a table of 80 columns, or one of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homesplit.core import say
from homesplit.view import numbers
from homesplit.view.measured_rows import Rows, ends, figure, mark

TIMES = (
    ("ttft_s", "TTFT"),
    ("ttst_s", "TTST"),
    ("tpot_s", "TPOT"),
    ("itl_s", "ITL"),
    ("stall_s", "stalled"),
)
"""Figures that have percentiles."""
PARTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
NOTHING = "no data"
INTERVALS = "Under each time its 95 % interval. ITL is per token, the others per request."
WIDEST = 16
"""Cells of an interval, so that four of them fit beside a name."""

Cells = tuple[str, list[list[str]]]
"""A name, and for each percentile what stands in its cell, line under line."""


def percentile_lines(rows: Rows, width: int = 80) -> list[str]:
    """The table by figure, each with its sets of figures; a longer name has a line of its own."""
    told = [(title, block) for key, title in TIMES if (block := _block(rows, key))]
    if not told:
        return []
    sizes = _sizes([columns for _, block in told for _, columns in block])
    titles = max(len(title) for title, _ in told)
    names = max(len(name) + 2 for _, block in told for name, _ in block)
    room = width - sum(sizes) - 2 * len(sizes)
    first = max(titles, min(names, room))
    made: list[str] = []
    for title, block in told:
        made.append(_line(title, list(PARTS), first, sizes))
        for name, columns in block:
            made.extend(_row_lines(f"  {name}", columns, first, sizes))
    return made


def _row_lines(name: str, columns: list[list[str]], first: int, sizes: Sequence[int]) -> list[str]:
    """The values, and the intervals under them."""
    alone = len(name) > first
    made = [name] if alone else []
    for number in range(max(len(column) for column in columns)):
        texts = [column[number] if number < len(column) else "" for column in columns]
        if any(texts):
            made.append(_line("" if alone or number else name, texts, first, sizes))
    return made


def _line(name: str, texts: Sequence[str], first: int, sizes: Sequence[int]) -> str:
    told = "".join(f"  {text:>{size}}" for text, size in zip(texts, sizes, strict=True))
    return f"{name:<{first}}{told}".rstrip()


def _sizes(every: Sequence[list[list[str]]]) -> list[int]:
    """How wide each percentile's column has to be."""
    return [
        max(len(part), *(len(text) for columns in every for text in columns[n]))
        for n, part in enumerate(PARTS)
    ]


def _block(rows: Rows, key: str) -> list[Cells]:
    """One figure of every set; empty where no set has it."""
    if all(figure(figures, key, part) is None for _, figures in rows for part in PARTS):
        return []
    made: list[Cells] = []
    for name, figures in rows:
        made.append((name, [_measured(figures, key, part) for part in PARTS]))
        if predicted := _prediction(figures, key):
            made.append(("  predicted", [_predicted(predicted, key, part) for part in PARTS]))
    return made


def _prediction(figures: dict[str, Any], key: str) -> dict[str, Any] | None:
    """What was predicted, as figures with intervals; None where this figure was not.

    What the costs all low and all high give is an interval of one percentile alone.
    """
    predicted = figures.get("predicted")
    found = predicted.get(key) if isinstance(predicted, dict) else None
    if not isinstance(predicted, dict) or not isinstance(found, dict):
        return None
    known = all(isinstance(found.get(end), int | float) for end in ("low", "high"))
    part = "p90" if key == "stall_s" else "p50"
    return {**predicted, "intervals": {f"{key}_{part}": found} if known else {}}


def _measured(figures: dict[str, Any], key: str, part: str) -> list[str]:
    value, found = figure(figures, key, part), ends(figures, key, part)
    if value is None:
        return [NOTHING]
    return [mark(figures, key) + numbers.seconds(value), _short(*found) if found else ""]


def _predicted(predicted: dict[str, Any], key: str, part: str) -> list[str]:
    """Not every percentile is predicted."""
    return [""] if figure(predicted, key, part) is None else _measured(predicted, key, part)


def _short(low: float, high: float) -> str:
    """`181 to 223 ms`: one unit for both ends, as `numbers.seconds` would choose it.

    Empty where the ends are the figure itself.
    """
    if low == high:
        return ""
    in_ms = max(low, high) < 0.9995
    told = say.span(low * 1000, high * 1000, "ms") if in_ms else say.span(low, high, "s")
    return told if len(told) <= WIDEST else f"within {numbers.seconds(high - low)}"


def percentile_table(rows: Rows) -> list[list[str]]:
    """Head and rows for Markdown: seconds, the 95 % interval in brackets."""
    head = ["[s]", "", *PARTS]
    made = [
        [title, name, *(_bracketed(figures, key, part) for part in PARTS)]
        for key, title in TIMES
        if _block(rows, key)
        for name, figures in _with_predictions(rows, key)
    ]
    return [head, *made] if made else []


def _with_predictions(rows: Rows, key: str) -> Rows:
    made: Rows = []
    for name, figures in rows:
        made.append((name, figures))
        if predicted := _prediction(figures, key):
            made.append((f"{name}, predicted", predicted))
    return made


def _bracketed(figures: dict[str, Any], key: str, part: str) -> str:
    value, found = figure(figures, key, part), ends(figures, key, part)
    if value is None:
        return NOTHING if "offered" in figures else ""
    told = f"{mark(figures, key)}{value:.4g}"
    if found is None or found[0] == found[1]:
        return told
    return f"{told} ({found[0]:.4g} to {found[1]:.4g})"


def thin_words(rows: Rows) -> str | None:
    """Which percentiles are little more than the slowest request; None where none is."""
    counts = [int((figures.get("ttft_s") or {}).get("count") or 0) for _, figures in rows]
    known = [count for count in counts if count]
    thin = [part for part, share in PARTS.items() if known and min(known) * (1 - share) < 1]
    if not thin:
        return None
    be, end = ("is", "its interval ends") if len(thin) == 1 else ("are", "their intervals end")
    return f"Of {min(known)} requests {say.listed(thin)} {be} about the slowest; {end} there."
