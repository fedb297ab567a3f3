"""Notebook: every measurement as a sentence; open one, add a note, export."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content

from homesplit.controller import Controller, Opened
from homesplit.tui.ask import ask
from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.screens.dialogs import Ask, Question
from homesplit.tui.screens.entry import EntryScreen
from homesplit.tui.widgets.lines import Draw, LinesView
from homesplit.tui.widgets.rows import Rows
from homesplit.view import notebook
from homesplit.view.entry_page import entry_page
from homesplit.view.spans import Lines, clean, wrap

TALL = 50
"""Rows of a screen from which on an entry's page has room below the list."""
REST_S = 0.15
"""A cursor that goes on sooner only passes."""


class NotebookScreen(StageScreen):
    """The last stop."""

    STAGE = "notebook"
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = (
        LongWork("repeat", "Stop measuring it again?", "No entry is written of what is cut short."),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "note", "Add a note", id="note", tooltip="Kept with the time and the boxes"),
        Binding("w", "export", "Export", id="export", tooltip="Write .ipynb, .md, .csv or .jsonl"),
    ]

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._drawn: Lines = ()
        self._looked_at: tuple[object, ...] = ()

    def compose_body(self) -> ComposeResult:
        """The entries."""
        with Vertical(classes="panel grow", id="notebook") as panel:
            panel.border_title = "Notebook, newest first"
            yield LinesView(lambda w, h: wrap(notebook.EMPTY_NOTEBOOK, w, "dim"), id="no-entries")
            yield Rows(id="entries")
        with Vertical(classes="panel", id="in-full") as whole:
            whole.border_title = "This entry"
            whole.border_subtitle = "enter opens its charts and all of it"
            yield LinesView(self._in_full, id="entry-lines")
        with VerticalScroll(classes="panel", id="page", can_focus=False) as page:
            page.border_title = "This entry"
            page.border_subtitle = "enter opens all of it"
            yield LinesView(lambda width, height: self._drawn, id="page-lines")

    def _in_full(self, width: int, height: int) -> Lines:
        return notebook.in_full(self.state, self.query_one("#entries", Rows).current, width)

    @on(Rows.Moved, "#entries")
    def _moved(self) -> None:
        self.query_one("#entry-lines", LinesView).redraw()
        current = self.query_one("#entries", Rows).current if self.size.height >= TALL else None
        # A note changes the page of the entry it was written to.
        wanted = (current, self.size.width, len(self.state.entries))
        if wanted != self._looked_at:
            self._looked_at = wanted
            self._look_at(current)

    @work(exclusive=True, group="page")
    async def _look_at(self, entry_id: str | None) -> None:
        """Show an entry's page below the list where there is room; it may hold much to draw."""
        await asyncio.sleep(REST_S)
        looked = await self.controller.looked_at(entry_id) if entry_id is not None else None
        width = max(self.size.width - 4, 20)
        self._drawn = await asyncio.to_thread(self._glimpse, looked, width) if looked else ()
        if self.drawable:
            self.query_one("#page-lines", LinesView).redraw()
            self.query_one("#page", VerticalScroll).scroll_home(animate=False)
            self.set_class(bool(self._drawn), "opened")
            self._make_room()

    def _glimpse(self, looked: Opened, width: int) -> Lines:
        return entry_page(looked.page, msgspec.to_builtins(looked.raw), looked.notes, None, width)

    def _make_room(self) -> None:
        """The sentence stands on the page too."""
        written = bool(self.state.entries)
        self.query_one("#in-full").display = written and not self.has_class("opened")

    def show_body(self) -> None:
        """Entries as they are now."""
        rows = self.query_one("#entries", Rows)
        rows.set_rows(notebook.rows(self.state, max(self.size.width - 4, 40)))
        told = clean(self.state.stage("notebook").sentence)
        self.query_one("#notebook").border_subtitle = Content(told)
        rows.display = bool(self.state.entries)
        self.query_one("#no-entries").display = not self.state.entries
        self._make_room()
        self._moved()
        if rows.display and self.focused is None:
            rows.focus()

    def on_screen_resume(self) -> None:
        """Read the notebook anew when coming here."""
        if self.is_current:
            self.controller.read_notebook()

    @on(Rows.Clicked, "#entries")
    def action_advance(self) -> None:
        """Open the entry under the cursor."""
        current = self.query_one("#entries", Rows).current
        if current is not None:
            self._open(current)

    @work
    async def _open(self, entry_id: str) -> None:
        opened = await self.controller.opened(entry_id)
        if opened is None:
            return
        page = self._page(opened)
        chosen = await ask(self.app, EntryScreen(page, repeatable=opened.repeatable))
        if chosen == "note":
            text = await ask(self.app, Ask("Add a note to this entry", opened.entry.sentence))
            if text:
                self.controller.add_note(text, opened.entry.id)
        elif chosen == "repeat":
            await self._repeat(opened)

    def _page(self, opened: Opened) -> Draw:
        entry = opened.page
        raw = msgspec.to_builtins(opened.raw)
        text = opened.text
        return lambda width, height: entry_page(entry, raw, opened.notes, text, width)

    async def _repeat(self, opened: Opened) -> None:
        question = Question(
            "Measure it again?",
            "The same load goes to the deployment that serves now, in the same modes. A new "
            "entry is written, with what changed since.",
            yes="measure it again",
        )
        if await ask(self.app, question):
            self.controller.repeat(opened)

    @work
    async def action_note(self) -> None:
        """Ask for a note and keep it."""
        text = await ask(self.app, Ask("Add a note", "It is kept with the time and the boxes."))
        if text:
            self.controller.add_note(text)

    @work
    async def action_export(self) -> None:
        """Ask for a file and write it."""
        text = await ask(
            self.app,
            Ask(
                "Export the notebook",
                "A file name; its ending says the form: .ipynb, .md, .csv or .jsonl.",
                placeholder="homesplit.ipynb",
            ),
        )
        if text:
            self.controller.export_notebook(text)
