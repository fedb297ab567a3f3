"""Exports of the notebook: `.ipynb`, `.md`, `.csv` and `.jsonl`."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from homesplit.core.entry import Entry
from homesplit.errors import NotebookError, UsageError
from homesplit.io.box_store import load_boxes
from homesplit.io.notebook import Notebook
from homesplit.stages.context import Context
from homesplit.stages.notebook import page_of
from homesplit.view.notebook_pages import Page, csv_text, ipynb, jsonl, markdown
from homesplit.view.redact import Redaction, box_names

FORMATS: dict[str, Callable[[Sequence[Page], bool], str]] = {
    "ipynb": ipynb,
    "md": markdown,
    "csv": csv_text,
    "jsonl": jsonl,
}
_OWN_NAMES_KEPT = ("localhost", "root")


async def export_entries(ctx: Context, ids: Sequence[str], out: Path) -> tuple[Path, ...]:
    """Write these entries in every form into the folder `out`; the paths written."""
    return await asyncio.to_thread(_all_forms, ctx, ids, out)


def _all_forms(ctx: Context, ids: Sequence[str], out: Path) -> tuple[Path, ...]:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder can't be made: {error.strerror}"
        raise NotebookError(what, where=str(out)) from error
    return tuple(export(ctx, out / f"notebook.{form}", form=form, entries=ids) for form in FORMATS)


def export(
    ctx: Context,
    path: Path,
    *,
    form: str | None = None,
    entries: Sequence[str] = (),
    names: bool = False,
) -> Path:
    """Write entries (all without any named) to `path`; the form is its ending unless given.

    Names of machines, addresses and host keys are left out unless `names`. Raises
    UsageError for an unknown form, NotebookError when nothing can be read or written.
    """
    chosen = form or path.suffix.removeprefix(".")
    if chosen not in FORMATS:
        raise UsageError(
            f"{chosen or 'no ending'!r} is no form of export.",
            do_next=f"Take one of {', '.join(FORMATS)}.",
        )
    notebook = Notebook(ctx.paths.notebook)
    everything = notebook.entries()
    asked = tuple(notebook.find(text) for text in entries) if entries else everything
    if not asked:
        raise NotebookError(
            "the notebook is empty.", do_next="Every probe, plan, run and comparison fills it."
        )
    pages = [_page(notebook, entry, everything) for entry in asked]
    text = FORMATS[chosen](pages if names else _redacted(ctx, pages), not names)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotebookError(
            f"can't be written: {error.strerror}",
            where=str(path),
            do_next="Give another path with --out.",
        ) from error
    return path


def _page(notebook: Notebook, entry: Entry, everything: Sequence[Entry]) -> Page:
    page = page_of(entry)
    page["raw"] = {name: list(rows) for name, rows in notebook.raw(entry.id).items()}
    notes = [note for note in everything if note.on_entry == entry.id]
    page["notes"] = [msgspec.to_builtins(note) for note in notes]
    return page


def _redacted(ctx: Context, pages: list[Page]) -> list[Page]:
    own = {socket.gethostname(), *_user()} - set(_OWN_NAMES_KEPT)
    known = load_boxes(ctx.paths)
    own |= {box.user for box in known if box.user} - set(_OWN_NAMES_KEPT)
    redaction = Redaction((*box_names(pages), *(box.name for box in known)), own)
    return [redaction.value(page) for page in pages]


def _user() -> tuple[str, ...]:
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):
        return ()
