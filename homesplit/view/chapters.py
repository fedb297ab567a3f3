"""A recorded run in chapters: where something new begins, and the screen that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from homesplit_engine.records import ModeSetting

from homesplit.core import events
from homesplit.core.events import Event

SHORTEST_S = 5.0
"""What lasts less is passed through on the way to the next, and is no chapter."""
_OF_STAGES = {
    "probe": ("machines", "the boxes are measured"),
    "plan": ("plan", "the advice"),
    "deploy": ("deploy", "the engine comes to the boxes"),
    "targets": ("monitor", "targets that suit the boxes"),
    "compare": ("compare", "the same requests through each mode"),
}


class Chapter(NamedTuple):
    """The number of its first event, the screen it is seen on, and its name."""

    first: int
    screen: str
    title: str


def chapters(recorded: Sequence[tuple[float, Event]]) -> tuple[Chapter, ...]:
    """The chapters of events with their moments in seconds; the first begins with the first."""
    if not recorded:
        return ()
    found = [Chapter(0, "machines", "the machines are found")]
    for chapter in _beginnings(recorded):
        lasted_s = recorded[chapter.first][0] - recorded[found[-1].first][0]
        if not _same(chapter, found[-1]) and lasted_s < SHORTEST_S and len(found) > 1:
            found.pop()
        # Equal beginnings, such as a rate that is turned, are one chapter.
        if not _same(chapter, found[-1]):
            found.append(chapter)
    return tuple(found)


def _same(one: Chapter, other: Chapter) -> bool:
    return (one.screen, one.title) == (other.screen, other.title)


def _beginnings(recorded: Sequence[tuple[float, Event]]) -> Iterator[Chapter]:
    comparing = False
    for number, (_, event) in enumerate(recorded):
        match event:
            case events.StageStarted(stage=stage) if stage in _OF_STAGES:
                comparing = comparing or stage == "compare"
                yield Chapter(number, *_OF_STAGES[stage])
            case events.StageEnded(stage="compare") | events.StageFailed(stage="compare"):
                comparing = False
            case events.CompareVerdict():
                yield Chapter(number, "compare", "the verdict")
            # A comparison offers loads and switches modes too; they are its own affair.
            case events.LoadStarted() if not comparing:
                yield Chapter(number, "monitor", "a load")
            case events.ModeSwitched(switch=switch) if not comparing:
                yield Chapter(number, "monitor", _mode_words(switch.setting))
            case _:
                pass


def _mode_words(setting: ModeSetting) -> str:
    if setting.mode != "colocated":
        return f"mode {setting.mode}"
    return f"mode colocated, prefill {setting.prefill}"


def at(found: Sequence[Chapter], reached: int) -> int:
    """Which chapter the event of number `reached` belongs to; 0 where there is none."""
    return max((n for n, chapter in enumerate(found) if chapter.first <= reached), default=0)
