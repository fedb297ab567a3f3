"""What lies on boxes after an `up` that failed, was broken off or was ended."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.core.brought import Brought, Piece
from homesplit.view.numbers import size
from homesplit.view.spans import EMPTY, Line, Lines, Span, clean, crop, fit, line, wrap

SIZE_COLUMN = 10


def brought_lines(boxes: Sequence[Brought], *, at_work: bool = False) -> list[str]:
    """Box by box what is there, then what can be done with it; nothing while a command is at it."""
    lines = [line for box in boxes for line in _of_box(box, at_work)]
    if at_work:
        return lines
    there = [box for box in boxes if box.folder]
    if any(box.is_half for box in there):
        lines.append("To go on: repeat the same `homesplit up`; what is whole is kept.")
    elif there:
        lines.append("`homesplit up` starts from what is there.")
    lines += [f"To delete it: homesplit remove {box.box}" for box in there]
    return lines


def lying_there(box: Brought, width: int) -> Lines:
    """What lies on one box, a line a piece, its size at the right."""
    if box.why:
        return wrap(f"can't be looked at: {box.why}", width, "warn", limit=3)
    if box.folder is None:
        return (line(Span("Nothing of homesplit lies here.", "dim")),)
    rows: list[Line] = [
        _with_size(line(Span("lies here ", "dim"), clean(box.folder)), box.bytes, width)
    ]
    rows += [_piece(piece, width) for piece in box.pieces]
    if box.installing:
        rows += wrap("An installation is still at work; the next one ends it first.", width, "warn")
    if box.is_half:
        rows += (EMPTY, *wrap("Enter goes on from there: what is whole is kept.", width, "dim"))
    return tuple(rows)


def _piece(piece: Piece, width: int) -> Line:
    mark = Span("✓ ", "good") if piece.whole else Span("◌ ", "warn")
    half = Span("" if piece.whole else "half made ", "warn")
    kind = Span(f"{piece.kind} ", "" if piece.whole else "warn")
    return _with_size(line(mark, kind, half, Span(clean(piece.name), "dim")), piece.bytes, width)


def _with_size(parts: Line, bytes_there: int | None, width: int) -> Line:
    told = fit(line(size(bytes_there)), SIZE_COLUMN, right=True)
    return crop((*fit(parts, max(width - SIZE_COLUMN, 1)), *told), width)


def _of_box(box: Brought, at_work: bool) -> list[str]:
    if box.why:
        return [f"{box.box} can't be looked at: {box.why}"]
    if box.folder is None:
        return [f"{box.box}: nothing of homesplit lies there."]
    lines = [f"{box.box}: {size(box.bytes)} in {box.folder}"]
    lines += [f"  {_in_words(piece)}" for piece in box.pieces]
    if box.installing and not at_work:
        lines.append("  an installation is still at work there; the next `up` ends it first")
    return lines


def _in_words(piece: Piece) -> str:
    name = f" {piece.name}" if piece.name else ""
    half = "" if piece.whole else ", half made"
    return f"{piece.kind}{name}: {size(piece.bytes)}{half}"
