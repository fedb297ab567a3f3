"""Keys lead along the road; questions come before anything is lost; errors are told in full."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from homesplit_engine.records import StepEvent
from msgspec.structs import replace
from textual.content import Content
from textual.pilot import Pilot

from homesplit.core import events
from homesplit.replay import Replay
from homesplit.tui.app import HomesplitApp
from homesplit.tui.screens.dialogs import Question, Reading
from homesplit.tui.screens.pick import Pick
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import road
from homesplit.view.spans import plain
from tests.tui import sample_run
from tests.tui.conftest import MakeApp, Recorded

SIZES = ((80, 24), (120, 40), (200, 60))


def commands(app: HomesplitApp) -> list[str]:
    return cast(Recorded, app.controller).commands


def text_of(app: HomesplitApp, selector: str) -> str:
    view = app.screen.query_one(selector, LinesView)
    return plain(view._lines(view.size.width, view.size.height))  # pyright: ignore[reportPrivateUsage]


async def settled(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.pause(0.15)


@pytest.mark.parametrize("size", SIZES)
async def test_number_keys_reach_every_screen_with_the_road_in_sight(
    make_app: MakeApp, size: tuple[int, int]
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        for number, name in enumerate(road.SCREENS, start=1):
            await pilot.press(str(number))
            await settled(pilot)
            assert app.current_mode == name
            assert road.TITLES[name] in text_of(app, "#road")


async def test_nothing_found_is_told_in_words(make_app: MakeApp) -> None:
    app = make_app(())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "No machine has been found yet." in text_of(app, "#nobody")


async def test_space_chooses_and_enter_measures(make_app: MakeApp) -> None:
    app = make_app([events.BoxFound(box=sample_run.found("atlas", "10.77.0.11"))])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("space")
        await settled(pilot)
        assert app.controller.state.choices.boxes == ("atlas",)
        assert "measure atlas" in text_of(app, "#next")
        await pilot.press("enter")
        assert commands(app) == ["probe"]


async def test_turning_a_knob_changes_the_question(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await settled(pilot)
        await pilot.press("down", "down", "down", "right")
        assert app.controller.state.choices.prompt_tokens == 1024


async def test_the_changes_are_listed_before_enter_makes_them(make_app: MakeApp) -> None:
    told = [*sample_run.machines(), *sample_run.planned(), *sample_run.deploy_planned()]
    app = make_app(told)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await settled(pilot)
        assert "Python 3.11 with torch" in text_of(app, "#boxes")
        assert commands(app) == []
        await pilot.press("enter")
        assert commands(app) == ["deploy"]


async def test_stopping_the_engine_asks_first_and_escape_means_no(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        await settled(pilot)
        await pilot.press("d")
        await settled(pilot)
        assert isinstance(app.screen, Question)
        await pilot.press("escape")
        await settled(pilot)
        assert commands(app) == []
        await pilot.press("d")
        await settled(pilot)
        await pilot.press("y")
        await settled(pilot)
        assert commands(app) == ["down"]


async def test_monitor_switches_mode_and_load_and_tells_the_stall(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await settled(pilot)
        await pilot.press("m", "l")
        assert commands(app) == ["mode", "load"]
        assert "borea was reading a prompt of 540 tokens" in text_of(app, "#strips")
        await pilot.press("enter")
        await settled(pilot)
        assert isinstance(app.screen, Reading)


async def test_an_error_says_what_where_and_what_next_and_opens_for_detail(
    make_app: MakeApp,
) -> None:
    failure = events.StageFailed(
        stage="probe", what="the key is refused", where="borea", do_next="Add your key there."
    )
    app = make_app([*sample_run.machines(), failure])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert "borea: the key is refused. Add your key there." in text_of(app, "#news")
        await pilot.press("e")
        await settled(pilot)
        assert isinstance(app.screen, Reading)
        await pilot.press("escape")
        await pilot.press("escape")
        await settled(pilot)
        assert text_of(app, "#news") == ""


async def test_q_leaves_at_once_when_nothing_would_be_lost(make_app: MakeApp) -> None:
    app = make_app(())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await settled(pilot)
    assert app.return_code == 0


async def test_a_window_that_shrinks_in_flight_still_draws(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("4")
        await settled(pilot)
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        lines = text_of(app, "#strips").split("\n")
        assert max(len(line) for line in lines) <= 80


NAME_LIKE_MARKUP = "[red]x[/]\\"


async def test_names_that_look_like_markup_are_shown_as_they_stand(make_app: MakeApp) -> None:
    box = sample_run.found(NAME_LIKE_MARKUP, "10.77.0.11")
    barred = replace(sample_run.found("[/]", "10.77.0.12"), usable=False, why="[bold]no[/]")
    app = make_app([events.BoxFound(box=box), events.BoxFound(box=barred)])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("space", "3", "r")
        await settled(pilot)
        title = app.screen.query_one(".dialog")._border_title  # pyright: ignore[reportPrivateUsage]
        assert isinstance(title, Content)
        assert title.plain == f"Remove homesplit from {NAME_LIKE_MARKUP}?"
        await pilot.press("escape", "1", "down", "space")
        await settled(pilot)
        told = [(toast.title, toast.message, toast.markup) for toast in app._notifications]  # pyright: ignore[reportPrivateUsage]
        assert told == [("[/]", "[bold]no[/]", False)]


async def test_an_unknown_key_of_an_oddly_named_box_is_asked_about_by_name(
    make_app: MakeApp,
) -> None:
    app = make_app(())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        answer = asyncio.create_task(
            app.controller.ask.trust_host_key(NAME_LIKE_MARKUP, "SHA256:[b]abc[/]")
        )
        await settled(pilot)
        title = app.screen.query_one(".dialog")._border_title  # pyright: ignore[reportPrivateUsage]
        assert isinstance(title, Content)
        assert title.plain == f"Is this really {NAME_LIKE_MARKUP}?"
        await pilot.press("n")
        assert not await answer


async def test_a_fault_is_picked_from_a_list_and_escape_breaks_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", "i")
        await settled(pilot)
        assert isinstance(app.screen, Pick)
        await pilot.press("escape")
        await settled(pilot)
        assert commands(app) == []
        await pilot.press("i")
        await settled(pilot)
        await pilot.press("enter")
        await settled(pilot)
        assert commands(app) == ["pause borea for 10 s"]


async def test_ones_own_boxes_are_not_broken(make_app: MakeApp) -> None:
    app = make_app()
    cast(Recorded, app.controller).own_boxes = True
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", "i")
        await settled(pilot)
        assert not isinstance(app.screen, Pick)
        assert commands(app) == []


async def test_cancelling_asks_and_takes_the_request_that_runs(make_app: MakeApp) -> None:
    step = StepEvent(box="borea", step=99, start_s=111.0, end_s=111.9, decode=("r77",), running=1)
    app = make_app([*sample_run.whole_run(), events.StepSeen(event=step)])
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4")
        await settled(pilot)
        await pilot.press("x")
        await settled(pilot)
        await pilot.press("y")
        await settled(pilot)
        assert commands(app) == ["cancel r77"]


async def test_targets_are_not_taken_while_the_load_runs(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("4", "t")
        await settled(pilot)
        assert commands(app) == []
        app.controller.emit(events.LoadStopped())
        await pilot.press("t")
        assert commands(app) == ["targets"]


async def test_an_entry_opens_to_its_chart_and_its_notes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await settled(pilot)
        await pilot.press("enter")
        await settled(pilot)
        view = app.screen.query_one(".body LinesView", LinesView)
        shown = plain(view._lines(100, 0))  # pyright: ignore[reportPrivateUsage]
        assert "TTFT p50" in shown
        assert "Borea was warm." in shown


async def test_an_entry_is_repeated_only_after_a_yes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await settled(pilot)
        for answer in ("n", "y"):
            await pilot.press("enter")
            await settled(pilot)
            await pilot.press("r")
            await settled(pilot)
            assert isinstance(app.screen, Question)
            await pilot.press(answer)
            await settled(pilot)
        assert [told.split()[0] for told in commands(app)] == ["repeat"]


async def test_a_note_goes_to_the_entry_that_is_open(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("6")
        await settled(pilot)
        await pilot.press("enter")
        await settled(pilot)
        await pilot.press("n")
        await settled(pilot)
        await pilot.press(*"warm", "enter")
        await settled(pilot)
        assert commands(app)[0].startswith("note warm on ")


@pytest.mark.parametrize("name", road.SCREENS)
async def test_the_palette_holds_every_key_of_a_screen(make_app: MakeApp, name: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(str(road.SCREENS.index(name) + 1))
        await settled(pilot)
        held = {command.title for command in app.get_system_commands(app.screen)}
        keys = {b.description for b in type(app.screen).BINDINGS if b.description}  # type: ignore[union-attr]
        assert keys - {"Scroll", "Cancel"} <= held
        assert {"Help", "Quit"} <= held


async def test_a_recording_leads_from_screen_to_screen_until_one_goes_elsewhere(
    make_app: MakeApp,
) -> None:
    app = make_app(())
    assert app.check_action("chapter", (1,)) is False
    replay = Replay(
        [
            (0.0, events.BoxFound(box=sample_run.found("atlas", "10.77.0.11"))),
            (9.0, events.StageStarted(stage="plan", sentence="Working it out.")),
            (18.0, events.StageStarted(stage="deploy", sentence="Looking.")),
        ],
        speed=0.001,
    )
    app = HomesplitApp(replay, on_start=replay.begin)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("greater_than_sign")
        await settled(pilot)
        assert app.current_mode == "plan"
        replay.skip(1)
        await settled(pilot)
        assert app.current_mode == "deploy"
        await pilot.press("6")
        replay.skip(-1)
        await settled(pilot)
        assert app.current_mode == "notebook"
        await pilot.press("less_than_sign")
        await settled(pilot)
        assert app.current_mode == "machines"
        await replay.close()
