"""A recording's chapters: each begins where something new begins, on the screen that shows it."""

from __future__ import annotations

from homesplit_engine.records import ModeSetting, ModeSwitch

from homesplit.core import events
from homesplit.view.chapters import Chapter, at, chapters


def began(stage: str) -> events.Event:
    return events.StageStarted(stage=stage, sentence="")


def ended(stage: str) -> events.Event:
    return events.StageEnded(stage=stage, sentence="")


def switched(mode: str) -> events.Event:
    setting = ModeSetting(mode=mode)  # pyright: ignore[reportArgumentType]
    return events.ModeSwitched(switch=ModeSwitch(at_s=0.0, setting=setting, took_s=0.0))


LOAD = events.LoadStarted(workload="demo", rate_requests_per_s=1.0, seconds=None)


def told(*found: tuple[float, events.Event]) -> list[tuple[str, str]]:
    return [(chapter.screen, chapter.title) for chapter in chapters(found)]


def test_nothing_recorded_has_no_chapter() -> None:
    assert chapters(()) == ()
    assert at((), 5) == 0


def test_each_stage_begins_a_chapter_on_its_screen() -> None:
    stages = ("probe", "plan", "deploy", "targets", "compare")
    found = told((0.0, ended("x")), *((10.0 * n, began(s)) for n, s in enumerate(stages, 1)))
    assert [screen for screen, _ in found] == [
        *("machines", "machines", "plan", "deploy", "monitor", "compare")
    ]


def test_the_modes_of_a_load_are_chapters_and_those_of_a_comparison_are_not() -> None:
    found = told(
        (0.0, LOAD),
        (10.0, switched("replica")),
        (20.0, switched("replica")),
        (30.0, began("compare")),
        (40.0, switched("split")),
        (50.0, LOAD),
        (60.0, ended("compare")),
        (70.0, switched("split")),
    )
    assert found[1:] == [
        ("monitor", "a load"),
        ("monitor", "mode replica"),
        ("compare", "the same requests through each mode"),
        ("monitor", "mode split"),
    ]


def test_what_is_passed_through_is_no_chapter() -> None:
    found = told(
        (0.0, LOAD),
        (10.0, switched("auto")),
        (12.0, switched("replica")),
        (14.0, switched("split")),
        (30.0, LOAD),
        (31.0, switched("auto")),
        (32.0, LOAD),
    )
    assert [title for _, title in found[1:]] == ["a load", "mode split", "a load"]


def test_an_event_belongs_to_the_chapter_that_began_last() -> None:
    found = (Chapter(0, "machines", "a"), Chapter(4, "plan", "b"))
    assert [at(found, n) for n in (0, 3, 4, 9)] == [0, 0, 1, 1]
