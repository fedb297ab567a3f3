"""One entry of the lab notebook: a plain sentence first, then everything behind it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

EntryKind = Literal["probe", "plan", "deployment", "run", "comparison", "note"]
KINDS: tuple[EntryKind, ...] = ("probe", "plan", "deployment", "run", "comparison", "note")
LOOPBACK_LABEL = "one machine over loopback: teaches the mechanism, measures no network"


class About(Struct, frozen=True, kw_only=True):
    """What an entry rests on; None or empty where it doesn't apply or isn't known."""

    versions: dict[str, str] = field(default_factory=dict[str, str])
    """Of homesplit, Python, the system and the main packages."""
    git_hash: str | None = None
    """Commit of the checkout that homesplit ran from; `-dirty` where files differ from it."""
    seeds: dict[str, int] = field(default_factory=dict[str, int])
    model: str | None = None
    fingerprint: str | None = None
    boxes: tuple[Any, ...] = ()
    """The boxes' profiles as they were then."""
    link: Any = None
    settings: Any = None
    process: str | None = None
    """Which process wrote an entry that grows, so that it can be told whether it still does."""
    loopback: bool | None = None
    """True when all workers were on one machine: teaches the mechanism, measures no network."""


class Entry(Struct, frozen=True, kw_only=True):
    """One entry as the notebook keeps it."""

    id: str
    number: int
    """Counts entries of this notebook from 1, in the order of writing."""
    kind: EntryKind
    at: str
    """UTC, ISO 8601."""
    sentence: str
    body: Any = None
    about: About = field(default_factory=About)
    on_entry: str | None = None
    """A note's entry, None for a note that stands alone."""
    ended: bool = True
    """False of one that is being measured, or was when its process ended."""


def labelled(sentence: str, loopback: bool | None) -> str:
    """The sentence with the loopback label where the run measured no network."""
    if not loopback:
        return sentence
    # It belongs at the end, whatever was added to a sentence that had it already.
    mark = f" ({LOOPBACK_LABEL})"
    bare = sentence.replace(mark, "").rstrip()
    if LOOPBACK_LABEL in bare:
        return bare
    return f"{bare[:-1]}{mark}." if bare.endswith(".") else f"{bare}{mark}"
