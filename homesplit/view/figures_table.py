"""The figures of a run by class, or of a comparison by mode, as tables of 80 columns to read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from homesplit.core import say
from homesplit.view import numbers
from homesplit.view.measured_rows import Rows, ends, figure, mark
from homesplit.view.percentiles import NOTHING, percentile_lines, table_words

ESTIMATES = "~ marks estimates: they rest on counts of tokens that the server did not tell"
_HEAD = ("", "done", "inside targets", "goodput, requests/s")


def figure_lines(rows: Rows, width: int = 80) -> list[str]:
    """Counts and shares, then every percentile, each with its 95 % interval."""
    if not rows:
        return []
    made = [*_aligned([list(_HEAD), *(row for named in rows for row in _rows(*named))], width)]
    made += _wrapped(_token_words(rows), width)
    times = percentile_lines(rows, width)
    if not times:
        return made
    words = (text for told in table_words(rows) for text in _wrapped(told, width))
    return [*made, "", *times, *words]


def _wrapped(told: str, width: int) -> list[str]:
    return textwrap.wrap(told, max(width, 20))


def _token_words(rows: Rows) -> str:
    """Tokens a second of every set; empty where none is known."""
    keys = ("goodput_tokens_per_s", "throughput_tokens_per_s")
    told = [
        f"{name} " + " of ".join(f"{mark(figures, key)}{value:.3g}" for key, value in known)
        for name, figures in rows
        if len(known := [(k, v) for k in keys if (v := figure(figures, k, None)) is not None]) == 2
    ]
    return f"Tokens/s inside targets, of all answers: {', '.join(told)}." if told else ""


def point_lines(told: Sequence[str], width: int = 80) -> list[str]:
    """What stands beside the figures, point by point, each wrapped and further lines indented."""
    points = textwrap.TextWrapper(
        width=width,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [text for each in told for text in points.wrap(each.replace("**", ""))]


def _rows(name: str, figures: dict[str, Any]) -> list[list[str]]:
    done = f"{figures.get('completed', 0)} of {figures.get('offered', 0)}"
    made = [[name, done, _inside(figures), _goodput(figures)]]
    predicted = figures.get("predicted")
    if isinstance(predicted, dict):
        made.append(["  predicted", "", _inside(predicted), _goodput(predicted)])
    return made


def _inside(figures: dict[str, Any]) -> str:
    value, found = figure(figures, "attainment", None), ends(figures, "attainment")
    if value is None:
        return NOTHING
    told = mark(figures, "attainment") + numbers.share(value)
    return f"{told} ({found[0] * 100:.0f} to {found[1] * 100:.0f} %)" if found else told


def _goodput(figures: dict[str, Any]) -> str:
    key = "goodput_requests_per_s"
    value, found = figure(figures, key, None), ends(figures, key)
    if value is None:
        return NOTHING
    told = f"{mark(figures, key)}{value:.3g}"
    return f"{told} ({say.span(*found, '')})" if found else told


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns as wide as their cells; a name that is too long for that has a line of its own."""
    sizes = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    rest = sum(sizes[1:]) + 2 * (len(sizes) - 1)
    first = min(sizes[0], max(width - rest, 2))
    made: list[str] = []
    for name, *cells in rows:
        told = "".join(f"  {cell:>{size}}" for cell, size in zip(cells, sizes[1:], strict=True))
        if len(name) > first:
            made.append(name)
            name = ""
        made.append(f"{name:<{first}}{told}".rstrip())
    return made
