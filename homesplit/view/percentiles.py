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
INTERVALS = "Under each time its 95 % interval (±: the end that lies farther off)."
BOUNDS = "Under a prediction: what the lowest and the highest costs give."
PER = "ITL is per token, the others per request."
NAME = max(len(title) for _, title in TIMES)
UNITS = (("µs", 1e6, 0.9995e-3), ("ms", 1e3, 0.9995), ("s", 1.0, 100.0), ("min", 1 / 60, 3600.0))
"""A unit, how many of it a second has, and below what time in seconds it is chosen.

The same borders as `numbers.seconds` has, so that a time and its interval are of one unit.
"""
LONGEST = 10_000
"""Of a unit: an end beyond that is told in a larger one."""

Cells = tuple[str, list[list[str]]]
"""A name, and for each percentile what stands in its cell, line under line."""


def percentile_lines(rows: Rows, width: int = 80) -> list[str]:
    """The table by figure, each with its sets of figures; a longer name has a line of its own."""
    # Four columns, each two cells from what stands before it.
    cell = (width - NAME) // len(PARTS) - 2
    told = [(title, block) for key, title in TIMES if (block := _block(rows, key, cell))]
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


def _block(rows: Rows, key: str, cell: int) -> list[Cells]:
    """One figure of every set, no interval wider than `cell`; empty where no set has it."""
    if not _known(rows, key):
        return []
    made: list[Cells] = []
    for name, figures in rows:
        made.append((name, [_measured(figures, key, part, cell) for part in PARTS]))
        if predicted := _prediction(figures, key):
            cells = [_predicted(predicted, key, part, cell) for part in PARTS]
            made.append(("  predicted", cells))
    return made


def _known(rows: Rows, key: str) -> bool:
    """Whether any set has this figure."""
    return any(figure(figures, key, part) is not None for _, figures in rows for part in PARTS)


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


def _measured(figures: dict[str, Any], key: str, part: str, cell: int) -> list[str]:
    value, found = figure(figures, key, part), ends(figures, key, part)
    if value is None:
        return [NOTHING]
    under = _short(value, *found, cell) if found else ""
    return [mark(figures, key) + numbers.seconds(value), under]


def _predicted(predicted: dict[str, Any], key: str, part: str, cell: int) -> list[str]:
    """Not every percentile is predicted."""
    return [""] if figure(predicted, key, part) is None else _measured(predicted, key, part, cell)


def _short(value: float, low: float, high: float, cell: int) -> str:
    """`181 to 223 ms` in the unit that the time itself is told in, in at most `cell` cells.

    With fewer figures where it has to be, else by how far the farther end lies from the time.
    Empty where the ends are the time itself.
    """
    if low == high:
        return ""
    unit, each = _unit(value or high, high)
    told = [say.span(low * each, high * each, unit, figures=figures) for figures in (3, 2)]
    close = f"± {numbers.seconds(max(abs(value - low), abs(high - value)))}"
    return next((one for one in told if len(one) <= cell), close)


def _unit(value: float, high: float) -> tuple[str, float]:
    """The unit of a time that tells its interval's upper end too, and how many a second has."""
    for unit, each, below in UNITS:
        if abs(value) < below and abs(high) * each < LONGEST:
            return unit, each
    return "h", 1 / 3600


def table_words(rows: Rows) -> list[str]:
    """What stands under the times of such a table, a sentence each."""
    shown = [(figures, key) for key, _ in TIMES if _known(rows, key) for _, figures in rows]
    predicted = [(found, key) for figures, key in shown if (found := _prediction(figures, key))]
    told = [
        INTERVALS if any(_spread(figures, key) for figures, key in shown) else "",
        BOUNDS if any(_spread(found, key) for found, key in predicted) else "",
        PER,
    ]
    return [" ".join(one for one in told if one), *thin_words(rows)]


def _spread(figures: dict[str, Any], key: str) -> bool:
    """Whether an interval of this figure is told: one of no width is not."""
    found = (ends(figures, key, p) for p in PARTS if figure(figures, key, p) is not None)
    return any(low != high for low, high in (each for each in found if each))


def percentile_table(rows: Rows) -> list[list[str]]:
    """Head and rows for Markdown: seconds, the 95 % interval in brackets."""
    head = ["[s]", "", *PARTS]
    made = [
        [title, name, *(_bracketed(figures, key, part) for part in PARTS)]
        for key, title in TIMES
        if _known(rows, key)
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


def thin_words(rows: Rows) -> list[str]:
    """Which percentiles are little more than the slowest request, and of which sets."""
    told = [(name, _thin(figures)) for name, figures in rows]
    known = [(name, text) for name, text in told if text]
    if len(rows) == len(known) and len({text for _, text in known}) == 1:
        return [known[0][1].capitalize()]
    # The whole of a run needs no name.
    whole = [text.capitalize() for name, text in known if name == "all"]
    return [*whole, *say.by_names(each for each in known if each[0] != "all")]


def _thin(figures: dict[str, Any]) -> str:
    """`of 9 requests p90, …`; empty where each percentile has a request beyond it."""
    count = int((figures.get("ttft_s") or {}).get("count") or 0)
    # Ten requests have one beyond the p90: what is beside 1 by rounding is 1.
    thin = [part for part, share in PARTS.items() if count and count * (1 - share) < 1 - 1e-9]
    if not thin:
        return ""
    be, end = ("is", "its interval ends") if len(thin) == 1 else ("are", "their intervals end")
    return (
        f"of {say.counted(count, 'request')} {say.listed(thin)} of what is per request {be} about "
        f"the slowest; {end} there."
    )
