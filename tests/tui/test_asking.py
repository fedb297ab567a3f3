"""A passphrase that an SSH key needs is asked for in the app, against a real SSH server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from homesplit.errors import UnreachableError
from homesplit.tui.app import HomesplitApp
from homesplit.tui.screens.dialogs import Ask, TrustKey
from tests.engine.router_kit import until
from tests.io.far_end import FEW, Lab, far_end
from tests.tui.conftest import MakeApp
from tests.tui.test_flows import answered, dialog, picture

LIMIT_S = 60.0


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A server that lets in a key locked by a passphrase, or a password."""
    async with far_end(tmp_path, monkeypatch) as made:
        made.client_key.write_private_key(
            str(made.home / ".ssh" / "id_ed25519"), passphrase="open", **FEW
        )
        yield made


async def give(pilot: Pilot[None], app: HomesplitApp, answer: str) -> None:
    """Type an answer into the dialog, see that it is not shown, and press enter."""
    await dialog(app, Ask)
    assert app.screen.query_one(Input).password
    await answered(pilot, app, *answer, "enter")


async def test_a_new_box_asks_for_its_key_then_for_the_passphrase_and_lets_in(
    make_app: MakeApp, lab: Lab
) -> None:
    app = make_app(())
    async with app.run_test(size=(120, 40)) as pilot:
        connections = lab.connections(app.controller.ask)
        connecting = asyncio.create_task(connections.connect("box"))
        await dialog(app, TrustKey)
        await answered(pilot, app, "y")
        await give(pilot, app, "wrong")
        await dialog(app, Ask)
        await until(lambda: "That was not accepted. Passphrase of" in picture(app))
        await give(pilot, app, "open")
        assert (await asyncio.wait_for(connecting, LIMIT_S)).user == "owner"
        assert not isinstance(app.screen, Ask)
        await connections.close()
    kept = [path.read_bytes() for path in lab.home.joinpath("d").rglob("*") if path.is_file()]
    assert not any(b"open" in data or b"wrong" in data for data in kept)


async def test_who_declines_each_question_gets_a_sentence_and_no_further_dialog(
    make_app: MakeApp, lab: Lab
) -> None:
    app = make_app(())
    async with app.run_test(size=(120, 40)) as pilot:
        connections = lab.connections(app.controller.ask)
        connecting = asyncio.create_task(connections.connect("box"))
        await dialog(app, TrustKey)
        await answered(pilot, app, "y")
        for _ in ("the passphrase", "the password"):
            await dialog(app, Ask)
            await answered(pilot, app, "escape")
        with pytest.raises(UnreachableError, match="Nobody gave its passphrase"):
            await asyncio.wait_for(connecting, LIMIT_S)
        assert not isinstance(app.screen, Ask)
        await connections.close()
