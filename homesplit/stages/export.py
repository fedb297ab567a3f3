"""Exports of the notebook: `.ipynb`, `.md`, `.csv` and `.jsonl`."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from homesplit.core.entry import Entry
from homesplit.errors import NotebookError, UsageError
from homesplit.io.atomic import write_atomically
from homesplit.io.box_store import load_boxes
from homesplit.io.notebook import Notebook
from homesplit.io.own_words import own_words
from homesplit.stages.context import Context
from homesplit.stages.notebook import page_of
from homesplit.view.notebook_pages import (
    Kept,
    Page,
    csv_text,
    ipynb,
    jsonl,
    markdown,
    picture_files,
)
from homesplit.view.redact import ANSWERS, NOBODYS, Redaction, box_names, name_forms, user_of

FORMATS: dict[str, Callable[[Sequence[Page], Kept], str]] = {
    "ipynb": ipynb,
    "md": markdown,
    "csv": csv_text,
    "jsonl": jsonl,
}


_OUR_PICTURE = re.compile(
    r'<svg xmlns="http://www\.w3\.org/2000/svg" width="\d+" height="\d+" '
    r'font-family="sans-serif" font-size="13"><rect'
)
"""How each picture that was exported begins."""


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

    Markdown has its pictures in a folder beside it, named like it with `_pictures`.

    Names of machines, addresses and host keys are left out unless `names`. Raises
    UsageError for an unknown form, HomesplitError when nothing can be read or written.
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
    shown, kept = (pages, None) if names else _redacted(ctx, pages)
    try:
        if chosen == "md":
            _with_pictures(path, shown, kept)
        else:
            path.write_text(FORMATS[chosen](shown, kept), encoding="utf-8")
    except OSError as error:
        raise NotebookError(
            f"can't be written: {error.strerror}",
            where=str(path),
            do_next="Give another path, in a folder that is there and can be written to.",
        ) from error
    return path


def pictures_beside(path: Path) -> Path | None:
    """Where the pictures lie that a Markdown export shows; None where it shows none."""
    folder = _pictures_folder(path)
    shows = folder.is_dir() and f"({quote(folder.name)}/entry-" in path.read_text(encoding="utf-8")
    return folder if shows else None


def _pictures_folder(path: Path) -> Path:
    return path.with_name(f"{path.stem}_pictures")


def _with_pictures(path: Path, pages: Sequence[Page], kept: Kept) -> None:
    """The text, and beside it a folder with the pictures that it shows."""
    folder, drawn = _pictures_folder(path), picture_files(pages)
    if drawn:
        folder.mkdir(exist_ok=True)
    for name, picture in drawn.items():
        write_atomically(folder / name, picture.encode(), mode=0o666)
    path.write_text(markdown(pages, kept, quote(folder.name)), encoding="utf-8")
    # Pictures of an earlier export may name what this one leaves out. They go last: on a full
    # disk they stay.
    for old in folder.glob("entry-*.svg"):
        if old.name not in drawn and _is_ours(old):
            old.unlink()
    if not drawn:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _is_ours(picture: Path) -> bool:
    with picture.open(encoding="utf-8", errors="replace") as file:
        return bool(_OUR_PICTURE.match(file.read(200)))


def _page(notebook: Notebook, entry: Entry, everything: Sequence[Entry]) -> Page:
    page = page_of(entry)
    page["raw"] = {name: list(rows) for name, rows in notebook.raw(entry.id).items()}
    notes = [note for note in everything if note.on_entry == entry.id]
    page["notes"] = [msgspec.to_builtins(note) for note in notes]
    return page


def _redacted(ctx: Context, pages: list[Page]) -> tuple[list[Page], tuple[str, ...]]:
    """The pages without names, and the names that stay."""
    own = {socket.gethostname(), *_user()} - set(NOBODYS)
    known = load_boxes(ctx.paths)
    own |= {box.user for box in known if box.user} - set(NOBODYS)
    boxes = (*box_names(pages), *(box.name for box in known))
    users = {user for box in boxes if (user := user_of(box))}
    bare = [form for name in (*boxes, *own, *users) for form in name_forms(name)]
    redaction = Redaction(boxes, own, own_words(bare))
    return [_without_names(redaction, page) for page in pages], redaction.kept


def _without_names(redaction: Redaction, page: Page) -> Page:
    raw = redaction.value(page["raw"], untouched=ANSWERS)
    return {**redaction.value({**page, "raw": {}}), "raw": raw}


def _user() -> tuple[str, ...]:
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):
        return ()
