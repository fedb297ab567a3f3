"""The step timeline: a moving strip for each box, drawn from the engine's real steps.

For each box three rows, and between the boxes the hand-offs:

    atlas  reads   ████████ 812 ████████          prefill: whole █, a chunk beside decode ▓
           writes  ▅▅▅                  ▅▅▅▅▅▅    decode steps; the height is the answers at once
           stalls     ╌╌╌╌ 2× 1.24 s ╌╌╌          an answer waits longer than its target
             ▼             ━━━ 36 MB 310 ms ━▶    KV on its way
    borea  reads

All times are on the router's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from homesplit.core.engine_state import MENDED, Engine
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, crop, fit, height_glyph, line, merge
from homesplit.view.watch import Stall, Step, Watch, moved_transfers

LABEL = 18
Cell = tuple[str, str]
_BLANK: Cell = ("·", "faint")
_EMPTY: Cell = (" ", "")


class Window:
    """The stretch of time that is drawn and the columns it is drawn in."""

    __slots__ = ("columns", "end_s", "per_s", "start_s")

    def __init__(self, start_s: float, end_s: float, columns: int) -> None:
        self.start_s, self.end_s, self.columns = start_s, end_s, columns
        self.per_s = columns / (end_s - start_s)

    def column(self, at_s: float) -> float:
        """Where a moment falls, in columns from the left; may lie outside."""
        return (at_s - self.start_s) * self.per_s

    def span(self, start_s: float, end_s: float) -> tuple[int, int]:
        """The first column of an interval and the one after its last; equal when it is outside.

        At least one column when the interval touches the window at all.
        """
        first, last = (start_s - self.start_s) * self.per_s, (end_s - self.start_s) * self.per_s
        if last < 0 or first >= self.columns:
            return 0, 0
        left = int(first) if first > 0 else 0
        right = int(last + 0.5)
        if right <= left:
            right = left + 1
        return left, right if right < self.columns else self.columns


def window(now_s: float, window_s: float, width: int) -> Window:
    """The last `window_s` seconds in the columns of `width` characters.

    Its edges are whole columns, so that what has happened moves by columns and never changes
    its shape.
    """
    columns = max(width - LABEL, 10)
    column_s = window_s / columns
    end_s = math.ceil(now_s / column_s - 1e-6) * column_s
    return Window(end_s - window_s, end_s, columns)


# ------------------------------------------------------------------------------- rows


def timeline(
    watch: Watch,
    engine: Engine,
    *,
    now_s: float,
    window_s: float,
    width: int,
    boxes: Sequence[str] = (),
) -> Lines:
    """All strips, the hand-offs between them and the time axis, `width` characters wide."""
    shown = window(now_s, window_s, width)
    known = tuple(boxes) or tuple(sorted(watch.steps))
    steps = {box: watch.steps_since(box, shown.start_s) for box in known}
    waits = watch.stalls_since(shown.start_s, now_s)
    top = max((step.writes for found in steps.values() for step in found), default=1)
    rows: list[Line] = []
    for number, box in enumerate(known):
        rows.append(_labelled(box, "reads", _reads(steps[box], shown), box in engine.lost))
        rows.append(_labelled("", "writes", _writes(steps[box], shown, max(top, 4)), False))
        stalled = [wait for wait in waits if wait.box == box]
        rows.append(_labelled("", "waits", _waits(stalled, shown), False))
        if number + 1 < len(known):
            rows.append(_between(engine, box, known[number + 1], shown))
    rows.append(_axis(shown, window_s, engine))
    return tuple(crop(row, width) for row in rows)


def telling_stall(watch: Watch, now_s: float, window_s: float) -> Stall | None:
    """The newest of the long stalls that the window shows, None when there is none.

    A moment's delay after it must not hide a wait of seconds while that is still to be seen.
    """
    found = watch.stalls_since(now_s - window_s, now_s)
    longest_s = max((one.length_s for one in found), default=0.0)
    return next((one for one in reversed(found) if one.length_s >= longest_s / 2), None)


def _labelled(box: str, what: str, cells: list[Cell], lost: bool) -> Line:
    name = fit(line(Span(box, "bad" if lost else "strong"), Span(" lost" if lost else "")), 10)
    return (*name, *fit(line(Span(what, "dim")), LABEL - 10), *merge(cells))


def _reads(steps: Sequence[Step], window: Window) -> list[Cell]:
    """Prefill: █ where the box only reads, ▓ where a chunk is read beside decoding."""
    cells = [_BLANK] * window.columns
    blocks: list[tuple[int, int, str, int]] = []
    for step in steps:
        if not step.reads:
            continue
        start, stop = window.span(step.start_s, step.end_s)
        cell, role = (("▓", "mixed"), "!mixed") if step.writes else (("█", "prefill"), "!prefill")
        for column in range(start, stop):
            cells[column] = cell
        if stop - start > 2:
            blocks.append((start, stop, role, step.reads))
    for start, stop, role, tokens in blocks:
        _inscribe(cells, start, stop, numbers.count(tokens), role)
    return cells


def _writes(steps: Sequence[Step], window: Window, top: int) -> list[Cell]:
    """Decode: as high as there are answers that got a token."""
    batch = [0] * window.columns
    for start_s, end_s, writes, _, _, _ in steps:
        if writes:
            start, stop = window.span(start_s, end_s)
            for column in range(start, stop):
                if writes > batch[column]:
                    batch[column] = writes
    return [(height_glyph(size / top), "decode") if size else _BLANK for size in batch]


def _waits(found: Sequence[Stall], window: Window) -> list[Cell]:
    cells = [_EMPTY] * window.columns
    for stall in found:
        start, stop = window.span(stall.start_s, stall.end_s)
        for column in range(start, stop):
            cells[column] = ("╌", "bad")
        if stop - start > 6:
            answers = len(stall.waits)
            times = f"{answers}× " if answers > 1 else ""
            text = f"{times}{numbers.seconds(stall.length_s)}"
            _inscribe(cells, start, stop, text, "bad")
    return cells


def _between(engine: Engine, above: str, below: str, window: Window) -> Line:
    """Hand-offs between two boxes, with the way they went; words where they fit, newest first."""
    ways = ((above, below), (below, above))
    cells = [_EMPTY] * window.columns
    drawn: list[tuple[int, int, str, str]] = []
    for event, start_s, end_s in moved_transfers(engine, window.start_s):
        start, stop = window.span(start_s, end_s)
        if start == stop or (event.box_from, event.box_to) not in ways:
            continue
        role = "handoff" if event.committed else "bad"
        tip = "▼" if event.box_to == below else "▲"
        for column in range(start, stop):
            if cells[column] is _EMPTY:
                cells[column] = ("━", role)
        cells[stop - 1] = (tip if event.committed else "✗", role)
        if stop - start > 8:
            text = f"{numbers.size(event.bytes)} {numbers.seconds(end_s - start_s)}"
            drawn.append((start, stop, text, role))
    for start, stop, text, role in drawn:
        _inscribe(cells, start, stop - 1, text, role, over="━")
    return (*fit(line(Span("  ⇅ hand-off", "handoff")), LABEL), *merge(cells))


def _inscribe(
    cells: list[Cell], start: int, stop: int, text: str, role: str, over: str = ""
) -> None:
    """Write `text` into the middle of a block that is wide enough and, with `over`, still bare."""
    label = f" {text} "
    if stop - start < len(label):
        return
    first = start + (stop - start - len(label)) // 2
    if over and any(char != over for char, _ in cells[first : first + len(label)]):
        return
    for place, char in enumerate(label):
        cells[first + place] = (char, role)


def _axis(window: Window, window_s: float, engine: Engine) -> Line:
    """The moments below the strips; where a mode or a fault began stands in their place."""
    cells: list[Cell] = [("─", "faint")] * window.columns
    marks = _marks(window, engine)
    count = 5 if window.columns >= 60 else 2
    for number in range(count):
        text = f"┴ {numbers.significant(window_s * (count - number) / count, 2)} s ago "
        place = round(window.columns * number / count)
        if not any(at < place + len(text) and place < at + len(word) for at, word, _ in marks):
            _put(cells, place, text, "dim")
    _put(cells, window.columns - 3, "now", "dim")
    for at, word, role in marks:
        _put(cells, at, word, role)
    return (Span(" " * LABEL), *merge(cells))


def _marks(window: Window, engine: Engine) -> list[tuple[int, str, str]]:
    """Column, word and role of each switch and fault that the window shows."""
    told = [(one.at_s, f"▲{one.setting.mode}", "key") for one in engine.switches]
    for fault in engine.faults:
        glyph, role = ("✓", "good") if fault.kind == MENDED else ("✗", "bad")
        box = f" {fault.box}" if fault.box else ""
        told.append((fault.at_s, f"{glyph}{fault.kind.replace('_', ' ')}{box}", role))
    found = [(int(window.column(at_s)), word, role) for at_s, word, role in told]
    return [mark for mark in found if 0 <= mark[0] < window.columns]


def _put(cells: list[Cell], place: int, text: str, role: str) -> None:
    for column, char in enumerate(text[: len(cells) - place], start=place):
        cells[column] = (char, role)


def legend(width: int) -> Line:
    """What the glyphs mean."""
    return crop(
        line(
            Span("█", "prefill"),
            Span(" reads a prompt (prefill)  ", "dim"),
            Span("▓", "mixed"),
            Span(" chunk beside decode  ", "dim"),
            Span("▅", "decode"),
            Span(" writes tokens (decode)  ", "dim"),
            Span("━▼", "handoff"),
            Span(" KV hand-off  ", "dim"),
            Span("╌", "bad"),
            Span(" an answer waits", "dim"),
        ),
        width,
    )
