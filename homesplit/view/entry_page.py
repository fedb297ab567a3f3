"""One notebook entry to read: its sentence, its figures as charts, its notes, all of it last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homesplit.view import notebook_words, numbers
from homesplit.view.figures_table import figure_lines
from homesplit.view.measured_rows import measured_rows
from homesplit.view.notebook_kinds import kind_tables
from homesplit.view.spans import (
    EMPTY,
    Line,
    Lines,
    Span,
    bar,
    clean,
    crop,
    fit,
    height_glyph,
    line,
    wrap,
)

_FIGURES = (
    ("TTFT p50", "ttft_s", "p50", "prefill"),
    ("TTFT p90", "ttft_s", "p90", "prefill"),
    ("TPOT p50", "tpot_s", "p50", "decode"),
    ("stalled p90", "stall_s", "p90", "bad"),
)
LABEL = 26
CELL = 34
"""A longer cell is a sentence."""
CHART_ROWS = 6
_GAP_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def entry_page(
    entry: Mapping[str, Any],
    raw: Mapping[str, Sequence[Mapping[str, Any]]],
    notes: Sequence[str],
    text: str | None,
    width: int,
) -> Lines:
    """`entry` as plain values, `raw` its records by name, `text` the whole of it for the end.

    Without `text` its figures are all there is: sentence, what was asked, pictures, table, notes.
    """
    body = entry.get("body")
    found = body if isinstance(body, dict) else {}
    rows: list[Line] = [
        *wrap(str(entry.get("sentence", "")), width, "strong"),
        line(Span(f"{entry.get('kind', '')}, {str(entry.get('at', ''))[:16]}", "dim")),
        EMPTY,
    ]
    kind, page = entry.get("kind"), {"about": {}, **entry}
    if unended := notebook_words.unended(page):
        rows.extend((*wrap(unended, width, "bad"), EMPTY))
    for told in (notebook_words.asked(page), notebook_words.machines(page)):
        if told:
            rows.extend((*wrap(told.replace("**", ""), width, "dim"), EMPTY))
    tables = kind_tables(page)
    if figures := figure_lines(measured_rows(page), width):
        rows.extend((*(crop(line(Span(told)), width) for told in figures), EMPTY))
    if kind == "comparison":
        rows.extend(_comparison(found, width))
    elif kind == "run" and not tables:
        rows.extend(_run(raw.get("requests", ()), width))
    for title, table in tables:
        rows.extend(_table(title, table, width))
    for told in notebook_words.beside(page, measured_rows(page)):
        rows.extend(_listed(told.replace("**", ""), width))
    for note in notes:
        rows.extend((Span("✎ ", "key"), *part) for part in wrap(note, width - 2))
    if notes:
        rows.append(EMPTY)
    counts = ", ".join(f"{name}: {len(records)}" for name, records in raw.items())
    if counts:
        rows.extend(wrap(f"Raw records kept ({counts}).", width, "dim"))
    if text is None:
        return tuple(rows)
    rows.append(line(Span("All of it", "dim")))
    rows.extend(crop(line(Span(clean(one), "dim")), width) for one in text.split("\n"))
    return tuple(rows)


def _listed(told: str, width: int) -> Lines:
    """A point of a list, its further lines indented."""
    first, *others = wrap(told, max(width - 2, 10))
    return (line("- ", *first), *(line("  ", *other) for other in others))


# ----------------------------------------------------------------------- comparison


def _comparison(body: Mapping[str, Any], width: int) -> Lines:
    """A bar for each mode and figure, what was predicted beside it."""
    modes: list[Mapping[str, Any]] = list(body.get("modes", ()))
    rows: list[Line] = []
    for title, key, part, role in _FIGURES:
        values = [_part(mode, key, part) for mode in modes]
        if any(value is not None for value in values):
            rows.extend(_bars(title, modes, values, numbers.seconds, role, width))
    goodput = [_number(mode.get("goodput_requests_per_s")) for mode in modes]
    if any(value is not None for value in goodput):
        rows.extend(_bars("goodput", modes, goodput, numbers.per_second, "good", width))
    return tuple(rows)


def _bars(
    title: str,
    modes: Sequence[Mapping[str, Any]],
    values: Sequence[float | None],
    show: Any,
    role: str,
    width: int,
) -> Lines:
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    room = max(min(width - LABEL - 12, 60), 10)
    rows: list[Line] = [line(Span(title, "strong"))]
    for mode, value in zip(modes, values, strict=True):
        head = fit(line(f"  {_name(mode)}"), LABEL)
        drawn = bar(value / top, room, role) if value is not None else (Span(" " * room),)
        rows.append(crop((*head, *drawn, Span(f" {show(value)}")), width))
    return (*rows, EMPTY)


def _name(mode: Mapping[str, Any]) -> str:
    style = f" {mode.get('prefill')}" if mode.get("mode") == "colocated" else ""
    return clean(f"{mode.get('mode')}{style}")


# ------------------------------------------------------------------------------ run


def _run(requests: Sequence[Mapping[str, Any]], width: int) -> Lines:
    """TTFT over the run, how long the gaps between tokens were."""
    return (*_over_time(requests, width), *_gaps(requests, width))


def _over_time(requests: Sequence[Mapping[str, Any]], width: int) -> Lines:
    """TTFT as seen by the client, the longest of each stretch of the run."""
    seen = [
        (float(one["sent_s"]), float(one["arrival_s"][0]) - float(one["sent_s"]))
        for one in requests
        if one.get("arrival_s")
    ]
    if not seen:
        return ()
    end = max(at for at, _ in seen) or 1.0
    columns = max(min(width - 12, 90), 10)
    tops = [0.0] * columns
    for at, value in seen:
        column = min(int(at / end * columns), columns - 1)
        tops[column] = max(tops[column], value)
    top = max(tops)
    rows = [line(Span("TTFT over the run, the longest of each moment", "strong"))]
    for row in reversed(range(CHART_ROWS)):
        label = numbers.seconds(top) if row == CHART_ROWS - 1 else ""
        cells = "".join(height_glyph(value / top * CHART_ROWS - row) for value in tops)
        rows.append(line(Span(f"{label:>10} ", "dim"), Span(cells, "prefill")))
    rows.append(line(Span(f"{'0 s':>10} ", "dim"), Span("─" * columns, "faint")))
    return (*rows, EMPTY)


def _gaps(requests: Sequence[Mapping[str, Any]], width: int) -> Lines:
    """How many gaps between tokens were how long."""
    gaps = [
        later - before
        for one in requests
        for before, later in zip(
            one.get("arrival_s", ())[:-1], one.get("arrival_s", ())[1:], strict=True
        )
    ]
    if not gaps:
        return ()
    bounds = (*_GAP_BOUNDS_S, float("inf"))
    counts = [0] * len(bounds)
    for gap in gaps:
        counts[next(n for n, bound in enumerate(bounds) if gap <= bound)] += 1
    rows = [line(Span("Gaps between tokens", "strong"))]
    room = max(min(width - 30, 50), 10)
    for bound, count in zip(bounds, counts, strict=True):
        longest = f"over {numbers.seconds(_GAP_BOUNDS_S[-1])}"
        label = longest if bound == float("inf") else f"up to {numbers.seconds(bound)}"
        if count:
            drawn = bar(count / max(counts), room, "decode")
            told = Span(f" {numbers.count(count)}")
            rows.append(crop((*fit(line(f"  {label}"), 18), *drawn, told), width))
    return (*rows, EMPTY)


# ------------------------------------------------------- plan, search, probe, deployment


def _table(title: str, table: Sequence[Sequence[str]], width: int) -> Lines:
    """A table in columns as wide as their cells; what is too long goes on in lines of its own."""
    rows: list[Line] = [line(Span(title, "strong"))] if title else []
    widths = [max(len(clean(row[n])) for row in table) for n in range(len(table[0]))]
    long = [n for n, most in enumerate(widths) if most > CELL]
    for number, row in enumerate(table):
        cells = "  ".join(clean(row[n]).ljust(widths[n]) for n in range(len(row)) if n not in long)
        if number and 0 in long:
            rows.append(crop(line(Span(f"  {clean(row[0])}")), width))
        if cells.strip():
            rows.append(crop(line(Span(f"  {cells}", "dim" if number == 0 else "")), width))
        for n in (n for n in long if n and number):
            rows.extend((Span("    "), *part) for part in wrap(clean(row[n]), max(width - 4, 10)))
    return (*rows, EMPTY)


def _part(body: Mapping[str, Any], key: str, part: str) -> float | None:
    found = body.get(key)
    return _number(found.get(part)) if isinstance(found, dict) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
