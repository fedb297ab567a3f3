"""Commands of the Notebook screen: read, note, export."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from homesplit.controller.base import Base, stage_module
from homesplit.core import events
from homesplit.errors import HomesplitError
from homesplit.stages.context import Context


class Notes(Base):
    """The lab notebook."""

    def read_notebook(self) -> None:
        """Show the entries of the notebook."""

        async def work(ctx: Context) -> None:
            for entry in await asyncio.to_thread(stage_module("notebook").list_entries, ctx):
                told = events.EntryWritten(
                    id=entry.id, kind=entry.kind, at=entry.at, sentence=entry.sentence
                )
                if told not in self.state.entries:
                    self.emit(told)

        self.start("notebook", work)

    async def entry_text(self, entry_id: str) -> str:
        """One entry at length; empty (and the failure told) when it can't be read."""
        try:
            module = stage_module("notebook")
            entry, raw = await asyncio.to_thread(module.show_entry, self.context(), entry_id)
        except HomesplitError as error:
            self.fail("notebook", error)
            return ""
        return entry_words(entry, raw)

    def add_note(self, text: str) -> None:
        """Write a note of one's own."""

        async def work(ctx: Context) -> None:
            await asyncio.to_thread(stage_module("notebook").add_note, ctx, text)

        # Notes have a task of their own: one must not be lost because the entries are being read.
        self.after("note", lambda: self.start("note", work))

    def export_notebook(self, text: str) -> None:
        """Write the notebook to a file whose ending says the form."""
        path = Path(text).expanduser()

        async def work(ctx: Context) -> None:
            written = await asyncio.to_thread(stage_module("export").export, ctx, path)
            self.emit(events.StageEnded(stage="notebook", sentence=f"Wrote {written}."))

        self.after("export", lambda: self.start("export", work))


def entry_words(entry: Any, raw: dict[str, tuple[Any, ...]]) -> str:
    """An entry as text to read: sentence, when, and what it holds."""
    import msgspec

    body = msgspec.json.format(msgspec.json.encode(entry), indent=2).decode()
    counts = ", ".join(f"{len(rows)} {name}" for name, rows in raw.items())
    held = f"\nraw records kept: {counts}" if counts else ""
    return f"{entry.sentence}\n\n{entry.at}  {entry.kind}{held}\n\n{body}"
