"""Whether a prompt may be read before the box that is to write has kept room for it. Pure."""

from __future__ import annotations


class Rooms:
    """Which boxes are known to be full: what is read for them before they answer may be in vain."""

    def __init__(self) -> None:
        self._full: set[str] = set()

    def answered(self, box: str, *, full: bool) -> None:
        """A box was asked to keep room, and did or was full."""
        if full:
            self._full.add(box)
        else:
            self._full.discard(box)

    def forget(self, box: str) -> None:
        """The box is away: what it held is gone."""
        self._full.discard(box)

    def probably_has(self, box: str, wanted_tokens: int, free_tokens: int | None) -> bool:
        """Whether nothing speaks against so much room; `free_tokens` None where nobody told."""
        return box not in self._full and (free_tokens is None or wanted_tokens <= free_tokens)
