"""The palette's rows: each command with its key and what it does, fewer as one types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from homesplit.view.spans import Line, Span, crop

NAME, KEY = 16, 7
"""Characters that a command's name and its key have before what it does."""


class Command(NamedTuple):
    """One thing that can be done: its name, the key for it (or nothing), what it does."""

    name: str
    key: str
    told: str


def matching(commands: Sequence[Command], typed: str) -> tuple[int, ...]:
    """The places of those that every typed word fits, a name that begins so before others."""
    words = typed.casefold().split()
    ranked = [(rank, place) for place, one in enumerate(commands) if (rank := _rank(one, words))]
    return tuple(place for _, place in sorted(ranked))


def row(command: Command, width: int) -> Line:
    """Key, name and what it does in one line."""
    told = (
        Span(f"{command.key:<{KEY}}", "key"),
        Span(f"{command.name:<{NAME}}", "strong"),
        Span(command.told, "dim"),
    )
    return crop(told, width)


def _rank(command: Command, words: list[str]) -> int:
    """0 does not fit, then the smaller the better."""
    name, told = command.name.casefold(), command.told.casefold()
    if not all(word in name or word in told or word == command.key for word in words):
        return 0
    if name.startswith(" ".join(words)):
        return 1
    return 2 if all(word in name for word in words) else 3
