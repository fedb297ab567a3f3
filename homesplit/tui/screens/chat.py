"""Chat with the served model; one's own time to first token and tokens stand under the answer."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input

from homesplit.controller import Controller, Said
from homesplit.errors import HomesplitError
from homesplit.tui.screens.over import Over, keep
from homesplit.tui.widgets.keys import Key, Keys
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import numbers
from homesplit.view.spans import EMPTY, Line, Lines, Span, line, wrap

KEPT = "chat"


def get_ready(app: App[Any], controller: Controller) -> None:
    """Make the one chat there is, which is kept when it is closed."""
    if not app.is_screen_installed(KEPT):
        keep(app, ChatScreen(controller), KEPT)


class ChatScreen(Over[None]):
    """A dialog over Monitor, so that the strips behind it go on; what was said in it stays."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Back"),
        Binding("ctrl+n", "afresh", "New chat"),
    ]

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller
        self._said: list[Said] = []
        self._talks_to: str | None = None

    def compose(self) -> ComposeResult:
        """What was said, and a line to say more."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = "Chat with the model on your boxes"
            with VerticalScroll(id="chat-log"):
                yield LinesView(self._lines, id="chat-lines")
            yield Input(placeholder="Ask something; enter sends it")
            yield Keys(
                Key("enter", "sends", "send", first=True),
                Key("^n", "new chat", "afresh"),
                Key("escape", "goes back to Monitor", "close"),
            )

    def _lines(self, width: int, height: int) -> Lines:
        if not self._said:
            return wrap(
                "What you send is one more request among the others: it shows in the strips and "
                "in the ledger.",
                width,
                "dim",
            )
        return tuple(row for said in self._said for row in _said_lines(said, width))

    def on_screen_resume(self) -> None:
        """Another deployment knows nothing of what was said to the last one."""
        deployment = self.controller.state.deployment
        talks_to = deployment.id if deployment is not None else None
        if talks_to != self._talks_to:
            self._talks_to = talks_to
            self._said.clear()
        self._redraw()

    def on_input_submitted(self) -> None:
        """Enter sends what was typed."""
        self.action_send()

    def action_send(self) -> None:
        """Send what was typed."""
        typed = self.query_one(Input)
        text = typed.value.strip()
        if text:
            typed.value = ""
            self._answer(text)

    @work(exclusive=True)
    async def _answer(self, text: str) -> None:
        said = Said(question=text)
        self._said.append(said)
        try:
            async for _ in self.controller.chat(self._said):
                self._redraw()
        except HomesplitError as error:
            said.trouble = error.sentence()
        except asyncio.CancelledError:
            said.trouble = "given up before its end"
            raise
        self._redraw()

    def action_afresh(self) -> None:
        """Forget what was said: the next question stands alone."""
        self.workers.cancel_node(self)
        self._said.clear()
        self._redraw()

    def _redraw(self) -> None:
        if not self.is_running:
            # It is being closed, and its lines may be gone while the answer still comes.
            return
        self.query_one("#chat-lines", LinesView).redraw()
        self.query_one("#chat-log", VerticalScroll).scroll_end(animate=False)

    def action_close(self) -> None:
        """Back to Monitor; an answer that is still being written is given up."""
        self.workers.cancel_node(self)
        self.dismiss(None)


def _said_lines(said: Said, width: int) -> Lines:
    rows: list[Line] = [(Span("you  ", "a"), *part) for part in wrap(said.question, width - 5)]
    for written in said.answer.splitlines():
        rows.extend((Span("     "), *part) for part in wrap(written, width - 5) or (EMPTY,))
    if said.trouble:
        rows.extend(wrap(f"✗ {said.trouble}", width, "bad"))
    if said.ttft_s is not None:
        told = f"     first token after {numbers.seconds(said.ttft_s)}, {said.tokens} tokens"
        if said.tpot_s is not None:
            told += f", {numbers.seconds(said.tpot_s)} each"
        rows.append(line(Span(told, "dim")))
    return (*rows, EMPTY)
