"""The step timeline: a moving strip for each box, drawn from the engine's real steps.

For each box three rows, and between the boxes the hand-offs:

    atlas  reads   ████████ 812 ████████          prefill: whole █, a chunk beside decode ▓
           writes  ▅▅▅                  ▅▅▅▅▅▅    decode steps; the height is the answers at once
           stalls     ╌╌╌╌ 2× 1.24 s ╌╌╌          an answer waits longer than its target
             ▼             ━━━ 36 MiB 310 ms ━▶   KV on its way
    borea  reads

All times are on the router's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homesplit_engine.records import StepEvent, TransferEvent
from msgspec import Struct

from homesplit.core.state import Engine
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, crop, fit, height_glyph, line, merge

LABEL = 18
Cell = tuple[str, str]
_BLANK: Cell = ("·", "faint")


class Stall(Struct, frozen=True, kw_only=True):
    """Answers that waited for one reason at one time on one box."""

    box: str
    start_s: float
    end_s: float
    answers: int
    cause: str
    """In words; empty when the steps show none."""

    @property
    def length_s(self) -> float:
        """How long the answers waited."""
        return self.end_s - self.start_s


class Moved(Struct, frozen=True, kw_only=True):
    """A step whose times are already on the router's clock."""

    event: StepEvent
    start_s: float
    end_s: float


class Window(Struct, frozen=True, kw_only=True):
    """The stretch of time that is drawn and the columns it is drawn in."""

    start_s: float
    end_s: float
    columns: int

    def column(self, at_s: float) -> float:
        """Where a moment falls, in columns from the left; may lie outside."""
        return (at_s - self.start_s) / (self.end_s - self.start_s) * self.columns

    def span(self, start_s: float, end_s: float) -> range:
        """The columns of an interval; at least one when it touches the window at all."""
        first, last = self.column(start_s), self.column(end_s)
        if last < 0 or first >= self.columns:
            return range(0)
        left = max(0, int(first))
        return range(left, min(self.columns, max(left + 1, round(last))))


# ----------------------------------------------------------------------------- stalls


def moved_steps(engine: Engine, since_s: float) -> tuple[Moved, ...]:
    """The steps that end after `since_s`, on the router's clock, in the order they ended."""
    found = [
        Moved(
            event=seen.event,
            start_s=seen.event.start_s + seen.offset_s,
            end_s=seen.event.end_s + seen.offset_s,
        )
        for seen in engine.steps
        if seen.event.end_s + seen.offset_s >= since_s
    ]
    return tuple(sorted(found, key=lambda step: step.end_s))


def stalls(
    engine: Engine, steps: Sequence[Moved], target_s: float, now_s: float
) -> tuple[Stall, ...]:
    """Gaps between consecutive tokens of an answer that exceed `target_s`, by box and cause.

    A token comes with each decode step of a request and with the last slice of its
    prefill. Gaps that are still open count up to `now_s`.
    """
    finished = {done.request_id for done in engine.requests}
    last: dict[str, float] = {}
    found: dict[tuple[str, float], list[float]] = {}
    where: dict[str, str] = {}
    for step in steps:
        for request in _tokens_of(step.event):
            before = last.get(request)
            if before is not None and step.end_s - before > target_s:
                found.setdefault((step.event.box, round(step.end_s, 3)), []).append(before)
            last[request] = step.end_s
            where[request] = step.event.box
    for request, before in last.items():
        if request in finished or _is_gone(request, where[request], before, steps):
            continue
        if target_s < now_s - before < 60:
            found.setdefault((where[request], round(now_s, 3)), []).append(before)
    return tuple(
        _stall(box, min(starts), end, len(starts), engine, steps)
        for (box, end), starts in sorted(found.items(), key=lambda item: item[0][1])
    )


def _is_gone(request: str, box: str, since_s: float, steps: Sequence[Moved]) -> bool:
    """Whether a box has decoded others since, or rested: then this one waits for nothing."""
    return any(
        step.event.box == box
        and step.end_s > since_s
        and request not in step.event.decode
        and (bool(step.event.decode) or step.event.running == 0)
        for step in steps
    )


def _tokens_of(event: StepEvent) -> Iterable[str]:
    yield from event.decode
    for piece in event.prefill:
        if piece.last:
            yield piece.request_id


def _stall(
    box: str, start_s: float, end_s: float, answers: int, engine: Engine, steps: Sequence[Moved]
) -> Stall:
    cause = _prefill_cause(box, start_s, end_s, steps)
    if not cause:
        cause = _transfer_cause(box, start_s, end_s, engine)
    return Stall(box=box, start_s=start_s, end_s=end_s, answers=answers, cause=cause)


def _prefill_cause(box: str, start_s: float, end_s: float, steps: Sequence[Moved]) -> str:
    read: dict[str, int] = {}
    busy = 0.0
    for step in steps:
        if step.event.box != box or not step.event.prefill:
            continue
        overlap = min(end_s, step.end_s) - max(start_s, step.start_s)
        if overlap <= 0:
            continue
        busy += overlap
        for piece in step.event.prefill:
            read[piece.request_id] = read.get(piece.request_id, 0) + piece.tokens
    if busy < 0.3 * (end_s - start_s):
        return ""
    tokens = sum(read.values())
    what = "a prompt" if len(read) == 1 else f"{len(read)} prompts"
    return f"{box} was reading {what} of {numbers.count(tokens)} tokens"


def _transfer_cause(box: str, start_s: float, end_s: float, engine: Engine) -> str:
    for event, begin, end in moved_transfers(engine, start_s):
        if event.box_to == box and begin < end_s and end > start_s:
            return (
                f"the KV of {numbers.count(event.tokens)} tokens was on its way "
                f"from {event.box_from} to {box}"
            )
    return ""


def moved_transfers(
    engine: Engine, since_s: float
) -> tuple[tuple[TransferEvent, float, float], ...]:
    """The hand-offs that end after `since_s`, with start and end on the router's clock."""
    return tuple(
        (seen.event, seen.event.start_s + seen.offset_s, seen.event.end_s + seen.offset_s)
        for seen in engine.transfers
        if seen.event.end_s + seen.offset_s >= since_s
    )


def stall_sentence(stall: Stall | None) -> Line:
    """The stall in words: who waited how long, and for what."""
    if stall is None:
        return line(Span("No answer waits: every token comes within its target.", "dim"))
    who = "1 answer" if stall.answers == 1 else f"{stall.answers} answers"
    why = f": {stall.cause}" if stall.cause else ""
    return line(
        Span("stall ", "bad"),
        f"{who} on {stall.box} waited ",
        Span(numbers.seconds(stall.length_s), "strong"),
        Span(why, ""),
    )


# ------------------------------------------------------------------------------- rows


def timeline(
    engine: Engine,
    *,
    now_s: float,
    window_s: float,
    width: int,
    target_s: float | None,
    boxes: Sequence[str] = (),
    compact: bool = False,
) -> Lines:
    """All strips, the hand-offs between them and the time axis, `width` characters wide."""
    window = Window(start_s=now_s - window_s, end_s=now_s, columns=max(width - LABEL, 10))
    steps = moved_steps(engine, window.start_s - 5)
    known = tuple(boxes) or tuple(sorted({step.event.box for step in steps}))
    waits = stalls(engine, steps, target_s, now_s) if target_s is not None else ()
    rows: list[Line] = []
    top = max((len(step.event.decode) for step in steps), default=1)
    for number, box in enumerate(known):
        mine = [step for step in steps if step.event.box == box]
        rows.append(_labelled(box, "reads", _reads(mine, window), box in engine.lost))
        rows.append(_labelled("", "writes", _writes(mine, window, max(top, 4)), False))
        stalled = [wait for wait in waits if wait.box == box]
        if stalled or not compact:
            rows.append(_labelled("", "waits", _waits(stalled, window), False))
        if number + 1 < len(known):
            rows.append(_between(engine, box, known[number + 1], window))
    rows.append(_axis(window, window_s, engine))
    return tuple(crop(row, width) for row in rows)


def latest_stall(engine: Engine, now_s: float, window_s: float, target_s: float) -> Stall | None:
    """The newest stall that the window shows, None when there is none."""
    steps = moved_steps(engine, now_s - window_s - 5)
    found = [
        stall for stall in stalls(engine, steps, target_s, now_s) if stall.end_s > now_s - window_s
    ]
    return found[-1] if found else None


def _labelled(box: str, what: str, cells: list[Cell], lost: bool) -> Line:
    name = fit(line(Span(box, "bad" if lost else "strong"), Span(" lost" if lost else "")), 10)
    return (*name, *fit(line(Span(what, "dim")), LABEL - 10), *merge(cells))


def _reads(steps: Sequence[Moved], window: Window) -> list[Cell]:
    """Prefill: █ where the box only reads, ▓ where a chunk is read beside decoding."""
    cells = [_BLANK] * window.columns
    blocks: list[tuple[int, int, str, int]] = []
    for step in steps:
        if not step.event.prefill:
            continue
        mixed = bool(step.event.decode)
        columns = window.span(step.start_s, step.end_s)
        for column in columns:
            cells[column] = ("▓", "mixed") if mixed else ("█", "prefill")
        tokens = sum(piece.tokens for piece in step.event.prefill)
        if columns:
            role = "!mixed" if mixed else "!prefill"
            blocks.append((columns.start, columns.stop, role, tokens))
    for start, stop, role, tokens in blocks:
        _inscribe(cells, start, stop, numbers.count(tokens), role)
    return cells


def _writes(steps: Sequence[Moved], window: Window, top: int) -> list[Cell]:
    """Decode: as high as there are answers that got a token."""
    batch = [0] * window.columns
    for step in steps:
        if step.event.decode:
            for column in window.span(step.start_s, step.end_s):
                batch[column] = max(batch[column], len(step.event.decode))
    return [(height_glyph(size / top), "decode") if size else _BLANK for size in batch]


def _waits(found: Sequence[Stall], window: Window) -> list[Cell]:
    cells: list[Cell] = [(" ", "")] * window.columns
    for stall in found:
        columns = window.span(stall.start_s, stall.end_s)
        for column in columns:
            cells[column] = ("╌", "bad")
        if columns:
            times = f"{stall.answers}× " if stall.answers > 1 else ""
            text = f"{times}{numbers.seconds(stall.length_s)}"
            _inscribe(cells, columns.start, columns.stop, text, "bad")
    return cells


def _between(engine: Engine, above: str, below: str, window: Window) -> Line:
    """Hand-offs between two boxes, with the way they went."""
    cells: list[Cell] = [(" ", "")] * window.columns
    for event, start_s, end_s in moved_transfers(engine, window.start_s):
        if {event.box_from, event.box_to} != {above, below}:
            continue
        columns = window.span(start_s, end_s)
        tip = "▼" if event.box_to == below else "▲"
        role = "handoff" if event.committed else "bad"
        for column in columns:
            cells[column] = ("━", role)
        if columns:
            text = f"{numbers.size(event.bytes)} {numbers.seconds(end_s - start_s)}"
            _inscribe(cells, columns.start, columns.stop - 1, text, role)
            cells[columns.stop - 1] = (tip if event.committed else "✗", role)
    return (*fit(line(Span("  ⇅ hand-off", "handoff")), LABEL), *merge(cells))


def _inscribe(cells: list[Cell], start: int, stop: int, text: str, role: str) -> None:
    """Write `text` into the middle of a block when the block is wide enough for it."""
    label = f" {text} "
    if stop - start < len(label):
        return
    first = start + (stop - start - len(label)) // 2
    for place, char in enumerate(label):
        cells[first + place] = (char, role)


def _axis(window: Window, window_s: float, engine: Engine) -> Line:
    cells: list[Cell] = [("─", "faint")] * window.columns
    marks = 5 if window.columns >= 60 else 2
    for number in range(marks):
        ago = window_s * (marks - number) / marks
        place = round(window.columns * number / marks)
        for offset, char in enumerate(f"┴ {numbers.significant(ago, 2)} s ago "):
            if place + offset < window.columns:
                cells[place + offset] = (char, "dim")
    for offset, char in enumerate("now"):
        cells[window.columns - 3 + offset] = (char, "dim")
    for switch in engine.switches:
        _mark(cells, window, switch.at_s, f"▲{switch.setting.mode}", "key")
    for fault in engine.faults:
        what = f"✗{fault.kind}" + (f" {fault.box}" if fault.box else "")
        _mark(cells, window, fault.at_s, what, "bad")
    return (Span(" " * LABEL), *merge(cells))


def _mark(cells: list[Cell], window: Window, at_s: float, text: str, role: str) -> None:
    place = int(window.column(at_s))
    if not 0 <= place < window.columns:
        return
    for offset, char in enumerate(text):
        if place + offset < window.columns:
            cells[place + offset] = (char, role)


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
