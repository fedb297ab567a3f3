"""Keys lead along the road; questions come before anything is lost; errors are told in full."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from homesplit_engine.records import StepEvent
from msgspec.structs import replace
from textual.content import Content
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from homesplit.core import events
from homesplit.replay import Replay
from homesplit.tui.app import HomesplitApp
from homesplit.tui.screens.dialogs import Ask, Question, Reading, TrustKey
from homesplit.tui.screens.pick import Pick
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import road
from homesplit.view.spans import plain
from tests.engine.router_kit import until
from tests.tui import sample_run
from tests.tui.conftest import MakeApp, Recorded

SIZES = ((80, 24), (120, 40), (200, 60))
ROUNDS = 6
"""The longest way is a key to the app, to its screen, to a dialog, to what the dialog answers."""


def commands(app: HomesplitApp) -> list[str]:
    return cast(Recorded, app.controller).commands


def text_of(app: HomesplitApp, selector: str) -> str:
    view = app.screen.query_one(selector, LinesView)
    return plain(view._lines(view.size.width, view.size.height))  # pyright: ignore[reportPrivateUsage]


def picture(app: HomesplitApp) -> str:
    """What the screen shows, line by line."""
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return "\n".join(strip.text for strip in strips)


async def settled(pilot: Pilot[None]) -> None:
    """All that was asked for is done and drawn.

    Counted in rounds of messages and not in time, of which a busy computer may need any.
    """
    app = cast(HomesplitApp, pilot.app)
    for _ in range(ROUNDS):
        await pilot._wait_for_screen()  # pyright: ignore[reportPrivateUsage]
        if app.is_running:
            await app._tick()  # pyright: ignore[reportPrivateUsage]
    if app.is_running:
        await drawn(app.screen)
    await pilot.pause()


async def drawn(screen: Screen[Any]) -> None:
    """What waits for the screen's next refresh is done, however late that comes."""
    refreshed = asyncio.Event()
    if screen.call_after_refresh(refreshed.set):
        async with asyncio.timeout(60):
            await refreshed.wait()


async def dialog(app: HomesplitApp, kind: type[Ask] | type[TrustKey]) -> None:
    """Wait for a dialog of this kind that can be answered: keys typed before that would be lost."""

    def takes_keys() -> bool:
        there = isinstance(app.screen, kind) and bool(app.screen.query("Keys"))
        return there and (kind is not Ask or isinstance(app.focused, Input))

    await until(takes_keys)


async def answered(pilot: Pilot[None], app: HomesplitApp, *keys: str) -> None:
    """Press keys into the dialog that is open, the last of which closes it."""
    asked = app.screen
    await pilot.press(*keys)
    await until(lambda: app.screen is not asked)


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, each once all that the one before it asked for is done."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


def notices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """Every notice as its title, its text and whether that is markup.

    A notice goes away by itself, maybe before anybody has looked.
    """
    told: list[tuple[str, str, bool]] = []

    def notify(_: object, message: str, *, title: str, markup: bool, **_more: object) -> None:
        told.append((title, message, markup))

    monkeypatch.setattr(HomesplitApp, "notify", notify)
    return told


@pytest.mark.parametrize("size", SIZES)
async def test_number_keys_reach_every_screen_with_the_road_in_sight(
    make_app: MakeApp, size: tuple[int, int]
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        for number, name in enumerate(road.SCREENS, start=1):
            await press(pilot, str(number))
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
        await press(pilot, "space")
        assert app.controller.state.choices.boxes == ("atlas",)
        assert "measure atlas" in text_of(app, "#next")
        await press(pilot, "enter")
        assert commands(app) == ["probe"]


async def test_turning_a_knob_changes_the_question(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "2")
        await press(pilot, "down", "down", "down", "right")
        assert app.controller.state.choices.prompt_tokens == 1024


async def test_a_key_that_has_nothing_to_act_on_says_so(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = notices(monkeypatch)
    app = make_app(list(sample_run.machines()))
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "2", "v", "f")
        assert [message.split(":")[0] for _, message, _ in told] == [
            "There is no map yet",
            "The advice names no targets to take",
        ]


async def test_a_text_to_read_keeps_its_margins(make_app: MakeApp) -> None:
    app = make_app(())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await app.push_screen(Reading("Trace", "Traceback:\n  File one\n    a call"))
        await settled(pilot)
        assert text_of(app, ".body LinesView") == "Traceback:\n  File one\n    a call"


async def test_the_changes_are_listed_before_enter_makes_them(make_app: MakeApp) -> None:
    told = [*sample_run.machines(), *sample_run.planned(), *sample_run.deploy_planned()]
    app = make_app(told)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "3")
        assert "Python 3.11 with torch" in text_of(app, "#boxes")
        assert commands(app) == []
        await press(pilot, "enter")
        assert commands(app) == ["deploy"]


async def test_stopping_the_engine_asks_first_and_escape_means_no(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "3")
        await press(pilot, "d")
        assert isinstance(app.screen, Question)
        await press(pilot, "escape")
        assert commands(app) == []
        await press(pilot, "d")
        await press(pilot, "y")
        assert commands(app) == ["down"]


async def test_monitor_switches_mode_and_load_and_tells_the_stall(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        await press(pilot, "m", "l")
        assert commands(app) == ["mode", "load"]
        assert "borea was reading a prompt of 540 tokens" in text_of(app, "#strips")
        await press(pilot, "enter")
        assert isinstance(app.screen, Reading)


async def test_the_links_use_is_there_with_the_first_picture_and_waits_for_no_clock(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clock in ("STRIP_S", "FIGURES_S", "SLOW_S"):
        monkeypatch.setattr(f"homesplit.tui.screens.monitor.{clock}", 3600.0)
    app = make_app(())
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        for event in sample_run.whole_run():
            app.controller.emit(event)
        await until(lambda: "atlas ━▶ borea" in text_of(app, "#box-lines"))


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
        await press(pilot, "e")
        assert isinstance(app.screen, Reading)
        await press(pilot, "escape")
        await press(pilot, "escape")
        assert text_of(app, "#news") == ""


async def test_an_error_is_told_also_where_a_line_of_work_has_come_and_gone(
    make_app: MakeApp,
) -> None:
    app = make_app(list(sample_run.machines()))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        emit = app.controller.emit
        emit(events.StageStarted(stage="plan", sentence="working out the advice"))
        await settled(pilot)
        assert "working out the advice" in picture(app)
        emit(events.StageEnded(stage="plan", sentence="The advice is worked out."))
        await settled(pilot)
        assert "working out the advice" not in picture(app)
        emit(events.StageFailed(stage="probe", what="the key is refused", where="borea"))
        await settled(pilot)
        assert "the key is refused" in picture(app)


async def test_an_error_goes_when_what_failed_begins_again(make_app: MakeApp) -> None:
    failure = events.StageFailed(stage="deploy", what="the disk is full", where="borea")
    app = make_app([*sample_run.machines(), failure])
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "3")
        assert "the disk is full" in picture(app)
        app.controller.emit(events.StageStarted(stage="deploy", sentence="Looking at borea."))
        await settled(pilot)
        assert "Looking at borea." in picture(app)
        assert text_of(app, "#news").count("\n") == 0


async def test_escape_on_deploy_hides_the_error_first_as_the_line_says(make_app: MakeApp) -> None:
    failure = events.StageFailed(stage="deploy", what="the disk is full", where="borea")
    app = make_app([*sample_run.machines(), failure])
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "3", "escape")
        assert (app.current_mode, app.controller.state.failures) == ("deploy", ())
        await press(pilot, "escape")
        assert app.current_mode == "plan"


async def test_q_leaves_at_once_when_nothing_would_be_lost(make_app: MakeApp) -> None:
    app = make_app(())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await press(pilot, "q")
    assert app.return_code == 0


async def test_a_window_that_shrinks_in_flight_still_draws(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await press(pilot, "4")
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        lines = text_of(app, "#strips").split("\n")
        assert max(len(line) for line in lines) <= 80


NAME_LIKE_MARKUP = "[red]x[/]\\"


async def test_names_that_look_like_markup_are_shown_as_they_stand(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = notices(monkeypatch)
    box = sample_run.found(NAME_LIKE_MARKUP, "10.77.0.11")
    barred = replace(sample_run.found("[/]", "10.77.0.12"), usable=False, why="[bold]no[/]")
    app = make_app([events.BoxFound(box=box), events.BoxFound(box=barred)])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "space", "3", "r")
        title = app.screen.query_one(".dialog")._border_title  # pyright: ignore[reportPrivateUsage]
        assert isinstance(title, Content)
        assert title.plain == f"Remove homesplit from {NAME_LIKE_MARKUP}?"
        await press(pilot, "escape", "1", "down", "space")
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
        await press(pilot, "n")
        assert not await answer


async def test_a_fault_is_picked_from_a_list_and_escape_breaks_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4", "i")
        assert isinstance(app.screen, Pick)
        await press(pilot, "escape")
        assert commands(app) == []
        await press(pilot, "i")
        await press(pilot, "enter")
        assert commands(app) == ["pause borea for 10 s"]


async def test_ones_own_boxes_are_not_broken(make_app: MakeApp) -> None:
    app = make_app()
    cast(Recorded, app.controller).own_boxes = True
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4", "i")
        assert not isinstance(app.screen, Pick)
        assert commands(app) == []


async def test_cancelling_asks_and_takes_the_request_that_runs(make_app: MakeApp) -> None:
    step = StepEvent(box="borea", step=99, start_s=111.0, end_s=111.9, decode=("r77",), running=1)
    app = make_app([*sample_run.whole_run(), events.StepSeen(event=step)])
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        await press(pilot, "x")
        await press(pilot, "y")
        assert commands(app) == ["cancel r77"]


async def test_targets_are_not_taken_while_the_load_runs(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4", "t")
        assert commands(app) == []
        app.controller.emit(events.LoadStopped())
        await press(pilot, "t")
        assert commands(app) == ["targets"]


async def test_an_entry_opens_to_its_chart_and_its_notes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "6")
        await press(pilot, "enter")
        view = app.screen.query_one(".body LinesView", LinesView)
        shown = plain(view._lines(100, 0))  # pyright: ignore[reportPrivateUsage]
        assert "TTFT p50" in shown
        assert "Borea was warm." in shown


@pytest.mark.parametrize(("size", "has_room"), [((120, 60), True), ((120, 40), False)])
async def test_where_there_is_room_the_entry_under_the_cursor_stands_open_below_the_list(
    make_app: MakeApp, size: tuple[int, int], has_room: bool
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await press(pilot, "6")
        await app.workers.wait_for_complete()
        await settled(pilot)
        assert ("Borea was warm." in picture(app)) is has_room
        assert app.screen.query_one("#in-full").display is not has_room
        await pilot.resize_terminal(120, 40)
        await settled(pilot)
        await app.workers.wait_for_complete()
        await settled(pilot)
        assert "Borea was warm." not in picture(app)
        assert app.screen.query_one("#in-full").display


async def test_an_entry_is_repeated_only_after_a_yes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "6")
        for answer in ("n", "y"):
            await press(pilot, "enter")
            await press(pilot, "r")
            assert isinstance(app.screen, Question)
            await press(pilot, answer)
        assert [told.split()[0] for told in commands(app)] == ["repeat"]


async def test_a_note_goes_to_the_entry_that_is_open(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "6")
        await press(pilot, "enter")
        await press(pilot, "n")
        await press(pilot, *"warm", "enter")
        assert commands(app)[0].startswith("note warm on ")


async def test_a_recording_leads_from_screen_to_screen_until_one_goes_elsewhere(
    make_app: MakeApp,
) -> None:
    app = make_app(())
    assert app.check_action("chapter", (1,)) is False
    replay = Replay(
        [
            (0.0, events.BoxFound(box=sample_run.found("atlas", "10.77.0.11"))),
            (3.0, events.StageStarted(stage="plan", sentence="Working it out.")),
            (6.0, events.StageEnded(stage="plan", sentence="Worked out.")),
            (9.0, events.StageStarted(stage="deploy", sentence="Looking.")),
        ],
        speed=0.001,
    )
    app = HomesplitApp(replay, on_start=replay.begin)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await press(pilot, "greater_than_sign")
        assert app.current_mode == "plan"
        replay.skip(1)
        await settled(pilot)
        assert app.current_mode == "deploy"
        await press(pilot, "6")
        replay.skip(-1)
        await settled(pilot)
        assert app.current_mode == "notebook"
        await press(pilot, "less_than_sign")
        assert app.current_mode == "machines"
        await replay.close()


@pytest.mark.parametrize(
    ("key", "stage"),
    [("1", "probe"), ("2", "plan"), ("3", "deploy"), ("5", "compare"), ("6", "repeat")],
)
async def test_long_work_is_stopped_by_s_after_a_question(
    make_app: MakeApp, key: str, stage: str
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(key, "s")
        await settled(pilot)
        assert "Stop" not in text_of(app, "#keys").replace("Stop engine", "")
        cast(Recorded, app.controller).busy.add(stage)
        app.controller.version += 1
        await settled(pilot)
        assert " s Stop " in text_of(app, "#keys")
        for answer in ("n", "y"):
            await pilot.press("s")
            await settled(pilot)
            assert isinstance(app.screen, Question)
            await pilot.press(answer)
            await settled(pilot)
        assert commands(app) == [f"stop {stage}"]
