"""The Notebook screen: every measurement as a sentence, newest first."""

from __future__ import annotations

from homesplit.core.events import EntryWritten
from homesplit.core.state import RunState
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, clean, crop, fit, line, wrap

EMPTY_NOTEBOOK = (
    "The notebook is empty. Every probe, plan, load and comparison writes an entry here by "
    "itself: what was asked, what came out, on which boxes. n adds a note of your own."
)
KIND_MARKS: dict[str, str] = {
    "probe": "⌁",
    "plan": "◇",
    "deployment": "▲",
    "run": "∿",
    "comparison": "≡",
    "note": "✎",
}


def rows(state: RunState, width: int) -> tuple[tuple[str, Line], ...]:
    """Entries newest first: id and row of each."""
    return tuple((entry.id, _row(entry, width)) for entry in _newest_first(state.entries))


def in_full(state: RunState, entry_id: str | None, width: int) -> Lines:
    """The sentence of one entry, whole; nothing where there is no such entry."""
    found = next((entry for entry in state.entries if entry.id == entry_id), None)
    return wrap(found.sentence or numbers.MISSING, width) if found is not None else ()


def _newest_first(entries: tuple[EntryWritten, ...]) -> list[EntryWritten]:
    return sorted(entries, key=lambda entry: entry.at, reverse=True)


def _row(entry: EntryWritten, width: int) -> Line:
    mark = KIND_MARKS.get(entry.kind, "·")
    when = entry.at[:16].replace("T", " ")
    head = line(Span(f"{when}  ", "dim"), Span(f"{mark} ", "key"))
    kind = fit(line(Span(clean(entry.kind), "strong")), 12)
    return crop((*head, *kind, Span(clean(entry.sentence) or numbers.MISSING)), width)
