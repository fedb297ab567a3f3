"""Terminals as they are: without colours, with sixteen, small and huge, with a mouse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import cast

import pytest
from rich.color import Color, ColorSystem
from rich.segment import Segment
from textual.events import MouseScrollDown
from textual.pilot import Pilot

from homesplit.controller import Said
from homesplit.core import events
from homesplit.tui.app import STREAM_S, HomesplitApp
from homesplit.tui.screens.chat import ChatScreen
from homesplit.tui.screens.dialogs import Question, Reading
from homesplit.tui.theme import SIXTEEN, THEMES
from homesplit.tui.widgets.lines import LinesView
from homesplit.tui.widgets.rows import Rows
from homesplit.view import road
from homesplit.view.spans import Line, line
from tests.engine.router_kit import until
from tests.tui import sample_run
from tests.tui.conftest import MakeApp, Recorded
from tests.tui.test_flows import commands, press, settled, text_of

SIZES = ((80, 24), (120, 40), (300, 100))


def painted(app: HomesplitApp) -> list[Segment]:
    """Every segment of the whole screen, as it goes to the terminal."""
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return [segment for strip in strips for segment in strip]


def coloured(segments: list[Segment]) -> list[Segment]:
    return [
        one
        for one in segments
        if one.style is not None
        and any(c is not None and not c.is_default for c in (one.style.color, one.style.bgcolor))
    ]


@pytest.mark.parametrize("name", road.SCREENS)
async def test_no_color_paints_no_colour_and_the_chosen_stop_still_stands_out(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, str(road.SCREENS.index(name) + 1))
        segments = painted(app)
        assert coloured(segments) == []
        reversed_ = "".join(s.text for s in segments if s.style is not None and s.style.reverse)
        assert f"{road.SCREENS.index(name) + 1} {road.TITLES[name]}" in reversed_


async def test_no_color_set_to_nothing_asks_for_nothing(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert coloured(painted(app))


async def test_a_terminal_of_sixteen_colours_gets_hues_that_it_has(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "standard")
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert app.theme == SIXTEEN


def test_what_must_be_told_apart_has_sixteen_colours_of_its_own() -> None:
    theme = next(theme for theme in THEMES if theme.name == SIXTEEN)
    ground = Color.parse(str(theme.background)).downgrade(ColorSystem.STANDARD)
    for roles in (("prefill", "decode", "handoff", "bad"), ("good", "bad", "warn"), ("a", "b")):
        numbers = [
            Color.parse(theme.variables[role]).downgrade(ColorSystem.STANDARD).number
            for role in roles
        ]
        assert len({*numbers, ground.number}) == len(roles) + 1


@pytest.mark.parametrize("name", road.SCREENS)
async def test_every_screen_draws_at_every_size_also_when_it_changes_in_flight(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, str(road.SCREENS.index(name) + 1))
        for width, height in (*SIZES, (40, 12), *reversed(SIZES)):
            await pilot.resize_terminal(width, height)
            await settled(pilot)
            for view in app.screen.query(LinesView):
                if view.display and view.size.width:
                    lines = view._current()  # pyright: ignore[reportPrivateUsage]
                    assert all(
                        sum(len(span.text) for span in line) <= view.size.width for line in lines
                    ), view.id


# ------------------------------------------------------------------------------- mouse


async def click_word(pilot: Pilot[None], app: HomesplitApp, word: str) -> None:
    """Click on the middle of a word of the screen."""
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    for y, strip in enumerate(strips):
        x = strip.text.find(word)
        if x >= 0:
            await pilot.click(offset=(x + len(word) // 2, y))
            await settled(pilot)
            return
    raise AssertionError(f"{word} is not on the screen")


async def test_the_road_is_clicked_along(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        for name in reversed(road.SCREENS):
            await click_word(pilot, app, road.TITLES[name])
            assert app.current_mode == name


async def test_what_enter_does_is_clicked(make_app: MakeApp) -> None:
    app = make_app([events.BoxFound(box=sample_run.found("atlas", "10.77.0.11"))])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await click_word(pilot, app, "choose this machine")
        assert app.controller.state.choices.boxes == ("atlas",)
        await click_word(pilot, app, "measure atlas")
        assert commands(app) == ["probe"]


async def test_the_keys_of_the_footer_and_of_a_question_are_clicked(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "3", "d")
        assert isinstance(app.screen, Question)
        await click_word(pilot, app, "no (escape)")
        assert commands(app) == []
        await press(pilot, "d")
        await click_word(pilot, app, " y ")
        assert commands(app) == ["down"]
        await press(pilot, "4")
        await click_word(pilot, app, "Mode")
        assert commands(app) == ["down", "mode"]


async def test_an_error_is_clicked_open_and_away(make_app: MakeApp) -> None:
    failure = events.StageFailed(stage="probe", what="the key is refused", where="borea")
    app = make_app([*sample_run.machines(), failure])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await click_word(pilot, app, "the key is refused")
        assert isinstance(app.screen, Reading)
        await click_word(pilot, app, "goes back")
        assert not isinstance(app.screen, Reading)


async def test_the_wheel_moves_the_cursor_and_a_second_click_chooses(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        rows = app.screen.query_one("#machines", Rows)
        rows.post_message(MouseScrollDown(rows, 2, 2, 0, 1, 0, False, False, False))
        await settled(pilot)
        assert rows.current == "borea"
        before = app.controller.state.choices.boxes
        await click_word(pilot, app, "borea")
        assert app.controller.state.choices.boxes != before


# -------------------------------------------------------------------------- no more work


async def test_what_did_not_change_is_not_painted(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        app.stage_screen.show()  # type: ignore[union-attr]
        asked: list[str | None] = []

        def note(view: LinesView) -> Callable[..., None]:
            return lambda *_args, **_options: asked.append(view.id)  # type: ignore[misc]

        for view in app.screen.query(LinesView):
            monkeypatch.setattr(view, "refresh", note(view))
        app.stage_screen.show()  # type: ignore[union-attr]
        assert asked == []
        cast(Recorded, app.controller).emit(
            events.StageFailed(stage="probe", what="no answer", where="atlas")
        )
        app.stage_screen.show()  # type: ignore[union-attr]
        assert "news" in asked
        assert "card-lines" not in asked


async def test_steps_alone_do_not_draw_the_other_screens_ten_times_a_second(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    monkeypatch.setattr("homesplit.tui.app.monotonic", lambda: 100.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        shown: list[str] = []
        monkeypatch.setattr(app.stage_screen, "show", lambda: shown.append("show"))
        told = next(e for e in sample_run.serving() if isinstance(e, events.StepSeen))
        for _ in range(5):
            app.controller.emit(told)
            await app._tick()  # pyright: ignore[reportPrivateUsage]
        assert shown == []
        monkeypatch.setattr("homesplit.tui.app.monotonic", lambda: 100.0 + STREAM_S)
        await app._tick()  # pyright: ignore[reportPrivateUsage]
        assert shown == ["show"]


async def test_text_that_stands_still_is_there_to_be_read(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())  # pyright: ignore[reportPrivateUsage]
        for line in text_of(app, "#strips").split("\n"):
            assert line.rstrip() in shown


def rows_of(*names: str) -> tuple[tuple[str, Line], ...]:
    return tuple((name, line(name)) for name in names)


async def test_the_cursor_stays_with_the_newest_until_it_is_moved(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        rows = Rows(live=True)
        await app.screen.mount(rows)
        rows.set_rows(rows_of("b", "a"))
        rows.set_rows(rows_of("c", "b", "a"))
        assert rows.current == "c"
        rows.action_move(1)
        rows.set_rows(rows_of("d", "c", "b", "a"))
        assert rows.current == "b"


async def test_a_row_is_made_only_when_it_is_to_be_seen(make_app: MakeApp) -> None:
    app = make_app()
    made: list[int] = []

    def row(number: int) -> Line:
        made.append(number)
        return line(str(number))

    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4")
        rows = Rows(live=True)
        await app.screen.mount(rows)
        await settled(pilot)
        room = rows.size.height
        assert room > 0
        rows.set_rows(tuple((str(number), partial(row, number)) for number in range(500)))
        await settled(pilot)
        assert made == list(range(room))
        rows.action_move(9999)
        await settled(pilot)
        assert made[room:] == list(range(500 - room, 500))


@pytest.mark.parametrize("name", road.SCREENS)
async def test_clocks_that_tick_while_the_app_closes_draw_on_nothing(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, str(road.SCREENS.index(name) + 1))
        screen = app.stage_screen
        assert screen is not None
        close = app._close_all  # pyright: ignore[reportPrivateUsage]

        async def tick_then_close() -> None:
            await screen.remove_children()
            cast(Recorded, app.controller).emit(
                events.StageFailed(stage="probe", what="no answer", where="atlas")
            )
            await app._tick()  # pyright: ignore[reportPrivateUsage]
            for timer in list(screen._timers):  # pyright: ignore[reportPrivateUsage]
                await timer._tick(next_timer=0, count=1)  # pyright: ignore[reportPrivateUsage]
            screen.show()
            closed.append(name)
            await close()

        closed: list[str] = []
        app._close_all = tick_then_close  # type: ignore[method-assign] # pyright: ignore[reportPrivateUsage]
    assert closed == [name]


async def test_a_chat_is_closed_while_its_answer_still_comes(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    pieces = 0

    async def chat(said: list[Said]) -> AsyncIterator[Said]:
        nonlocal pieces
        while True:
            said[-1].answer = str(pieces := pieces + 1)
            yield said[-1]
            await asyncio.sleep(0)

    monkeypatch.setattr(app.controller, "chat", chat)
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4", "c")
        assert isinstance(app.screen, ChatScreen)
        await pilot.press("h", "i", "enter")
        await until(lambda: pieces > 3)
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, ChatScreen))
