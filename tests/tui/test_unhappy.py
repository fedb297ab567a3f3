"""What goes wrong is told with its reason and the next step, opens for detail, and goes by escape.

The app's real controller acts here; only the far end is made up: an SSH server on loopback, a
router that answers by rule.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from homesplit.controller import Controller
from homesplit.core import events
from homesplit.errors import HomesplitError
from homesplit.io.deploy_store import DeployStore
from homesplit.io.locks import file_lock
from homesplit.io.paths import Paths
from homesplit.tui.app import HomesplitApp
from homesplit.tui.screens.dialogs import Ask, Reading, TrustKey
from tests.engine.router_kit import until
from tests.io.fake_openai import Manners
from tests.io.fake_router import fake_router
from tests.io.far_end import Lab, far_end
from tests.tui import sample_run
from tests.tui.conftest import MakeApp
from tests.tui.test_flows import answered, dialog, picture, press, settled, text_of

SMALL, LARGER = (80, 24), ((120, 40), (200, 60))


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A box that lets in by a password alone."""
    async with far_end(tmp_path, monkeypatch) as made:
        (made.home / ".ssh" / "id_ed25519").unlink()
        yield made


@contextlib.asynccontextmanager
async def real_app(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[HomesplitApp, Pilot[None]]]:
    """The app as it is, but that it looks for no machines by itself."""
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    controller = Controller(paths=paths)
    app = HomesplitApp(controller)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        yield app, pilot
        await controller.close()


async def told(pilot: Pilot[None], app: HomesplitApp) -> str:
    """The failure that the screen tells, once it does."""
    await until(lambda: app.controller.state.failures)
    await settled(pilot)
    return " ".join(text_of(app, "#news").split())


async def opened_and_hidden(pilot: Pilot[None], app: HomesplitApp) -> str:
    """Open the failure by key, go back, hide it; what was read meanwhile."""
    await press(pilot, "e")
    assert isinstance(app.screen, Reading)
    read = text_of(app, ".body LinesView")
    await press(pilot, "escape")
    assert not isinstance(app.screen, Reading)
    await press(pilot, "escape")
    assert "hides it" not in text_of(app, "#news")
    return " ".join(read.split())


async def the_box_is_asked(pilot: Pilot[None], app: HomesplitApp) -> None:
    """Add the box by hand, choose it and measure it; its key is right."""
    await press(pilot, "a")
    await dialog(app, Ask)
    await answered(pilot, app, *"box", "enter")
    await until(lambda: app.controller.state.boxes)
    await settled(pilot)
    await press(pilot, "space")
    assert app.controller.state.choices.boxes == ("box",)
    await pilot.press("p")
    await dialog(app, TrustKey)
    await answered(pilot, app, "y")


async def test_a_password_that_stays_wrong_is_told_with_what_to_do(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        await the_box_is_asked(pilot, app)
        for _ in range(3):
            await dialog(app, Ask)
            assert app.screen.query_one(Input).password
            await answered(pilot, app, *"wrong", "enter")
        news = await told(pilot, app)
        assert "does not let owner in" in news
        assert "nor with the password" in news
        read = await opened_and_hidden(pilot, app)
        assert "Where: box (stage probe)" in read
        assert "Do next: If owner is not the user there, name it" in read
        assert "wrong" not in read.replace("went wrong", "")
        assert app.current_mode == "machines"


async def test_a_password_that_nobody_gives_is_told_with_what_to_do(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        await the_box_is_asked(pilot, app)
        await dialog(app, Ask)
        await answered(pilot, app, "escape")
        assert "does not let owner in" in await told(pilot, app)
        assert "It takes a password" in await opened_and_hidden(pilot, app)


async def test_a_key_that_is_not_trusted_ends_the_measuring_in_a_sentence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        await press(pilot, "a")
        await dialog(app, Ask)
        await answered(pilot, app, *"box", "enter")
        await until(lambda: app.controller.state.boxes)
        await settled(pilot)
        await press(pilot, "space")
        await pilot.press("p")
        await dialog(app, TrustKey)
        await answered(pilot, app, "escape")
        assert "box: its host key" in await told(pilot, app)
        assert "Compare it with" in await opened_and_hidden(pilot, app)


async def test_a_box_that_goes_while_it_is_measured_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        await the_box_is_asked(pilot, app)
        await dialog(app, Ask)
        # Gone between the question and its answer.
        lab.cut()
        await answered(pilot, app, *"right", "enter")
        await until(lambda: lab.live or app.controller.state.failures)
        lab.cut()
        await told(pilot, app)
        assert "Where: box (stage probe)" in await opened_and_hidden(pilot, app)


async def test_boxes_that_another_shell_is_changing_are_told_with_who_does_what(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeployStore(lab.paths.deployments)
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        for event in (*sample_run.machines(), *sample_run.planned(), *sample_run.deployed()):
            app.controller.emit(event)
        await press(pilot, "3")
        async with file_lock(store.lock, doing="deploying to atlas and borea", wait_s=0):
            await press(pilot, "d", "y")
            news = await told(pilot, app)
        assert "Another homesplit on this machine (process " in news
        assert "is deploying to atlas and borea." in news
        assert "Wait until it is done, or end it there, then try again." in news
        assert str(store.lock) not in news
        await opened_and_hidden(pilot, app)
        assert app.current_mode == "deploy"


async def test_an_engine_that_is_lost_while_modes_are_compared_is_told_and_the_screen_lives(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 0.02)
    monkeypatch.setattr("homesplit.controller.comparing.LONGEST_S", 1.0)
    manners = Manners(model="smollm2-135m", ttft_s=0.01)
    async with real_app(lab.paths, monkeypatch) as (app, pilot):
        controller = app.controller
        for event in (*sample_run.machines(), *sample_run.deployed()):
            controller.emit(event)
        controller.turn_load_rate(5.0)
        async with fake_router({"colocated": manners, "replica": manners}) as router:
            controller.start("serve", lambda ctx: controller.follow(ctx, router.url, None))
            await until(lambda: controller.served)
            await press(pilot, "5", "enter")
            await until(lambda: router.switches)
        news = await told(pilot, app)
        assert "✗" in news
        read = await opened_and_hidden(pilot, app)
        assert "(stage compare)" in read
        assert "Do next:" in read
        await until(lambda: "the engine on" in picture(app))
        await press(pilot, "enter")
        controller.cancel("serve")
        await until(lambda: not controller.running("serve"))


FAILED = [
    (
        "3",
        events.StageFailed(
            stage="deploy",
            where="borea",
            what="1.2 GB are needed in the home of owner, and 0.3 GB are free.",
            do_next="Free some space there, then repeat the command.",
        ),
    ),
    (
        "3",
        events.StageFailed(
            stage="deploy",
            where="borea",
            what="the connection was lost while its packages were being copied.",
            do_next="What was copied stays; repeating it goes on where it stopped.",
        ),
    ),
    (
        "3",
        events.StageFailed(
            stage="deploy",
            where="atlas",
            what="port 7610 is taken by another program.",
            do_next="Name another one with --port.",
        ),
    ),
    (
        "4",
        events.StageFailed(
            stage="mode", what="the engine can't be reached just now", do_next="Wait for it."
        ),
    ),
    (
        "5",
        events.StageFailed(
            stage="compare", where="borea", what="the link was lost.", do_next="Begin again."
        ),
    ),
    (
        "6",
        events.StageFailed(
            stage="notebook", what="the disk is full", do_next="Free some space here."
        ),
    ),
]
"""What may go wrong, with the key of the screen that it is told on."""


@pytest.mark.parametrize(
    ("screen", "failed", "size"),
    [
        *((screen, failed, SMALL) for screen, failed in FAILED),
        *((*FAILED[0], size) for size in LARGER),
    ],
)
async def test_what_where_and_what_next_are_whole_on_every_screen_also_on_a_small_one(
    make_app: MakeApp, screen: str, failed: events.StageFailed, size: tuple[int, int]
) -> None:
    app = make_app([*sample_run.whole_run(), failed])
    async with app.run_test(size=size) as pilot:
        await press(pilot, screen)
        mode = app.current_mode
        news = await told(pilot, app)
        assert f"{failed.where}: " in news or failed.where is None
        assert failed.what in news
        assert failed.do_next is not None
        assert failed.do_next in news
        assert "e detail esc hides it" in news
        read = await opened_and_hidden(pilot, app)
        assert failed.what in read
        assert failed.do_next in read
        assert app.current_mode == mode


async def test_a_failure_of_the_outside_and_a_mistake_of_ours_are_both_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_app(lab.paths, monkeypatch) as (app, pilot):

        async def fails(_: object) -> None:
            raise HomesplitError("the cable is out.", where="borea", do_next="Plug it in.")

        async def breaks(_: object) -> None:
            await asyncio.sleep(0)
            raise KeyError("what")

        app.controller.start("probe", fails)
        assert "borea: the cable is out. Plug it in." in await told(pilot, app)
        await opened_and_hidden(pilot, app)
        app.controller.start("plan", breaks)
        assert "this is a mistake in homesplit: KeyError" in await told(pilot, app)
        assert "Traceback" in await opened_and_hidden(pilot, app)
