"""Screens are made before their keys are pressed, and one page is kept for all that is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from textual.pilot import Pilot

from homesplit.controller import Said
from homesplit.core import events
from homesplit.errors import EngineError
from homesplit.io import chat_client
from homesplit.tui.app import HomesplitApp
from homesplit.tui.read import KEPT, read
from homesplit.tui.screens.base import StageScreen
from homesplit.tui.screens.dialogs import Reading
from homesplit.view import road
from tests.engine.router_kit import until
from tests.tui.conftest import MakeApp
from tests.tui.test_flows import commands, picture, press


@contextlib.asynccontextmanager
async def ready_app(make_app: MakeApp) -> AsyncGenerator[tuple[HomesplitApp, Pilot[None]]]:
    """An app that has made everything ready."""
    told: list[bool] = []
    app = make_app()
    app._on_ready = lambda: told.append(True)  # pyright: ignore[reportPrivateUsage]
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: told)
        yield app, pilot


def stops(app: HomesplitApp) -> dict[str, StageScreen]:
    """The screen of each mode that has one."""
    stacks: dict[str, list[Any]] = app._screen_stacks  # pyright: ignore[reportPrivateUsage]
    return {name: cast(StageScreen, stacks[name][0]) for name in road.SCREENS if stacks.get(name)}


async def test_every_stop_is_made_once_and_is_the_one_that_its_key_shows(
    make_app: MakeApp,
) -> None:
    async with ready_app(make_app) as (app, pilot):
        made = stops(app)
        assert set(made) == set(road.SCREENS)
        assert app.current_mode == "machines"
        for number, name in enumerate(road.SCREENS, start=1):
            await press(pilot, str(number))
            assert app.screen is made[name]
            assert road.TITLES[name] in picture(app)
        assert commands(app) == []


async def test_without_being_asked_to_no_stop_is_made_beforehand(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "1")
        assert set(stops(app)) == {"machines"}
        assert not app.is_screen_installed(KEPT)


async def test_the_page_that_is_kept_shows_what_is_asked_for_each_time(make_app: MakeApp) -> None:
    async with ready_app(make_app) as (app, pilot):
        kept = app.get_screen(KEPT, Reading)
        for key, words in (("4", "switch the mode while it serves"), ("6", "export as .ipynb")):
            for _ in range(2):
                await press(pilot, key, "question_mark")
                assert app.screen is kept
                assert words in picture(app)
                await press(pilot, "escape")
                assert isinstance(app.screen, StageScreen)
        await press(pilot, "4", "enter")
        assert app.screen is kept
        assert "from receipt to last token" in picture(app)
        assert "Keys on this screen" not in picture(app)


async def test_a_page_over_a_page_or_over_another_stop_is_one_of_its_own(
    make_app: MakeApp,
) -> None:
    async with ready_app(make_app) as (app, pilot):
        await press(pilot, "question_mark")
        kept = app.screen
        await app.switch_mode("plan")
        await press(pilot, "question_mark")
        assert app.screen is not kept
        assert "work out the advice anew" in picture(app)
        await press(pilot, "escape")
        await app.switch_mode("machines")
        assert app.screen is kept
        read(app, "Trace", "line one")
        await press(pilot)
        assert app.screen is not kept
        await press(pilot, "escape", "escape")
        assert isinstance(app.screen, StageScreen)


async def test_a_kept_page_fits_a_window_that_changed_and_a_theme_that_did(
    make_app: MakeApp,
) -> None:
    async with ready_app(make_app) as (app, pilot):
        await press(pilot, "question_mark", "escape")
        await pilot.resize_terminal(80, 24)
        app.theme = "homesplit-light"
        await press(pilot, "question_mark")
        shown = picture(app)
        assert "Keys on this screen" in shown
        assert max(len(line.rstrip()) for line in shown.split("\n")) <= 80
        ground = app.screen.query_one(".dialog").styles.background
        assert ground.brightness > 0.5


def answered_in_one_word(app: HomesplitApp, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every chat is answered at once; returns what each answer was asked after, as it grows."""
    asked: list[list[str]] = []

    async def chat(said: list[Said]) -> AsyncIterator[Said]:
        asked.append([one.question for one in said])
        said[-1].answer = f"Answer {len(asked)}.\n\nIts second part."
        yield said[-1]

    monkeypatch.setattr(app.controller, "chat", chat)
    return asked


async def test_what_was_said_in_the_chat_is_there_when_it_is_opened_again(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready_app(make_app) as (app, pilot):
        asked = answered_in_one_word(app, monkeypatch)
        await press(pilot, "4", "c", "h", "i", "enter")
        await until(lambda: "Answer 1." in picture(app))
        await press(pilot, "escape", "c")
        assert "Answer 1. " in picture(app)
        assert "Its second part. " in picture(app)
        await press(pilot, "o", "enter")
        await until(lambda: "Answer 2." in picture(app))
        assert asked == [["hi"], ["hi", "o"]]


async def test_another_deployment_is_not_asked_what_the_last_one_was(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready_app(make_app) as (app, pilot):
        answered_in_one_word(app, monkeypatch)
        await press(pilot, "4", "c", "h", "i", "enter")
        await until(lambda: "Answer 1." in picture(app))
        await press(pilot, "escape")
        served = app.controller.state.deployment
        assert served is not None
        app.controller.emit(
            events.DeploymentSeen(deployment=msgspec.structs.replace(served, id="another"))
        )
        await press(pilot, "c")
        assert "Answer 1." not in picture(app)
        assert "What you send is one more request" in picture(app)


async def test_an_answer_is_given_up_with_the_chat_that_it_is_written_into(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []

    async def chat(said: list[Said]) -> AsyncIterator[Said]:
        try:
            said[-1].answer = "It begins"
            yield said[-1]
            await asyncio.Event().wait()
        finally:
            ends.append("given up")

    async with ready_app(make_app) as (app, pilot):
        monkeypatch.setattr(app.controller, "chat", chat)
        await press(pilot, "4", "c", "h", "i", "enter")
        await until(lambda: "It begins" in picture(app))
        assert ends == []
        await press(pilot, "escape")
        await until(lambda: ends == ["given up"])
        await press(pilot, "c")
        await until(lambda: "given up before its end" in picture(app))


async def test_a_new_chat_knows_nothing_of_the_one_before(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready_app(make_app) as (app, pilot):
        asked = answered_in_one_word(app, monkeypatch)
        await press(pilot, "4", "c", "h", "i", "enter")
        await until(lambda: "Answer 1." in picture(app))
        await press(pilot, "ctrl+n")
        await until(lambda: "Answer 1." not in picture(app))
        await press(pilot, "o", "enter")
        await until(lambda: "Answer 2." in picture(app))
        assert asked == [["hi"], ["o"]]


async def test_a_question_is_sent_with_whole_answers_alone(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[tuple[str, str]]] = []

    async def stream(*args: Any, **_kwargs: Any) -> AsyncIterator[str]:
        sent.append(args[3])
        yield "Yes"
        if len(sent) == 2:
            raise EngineError("the context is full.")

    monkeypatch.setattr(chat_client, "stream", stream)
    async with ready_app(make_app) as (app, _):
        monkeypatch.setattr(app.controller, "served", SimpleNamespace(url="u", api_key=None))
        said: list[Said] = []
        for number in range(3):
            said.append(Said(question=f"q{number}"))
            with contextlib.suppress(EngineError):
                _ = [one async for one in app.controller.chat(said)]
    assert sent[1] == [("user", "q0"), ("assistant", "Yes"), ("user", "q1")]
    assert sent[2] == [("user", "q0"), ("assistant", "Yes"), ("user", "q2")]
