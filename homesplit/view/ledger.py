"""Monitor's ledger: the last requests, and where the time of each went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from homesplit_engine.records import RequestRecord

from homesplit.core.state import Done
from homesplit.view import numbers
from homesplit.view.plan import LEDGER_PARTS, stacked
from homesplit.view.spans import Line, Lines, Span, clean, crop, line, sparkline, wrap

OUTCOMES = {"failed": "failed", "rejected": "refused", "cancelled": "cancelled"}


def legend() -> str:
    """What the glyphs of the ledger's bars stand for."""
    return "  ".join(f"{glyph} {name}" for name, _, _, glyph in LEDGER_PARTS)


def header(width: int) -> Line:
    """The names of the ledger's columns."""
    text = f"{'request':<11}{'prompt':>7}{'answer':>7}  {'TTFT':>8} {'2nd tok':>8} {'TPOT':>8}"
    rest = "  where the time to the second token went" if width >= 90 else ""
    return crop(line(Span(text + rest, "dim")), width)


def rows(
    records: Sequence[RequestRecord], dones: dict[str, Done], width: int
) -> tuple[tuple[str, Callable[[], Line]], ...]:
    """The last requests, newest first: id and row of each, which is made when it is shown."""
    newest = list(reversed(records))
    tops = [sum(part or 0.0 for part in _parts(record)) for record in newest]
    top = max(tops, default=1.0) or 1.0
    return tuple(
        (one.request_id, partial(_row, one, dones.get(one.request_id), top, width))
        for one in newest
    )


def _parts(record: RequestRecord) -> tuple[float | None, ...]:
    return (
        record.queue_s,
        record.tokenise_s,
        record.prefill_s,
        record.handoff_exposed_s,
        record.first_decode_s,
    )


def outcome_word(outcome: str) -> str:
    """How a request ended, in the word that every screen has for it."""
    return OUTCOMES.get(outcome, outcome)


def _outcome_role(record: RequestRecord) -> str:
    return "" if record.outcome == "completed" else "bad"


def _row(record: RequestRecord, done: Done | None, top: float, width: int) -> Line:
    head = line(
        Span(f"{clean(record.request_id)[-10:]:<11}", _outcome_role(record)),
        f"{numbers.count(record.prompt_tokens):>7}{numbers.count(record.output_tokens):>7}  ",
    )
    if record.outcome != "completed":
        why = record.error or record.finish_reason or ""
        return crop((*head, Span(f"{outcome_word(record.outcome)} {clean(why)}", "bad")), width)
    figures = (done.ttft_s, done.ttst_s, done.tpot_s) if done is not None else (None, None, None)
    told = line(" ".join(f"{numbers.seconds(value):>8}" for value in figures))
    if width < 90:
        return crop((*head, *told), width)
    room = width - 55
    return crop((*head, *told, Span("  "), *stacked(_parts(record), top, room)), width)


def request_detail(record: RequestRecord, width: int) -> Lines:
    """Everything about one request, in the order in which it happened."""
    rows: list[Line] = [
        line(Span("request ", "dim"), Span(clean(record.request_id), "strong")),
        line(
            Span("outcome ", "dim"),
            outcome_word(record.outcome),
            f"  {record.finish_reason or ''}",
        ),
    ]
    rows.extend(wrap(f"why here: {record.why}", width))
    if record.error:
        rows.extend(wrap(record.error, width, "bad"))
    served = f"{record.served}: read on {record.prefill_box}, written on {record.decode_box}"
    rows.extend(wrap(served, width))
    moved = record.handoff_bytes
    rows.append(line(Span("")))
    for (name, _, role, glyph), value in zip(LEDGER_PARTS, _parts(record), strict=True):
        rows.append(line(Span(f"{glyph} {name:<14}", role), f"{numbers.seconds(value):>10}"))
    if moved is not None:
        text = (
            f"hand-off in all {numbers.seconds(record.handoff_s)}, {numbers.size(moved)} "
            f"for {numbers.count(record.handoff_tokens)} tokens"
        )
        rows.extend(wrap(text, width, "handoff"))
    rows.append(line(Span("")))
    rows.extend(_gap_rows(record, width))
    return tuple(rows)


def _gap_rows(record: RequestRecord, width: int) -> Lines:
    gaps = [b - a for a, b in zip(record.token_s, record.token_s[1:], strict=False)]
    if not gaps:
        return (line(Span("It has no second token, so there are no gaps.", "dim")),)
    return (
        line(
            Span("gaps between tokens, longest ", "dim"),
            Span(numbers.seconds(max(gaps)), "strong"),
        ),
        sparkline(gaps, min(width, len(gaps)), "decode", max(gaps)),
    )


def misses(
    records: Sequence[RequestRecord], seen: Sequence[Done], width: int, limit: int = 2
) -> Lines:
    """How many of the requests `seen` of late were refused or failed, why, and what to do."""
    bad = [done for done in seen if done.outcome in ("rejected", "failed")]
    if not bad:
        return ()
    counts = Counter(outcome_word(done.outcome) for done in bad)
    told = " and ".join(f"{count} {word}" for word, count in counts.items())
    ids = {done.request_id for done in bad}
    newest = next((one for one in reversed(records) if one.request_id in ids), None)
    keys = "enter on one tells all" + ("; - offers less" if counts["refused"] else "")
    head = line(
        Span("✗ ", "bad"), Span(f"Of {len(seen)} requests {told}", "bad"), Span(f"  {keys}", "dim")
    )
    if newest is None or not newest.error or limit < 2:
        return (crop(head, width),)
    return (crop(head, width), *_indented(newest.error, width))


def _indented(text: str, width: int) -> Lines:
    return tuple((Span("  "), *row) for row in wrap(text, width - 2, "dim", limit=1))
