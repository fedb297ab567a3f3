"""Text as the views make it: lines of spans, each with the role that the theme colours.

Roles: `` (plain), `dim`, `strong`, `good`, `bad`, `warn`, `key`, `prefill`, `decode`,
`handoff`, `mixed`, `a`, `b`, `bar-a`, `bar-b`, and any of them with `!` before it for reversed
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple


class Span(NamedTuple):
    """A run of characters with one role."""

    text: str
    role: str = ""


Line = tuple[Span, ...]
Lines = tuple[Line, ...]

EMPTY: Line = ()


def line(*parts: str | Span) -> Line:
    """Strings and spans as one line."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def clean(text: str) -> str:
    """Text from outside without anything that would move the cursor or hide itself."""
    return "".join(char if char.isprintable() else "?" for char in text)


def width_of(parts: Line) -> int:
    """Characters of a line."""
    return sum(len(span.text) for span in parts)


def crop(parts: Line, width: int) -> Line:
    """At most `width` characters, an ellipsis where something is left out."""
    if width_of(parts) <= width:
        return parts
    kept: list[Span] = []
    room = max(width - 1, 0)
    for span in parts:
        if len(span.text) > room:
            kept.append(Span(span.text[:room] + ("…" if width > 0 else ""), span.role))
            break
        kept.append(span)
        room -= len(span.text)
    return tuple(kept)


def fit(parts: Line, width: int, *, right: bool = False) -> Line:
    """Exactly `width` characters, padded on the right (or on the left with `right`)."""
    cropped = crop(parts, width)
    pad = Span(" " * (width - width_of(cropped)))
    return (pad, *cropped) if right else (*cropped, pad)


def wrap(text: str, width: int, role: str = "", *, limit: int | None = None) -> Lines:
    """Words of `text` broken into lines of at most `width`; beyond `limit` an ellipsis."""
    lines: list[str] = []
    current = ""
    for word in clean(text).split():
        if current and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    if current:
        lines.append(current)
    if limit is not None and len(lines) > limit:
        lines = [*lines[: limit - 1], " ".join(lines[limit - 1 :])]
    return tuple(crop(line(Span(one, role)), width) for one in lines)


def flow(words: Sequence[Line], width: int, gap: int = 2) -> Lines:
    """Short lines one after the other, in a new row where the next would not fit whole."""
    rows: list[Line] = []
    for word in words:
        longer = (*rows[-1], Span(" " * gap), *word) if rows else word
        if rows and width_of(longer) <= width:
            rows[-1] = longer
        else:
            rows.append(crop(word, width))
    return tuple(rows)


def beside(blocks: Sequence[tuple[Lines, int]], gap: int = 2) -> Lines:
    """Blocks of lines next to each other, each padded to its width."""
    height = max((len(block) for block, _ in blocks), default=0)
    rows: list[Line] = []
    for row in range(height):
        parts: list[Span] = []
        for number, (block, width) in enumerate(blocks):
            if number:
                parts.append(Span(" " * gap))
            parts.extend(fit(block[row] if row < len(block) else EMPTY, width))
        rows.append(tuple(parts))
    return tuple(rows)


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int, role: str) -> Line:
    """A horizontal bar filling `share` (0..1) of `width` characters, to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_EIGHTHS[rest] if rest else "")
    return (Span(text, role), Span("·" * (width - len(text)), "faint"))


_HEIGHTS = " ▁▂▃▄▅▆▇█"


def height_glyph(share: float) -> str:
    """A block as high as `share` (0..1) of a character, at least the lowest when above 0."""
    if share <= 0:
        return " "
    return _HEIGHTS[max(1, min(8, round(share * 8)))]


def sparkline(values: Sequence[float | None], width: int, role: str, top: float) -> Line:
    """The last `width` values as blocks below `top`; a missing value leaves a gap."""
    shown = list(values)[-width:]
    text = "".join(
        " " if value is None else height_glyph(value / top if top else 0) for value in shown
    )
    return (Span(text.rjust(width), role),)


def merge(cells: Iterable[tuple[str, str]]) -> Line:
    """Single characters with roles as a line of as few spans as possible."""
    return tuple(
        Span("".join([char for char, _ in run]), role)
        for role, run in groupby(cells, key=itemgetter(1))
    )


def plain(lines: Iterable[Line]) -> str:
    """Only the characters, for tests and the clipboard."""
    return "\n".join("".join(span.text for span in parts).rstrip() for parts in lines)
