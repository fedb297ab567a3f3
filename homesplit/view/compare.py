"""The Compare screen: modes as columns that fill as they run, predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homesplit.core.events import CompareRun
from homesplit.core.plan import ModePrediction
from homesplit.core.state import RunState
from homesplit.view import numbers
from homesplit.view.spans import EMPTY, Line, Lines, Span, bar, crop, fit, line, wrap

NOTHING_COMPARED = (
    "Nothing compared yet. A comparison sends the same requests through each mode on the "
    "same boxes, in turn, and puts what was predicted beside what was measured. "
    "The measurement has the last word."
)
CANDIDATES = (
    ("colocated", "whole"),
    ("colocated", "chunked"),
    ("replica", "chunked"),
    ("split", "chunked"),
)

MOST_PLACES = 3
WIDEST = 64
"""Cells of a column, however wide the screen is."""
BARRED, FIGURE = 36, 14
"""Cells from which on a column has a bar behind each figure, and those of the figure."""
ROOMY = 18
"""Cells from which on a column says in full how prompts are read."""


def verdict(state: RunState, width: int, *, tall: bool = True) -> Lines:
    """The verdict, whole where it is `tall`, or how far the comparison is, or what it would do."""
    found = state.verdict
    if found is not None:
        same = {
            True: Span("✓ every mode wrote the same text", "good"),
            False: Span("✗ the modes wrote different text", "bad"),
            None: Span("? texts not compared", "dim"),
        }[found.identical_text]
        name = found.mode or "no mode stands out"
        return (
            line(Span(f" {name} ", "!key"), "  ", same),
            *wrap(found.sentence, width, "strong", limit=6 if tall else 3),
            *(text for each in found.divergences for text in wrap(each, width, "warn", limit=2)),
        )
    stage = state.stage("compare")
    if stage.status == "running":
        return wrap(stage.sentence or "Comparing.", width, "strong", limit=2)
    return wrap(NOTHING_COMPARED, width, "dim")


def table(state: RunState, width: int, *, tall: bool = True) -> Lines:
    """Rows of figures, a column for each mode; where it is not `tall`, without empty lines."""
    columns = _columns(state)
    label = 22
    cell = max(12, min(WIDEST, (width - label) // max(len(columns), 1)))
    apart = [EMPTY] if tall else []
    rows: list[Line] = [*_heads(columns, state, label, cell)]
    for name, measured, predicted, usual, best in _FIGURES:
        unit, show = ("", usual) if usual else rates_in_one_unit(_goodputs(state, columns))
        name = f"{name} {unit}".rstrip()
        rows.extend(apart)
        top = _top(state, columns, measured, predicted) if cell >= BARRED else None
        rows.append(_measured_row(name, columns, measured, show, best, label, cell, top))
        rows.append(_predicted_row(state, columns, predicted, show, label, cell, top))
    rows.extend(apart)
    rows.append(_count_row(columns, label, cell))
    if cell < BARRED:
        rows.append(_bar_row(columns, label, cell))
    return tuple(crop(row, width) for row in rows)


def meaning(width: int) -> Lines:
    """What the rows stand for, for who has not read of them before."""
    rows: list[Line] = [line(Span("What the rows mean", "strong"))]
    for name, told in _MEANINGS:
        head, blank = fit(line(Span(name, "key")), 22), (Span(" " * 22),)
        parts = wrap(told, max(width - 22, 20), "dim")
        rows.extend((*(head if n == 0 else blank), *part) for n, part in enumerate(parts))
    return tuple(rows)


_MEANINGS = (
    (
        "TTFT",
        "How long a user waits for the first token. p50: half of them wait less; p90: nine in ten.",
    ),
    ("TPOT", "The time for each token after that: how quickly an answer is written."),
    (
        "stalled",
        "How long an answer stood still beyond its target for a token, all its stalls together.",
    ),
    ("inside targets", "The share of all requests sent that were answered within both targets."),
    ("goodput", "Requests answered within both targets, in each second. The verdict goes by it."),
    (
        "meas., pred.",
        "What came out, and what the advice had predicted. The measurement has the last word.",
    ),
)


Column = tuple[str, str, CompareRun | None]


def _key(mode: str, prefill: str) -> tuple[str, str]:
    """A mode's column; only one box alone has a column for each way of reading prompts."""
    if mode == "colocated":
        return mode, prefill
    return next((known for known in CANDIDATES if known[0] == mode), (mode, prefill))


def _columns(state: RunState) -> tuple[Column, ...]:
    run = {_key(one.mode, one.prefill): one for one in state.compared}
    names = list(CANDIDATES) + [key for key in run if key not in CANDIDATES]
    if state.verdict is not None:
        names = [key for key in names if key in run] or names
    return tuple((mode, prefill, run.get((mode, prefill))) for mode, prefill in names)


def _heads(columns: tuple[Column, ...], state: RunState, label: int, cell: int) -> Lines:
    """The modes' names, and below them how prompts are read where that tells two apart."""
    names, styles = [*fit(EMPTY, label)], [*fit(EMPTY, label)]
    running = state.stage("compare").status == "running"
    waiting = next((n for n, (_, _, run) in enumerate(columns) if run is None), None)
    for number, (mode, prefill, _) in enumerate(columns):
        best = state.verdict is not None and state.verdict.mode in (mode, f"{mode}:{prefill}")
        mark = "▸" if best else ("●" if running and number == waiting else " ")
        names.extend(fit(line(Span(f"{mark} ", "key"), Span(mode, "strong")), cell))
        told = f"{prefill} prefill" if cell >= ROOMY else prefill
        style = told if mode == "colocated" else ""
        styles.extend(fit(line("  ", Span(style, "dim")), cell))
    return tuple(names), tuple(styles)


def _ttft(run: CompareRun) -> float | None:
    return run.figures.ttft_s.p50


def _ttft_p90(run: CompareRun) -> float | None:
    return run.figures.ttft_s.p90


def _tpot(run: CompareRun) -> float | None:
    return run.figures.tpot_s.p50


def _stall(run: CompareRun) -> float | None:
    return run.figures.stall_s.p90


def _attainment(run: CompareRun) -> float | None:
    return run.figures.attainment


def _goodput(run: CompareRun) -> float | None:
    return run.figures.goodput_requests_per_s


Show = Callable[[float | None], str]


def _goodputs(state: RunState, columns: tuple[Column, ...]) -> list[float | None]:
    key = "goodput_requests_per_s"
    measured = [_goodput(run) if run is not None else None for _, _, run in columns]
    return measured + [_predicted(state, mode, prefill, run, key) for mode, prefill, run in columns]


def rates_in_one_unit(rates_per_s: Sequence[float | None]) -> tuple[str, Show]:
    """The unit, and how requests per second are written in it, to be compared at a glance."""
    top = max((rate for rate in rates_per_s if rate is not None), default=0.0)
    times, unit = (60.0, "min") if 0.0 < top < 0.1 else (1.0, "s")
    places = 2 if top * times < 10 else 0
    least = min((rate for rate in rates_per_s if rate), default=top) * times
    while 0.0 < least < 0.5 * 10**-places and places < MOST_PLACES:
        places += 1  # what is little must not read as nothing

    def show(rate: float | None) -> str:
        return numbers.MISSING if rate is None else f"{rate * times:,.{places}f}"

    return f"req/{unit}", show


_FIGURES: tuple[tuple[str, Callable[[CompareRun], float | None], str, Show | None, int], ...] = (
    ("TTFT p50", _ttft, "ttft_s", numbers.seconds, -1),
    ("TTFT p90", _ttft_p90, "ttft_p90_s", numbers.seconds, -1),
    ("TPOT p50", _tpot, "tpot_s", numbers.seconds, -1),
    ("stalled p90", _stall, "stall_s", numbers.seconds, -1),
    ("inside targets", _attainment, "attainment", numbers.share, 1),
    ("goodput", _goodput, "goodput_requests_per_s", None, 1),
)
"""Name, measured figure, key of the prediction, how it is shown, 1 where more is better.

None is shown in one unit for all columns.
"""


def _measured_row(
    name: str,
    columns: tuple[Column, ...],
    measured: Callable[[CompareRun], float | None],
    show: Show,
    better: int,
    label: int,
    cell: int,
    top: float | None,
) -> Line:
    values = [measured(run) if run is not None else None for _, _, run in columns]
    known = [value for value in values if value is not None]
    # Where all are alike there is no best.
    best = (max(known) if better > 0 else min(known)) if len(set(known)) > 1 else None
    parts = [*fit(line(Span(f"{name:<16}", "strong"), Span("meas.", "dim")), label)]
    for value, (_, _, run) in zip(values, columns, strict=True):
        text = show(value) if run is not None else "…"
        first = value is not None and value == best
        told = line(
            Span("  "),
            Span(text, "strong" if first else ""),
            Span(" ✓" if first else "", "good"),
        )
        parts.extend(_barred(told, value, top, "good" if first else "key", cell))
    return tuple(parts)


def _predicted_row(
    state: RunState,
    columns: tuple[Column, ...],
    key: str,
    show: Show,
    label: int,
    cell: int,
    top: float | None,
) -> Line:
    parts = [*fit(line(" " * 16, Span("pred.", "dim")), label)]
    for mode, prefill, run in columns:
        value = _predicted(state, mode, prefill, run, key)
        told = line("  ", Span(show(value), "dim"))
        parts.extend(_barred(told, value, top, "dim", cell))
    return tuple(parts)


def _barred(told: Line, value: float | None, top: float | None, role: str, cell: int) -> Line:
    """A figure, and behind it a bar against the largest of its kind where there is room."""
    if top is None or value is None:
        return fit(told, cell)
    return (
        *fit(told, FIGURE),
        *fit(bar(value / top if top else 0, cell - FIGURE - 3, role), cell - FIGURE),
    )


def _top(
    state: RunState,
    columns: tuple[Column, ...],
    measured: Callable[[CompareRun], float | None],
    key: str,
) -> float:
    """The largest of a kind of figure, measured or predicted, that the bars are drawn against."""
    found = [measured(run) for _, _, run in columns if run is not None]
    found += [_predicted(state, mode, prefill, run, key) for mode, prefill, run in columns]
    return max((value for value in found if value is not None), default=0.0)


def _predicted(
    state: RunState, mode: str, prefill: str, run: CompareRun | None, key: str
) -> float | None:
    if run is not None and run.predicted is not None and key in run.predicted:
        return run.predicted[key]
    if state.plan is None:
        return None
    found = next(
        (
            one
            for one in state.plan.modes
            if one.mode == mode and _key(mode, one.prefill or prefill) == _key(mode, prefill)
        ),
        None,
    )
    return _from_plan(found, key) if found is not None else None


def _from_plan(found: ModePrediction, key: str) -> float | None:
    match key:
        case "ttft_s":
            return found.ttft_s.p50
        case "ttft_p90_s":
            return found.ttft_s.p90
        case "tpot_s":
            return found.tpot_s.p50
        case "stall_s":
            return found.stall_s.p90
        case "attainment":
            return found.attainment
        case _:
            return found.goodput_requests_per_s


def _count_row(columns: tuple[Column, ...], label: int, cell: int) -> Line:
    parts = [*fit(line(Span("requests", "strong")), label)]
    for _, _, run in columns:
        if run is None:
            text = Span("not yet run", "dim")
        else:
            done = run.figures
            told = [f"{done.completed} of {done.offered}"]
            told += [f"{done.failed} failed"] if done.failed else []
            told += [f"{done.rejected} refused"] if done.rejected else []
            left = [f"{done.cancelled} given up"] if done.cancelled else []
            text = Span(", ".join([*told, *left]), "bad" if len(told) > 1 else "dim")
        parts.extend(fit(line("  ", text), cell))
    return tuple(parts)


def _bar_row(columns: tuple[Column, ...], label: int, cell: int) -> Line:
    values = [_goodput(run) if run is not None else None for _, _, run in columns]
    top = max((value for value in values if value is not None), default=0.0)
    parts = [*fit(line(Span("goodput", "dim")), label)]
    for value in values:
        drawn = bar(value / top, cell - 4, "good") if value is not None and top else EMPTY
        parts.extend(fit((Span("  "), *drawn), cell))
    return tuple(parts)
