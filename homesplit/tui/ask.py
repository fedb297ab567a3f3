"""Questions that a stage asks, put to the person as dialogs."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from textual.app import App
from textual.screen import ModalScreen

from homesplit.tui.screens.dialogs import Ask, TrustKey

_T = TypeVar("_T")


class AskScreens:
    """The app's `stages.context.Ask`."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Show the fingerprint and ask."""
        return bool(await ask(self._app, TrustKey(box, fingerprint)))

    async def secret(self, prompt: str) -> str | None:
        """Ask for a password, passphrase or code; what is typed is not shown and not kept."""
        return await ask(self._app, Ask("Log in", prompt, secret=True))


async def ask(app: App[Any], dialog: ModalScreen[_T]) -> _T | None:
    """Show a dialog and wait for its answer, from any task of the app's loop."""
    answer: asyncio.Future[_T | None] = asyncio.get_running_loop().create_future()

    def take(value: _T | None) -> None:
        if not answer.done():
            answer.set_result(value)

    await app.push_screen(dialog, take)
    return await answer
