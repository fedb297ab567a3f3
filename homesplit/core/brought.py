"""What `up` brought to a box and still lies there, whole or half made."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

PieceKind = Literal[
    "environment", "packages", "Python", "uv", "engine", "weights", "settings and logs", "cache"
]


class Piece(Struct, frozen=True, kw_only=True):
    """One folder of what was brought."""

    kind: PieceKind
    name: str
    bytes: int | None
    """What it takes on the box's disk; None where the box does not tell."""
    whole: bool
    """False when it was broken off: it is finished or made anew, and never used as it is."""


class Brought(Struct, frozen=True, kw_only=True):
    """All that lies on one box; without a `folder` nothing does."""

    box: str
    folder: str | None = None
    bytes: int | None = None
    pieces: tuple[Piece, ...] = ()
    installing: bool = False
    """Whether an installation that an earlier command began is still at work there."""
    why: str | None = None
    """Why the box could not be looked at."""

    @property
    def is_half(self) -> bool:
        """Whether something there was broken off."""
        return self.installing or not all(piece.whole for piece in self.pieces)
