"""Notebook: every measurement as a sentence; open one, add a note, export."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from homesplit.controller import Opened
from homesplit.tui.ask import ask
from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.screens.dialogs import Ask, Question
from homesplit.tui.screens.entry import EntryScreen
from homesplit.tui.widgets.lines import Draw, LinesView
from homesplit.tui.widgets.rows import Rows
from homesplit.view import notebook
from homesplit.view.entry_page import entry_page
from homesplit.view.spans import Lines, clean, wrap


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

    def _in_full(self, width: int, height: int) -> Lines:
        return notebook.in_full(self.state, self.query_one("#entries", Rows).current, width)

    @on(Rows.Moved, "#entries")
    def _moved(self) -> None:
        self.query_one("#entry-lines", LinesView).redraw()

    def show_body(self) -> None:
        """Entries as they are now."""
        rows = self.query_one("#entries", Rows)
        rows.set_rows(notebook.rows(self.state, max(self.size.width - 4, 40)))
        told = clean(self.state.stage("notebook").sentence)
        self.query_one("#notebook").border_subtitle = Content(told)
        rows.display = bool(self.state.entries)
        self.query_one("#no-entries").display = not self.state.entries
        self.query_one("#in-full").display = rows.display
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
