"""Commands of the Notebook screen: read, note, repeat, export."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from homesplit.controller.base import Base, stage_module
from homesplit.core import events
from homesplit.errors import HomesplitError
from homesplit.stages.context import Context


@dataclass(frozen=True, slots=True)
class Opened:
    """An entry as it is read."""

    entry: Any
    raw: dict[str, tuple[Any, ...]]
    notes: tuple[str, ...]

    @property
    def repeatable(self) -> bool:
        """Whether it holds what it takes to measure it again."""
        return bool(stage_module("repeat").repeatable(self.entry, self.raw))

    @property
    def page(self) -> dict[str, Any]:
        """It as plain values."""
        return dict(stage_module("notebook").page_of(self.entry))

    @property
    def text(self) -> str:
        """All of it, but for the raw records, as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self.entry), indent=2).decode()


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

    async def opened(self, entry_id: str) -> Opened | None:
        """One entry with its records and notes; None (and the failure told) when unreadable."""
        try:
            return await self._entry(entry_id)
        except HomesplitError as error:
            self.fail("notebook", error)
            return None

    async def looked_at(self, entry_id: str) -> Opened | None:
        """The same for who only passes it: what can't be read is told once it is opened."""
        try:
            return await self._entry(entry_id)
        except HomesplitError:
            return None

    async def _entry(self, entry_id: str) -> Opened:
        module = stage_module("notebook")
        entry, raw = await asyncio.to_thread(module.show_entry, self.context(), entry_id)
        notes = await asyncio.to_thread(module.notes_on, self.context(), entry.id)
        return Opened(entry=entry, raw=raw, notes=tuple(note.sentence for note in notes))

    def add_note(self, text: str, entry_id: str | None = None) -> None:
        """Write a note of one's own, alone or to an entry."""

        async def work(ctx: Context) -> None:
            add = stage_module("notebook").add_note
            await asyncio.to_thread(add, ctx, text, entry=entry_id)

        # Notes have a task of their own: one must not be lost because the entries are being read.
        self.after("note", lambda: self.start("note", work))

    def repeat(self, opened: Opened) -> None:
        """Measure again what an entry measured: the boxes, or the deployment that serves now."""
        again = stage_module("repeat")
        target = None
        if again.needs_server(opened.entry):
            served = self.engine_for("repeat")
            if served is None:
                return
            target = stage_module("bench").Target(url=served.url, api_key=served.api_key)

        async def work(ctx: Context) -> None:
            done = await again.repeat(ctx, opened.entry, opened.raw, target)
            self.emit(events.StageEnded(stage="notebook", sentence=done.sentence))

        self.start("repeat", work)

    def export_notebook(self, text: str) -> None:
        """Write the notebook to a file whose ending says the form."""
        path = Path(text).expanduser()

        async def work(ctx: Context) -> None:
            written = await asyncio.to_thread(stage_module("export").export, ctx, path)
            self.emit(events.StageEnded(stage="notebook", sentence=f"Wrote {written}."))

        self.after("export", lambda: self.start("export", work))
