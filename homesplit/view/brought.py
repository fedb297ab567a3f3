"""What lies on boxes after an `up` that failed, was broken off or was ended, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.core.brought import Brought, Piece
from homesplit.view.numbers import size


def brought_lines(boxes: Sequence[Brought]) -> list[str]:
    """Box by box what is there, then what can be done with it."""
    lines = [line for box in boxes for line in _of_box(box)]
    there = [box for box in boxes if box.folder]
    if any(box.is_half for box in there):
        lines.append("To go on: repeat the same `homesplit up`; what is whole is kept.")
    elif there:
        lines.append("`homesplit up` starts from what is there.")
    lines += [f"To delete it: homesplit remove {box.box}" for box in there]
    return lines


def _of_box(box: Brought) -> list[str]:
    if box.why:
        return [f"{box.box} can't be looked at: {box.why}"]
    if box.folder is None:
        return [f"{box.box}: nothing of homesplit lies there."]
    lines = [f"{box.box}: {size(box.bytes)} in {box.folder}"]
    lines += [f"  {_in_words(piece)}" for piece in box.pieces]
    if box.installing:
        lines.append("  an installation is still at work there; the next `up` ends it first")
    return lines


def _in_words(piece: Piece) -> str:
    name = f" {piece.name}" if piece.name else ""
    half = "" if piece.whole else ", half made"
    return f"{piece.kind}{name}: {size(piece.bytes)}{half}"
