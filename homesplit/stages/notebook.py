"""The lab notebook as the stages, the command line and the app use it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from homesplit.core.entry import About, Entry, EntryKind, labelled
from homesplit.core.events import EntryWritten, Progress
from homesplit.errors import HomesplitError, NotebookError, UsageError
from homesplit.io import probe_store
from homesplit.io.notebook import Notebook
from homesplit.io.own_process import own_mark, still_runs
from homesplit.io.versions import git_hash, versions
from homesplit.stages.context import Context


def record(
    ctx: Context,
    kind: EntryKind,
    sentence: str,
    body: Any = None,
    *,
    about: About | None = None,
    raw: Mapping[str, Sequence[Any]] | None = None,
) -> str:
    """Write an entry and tell it; returns its id. Raises NotebookError.

    `body` is anything msgspec can encode; `raw` holds lists of raw records by name. Versions
    and the git hash are filled in here.
    """
    known = _versioned(about or About())
    told = labelled(sentence, known.loopback)
    entry = _notebook(ctx).write(kind, told, body, about=known, raw=raw)
    _tell(ctx, entry)
    return entry.id


def _versioned(about: About) -> About:
    return replace(about, versions={**versions(), **about.versions}, git_hash=git_hash())


class Course:
    """An entry that grows while it is measured: what was told of it is in the notebook before."""

    def __init__(self, ctx: Context, kind: EntryKind) -> None:
        self._ctx = ctx
        self._kind: EntryKind = kind
        self._entry: Entry | None = None
        # A thread that still writes what came meanwhile must not write over what came of it.
        self._writing = threading.Lock()
        self._turn = 0

    def so_far(
        self,
        sentence: str,
        body: Any,
        *,
        about: About,
        raw: Mapping[str, Sequence[Any]] | None = None,
        ended: bool = False,
    ) -> str:
        """Write what is known by now, `raw` beside what was kept before; returns the entry's id.

        Raises NotebookError.
        """
        known, notebook = _versioned(replace(about, process=own_mark())), _notebook(self._ctx)
        told = labelled(sentence, known.loopback)
        with self._writing:
            self._turn += 1
            key = self._entry and self._entry.id
            if key is None:
                entry = notebook.write(self._kind, told, body, about=known, raw=raw, ended=ended)
            else:
                entry = notebook.amend(key, told, body, about=known, raw=raw, ended=ended)
            self._entry = entry
        _tell(self._ctx, entry)
        return entry.id

    async def grow(self, sentence: str, name: str, rows: Sequence[Any]) -> None:
        """More raw records of what goes on now; not told, for it comes every second.

        Raises NotebookError.
        """
        await asyncio.to_thread(self._grow, self._turn, sentence, name, rows)

    def _grow(self, turn: int, sentence: str, name: str, rows: Sequence[Any]) -> None:
        with self._writing:
            entry = self._entry
            if entry is None or entry.ended or turn != self._turn:
                return
            told = labelled(sentence, entry.about.loopback)
            self._entry = _notebook(self._ctx).grow(entry.id, told, name, rows)

    def broken_off(self, error: BaseException) -> None:
        """It ends before its end, for this reason; what has been kept of it stays."""
        with self._writing:
            self._turn += 1
        if self._entry is None or self._entry.ended:
            return
        why = error.what.rstrip(".") if isinstance(error, HomesplitError) else None
        stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        told = "by its user" if stopped else f"by an error: {why or type(error).__name__}"
        sentence = f"{self._entry.sentence.rstrip()} Broken off {told}."
        with contextlib.suppress(NotebookError):
            # The reason is told anyway, by whom it came from; it must not be replaced here.
            self._grow(self._turn, sentence, "", ())
            _tell(self._ctx, self._entry)

    @contextlib.contextmanager
    def open(self) -> Generator[None, None, None]:
        """While the block lasts it is measured; an error that ends the block is written down."""
        try:
            yield
        except BaseException as error:
            self.broken_off(error)
            raise


def record_if_possible(
    ctx: Context,
    kind: EntryKind,
    sentence: str,
    body: Any = None,
    *,
    about: About | None = None,
) -> str | None:
    """Like `record`, for work that stands whether or not it can be written down.

    None, and the reason told as progress, where the notebook can't be used. A body that takes
    long may be a function: it is called only where it can be written.
    """
    try:
        if callable(body):
            _notebook(ctx).try_to_write()
            body = body()
        return record(ctx, kind, sentence, body, about=about)
    except NotebookError as error:
        told = f"This is not in the notebook: {error.sentence()}"
        ctx.emit(Progress(stage="notebook", step="write", sentence=told))
        return None


def known_machines(ctx: Context, names: Sequence[str]) -> tuple[tuple[Any, ...], Any]:
    """For an entry: each box's profile, its name where it was never probed, and their link."""
    boxes = tuple(probe_store.load_box(ctx.paths, name) or name for name in names)
    return boxes, probe_store.load_link(ctx.paths, *names) if len(names) == 2 else None


def list_entries(ctx: Context, kind: EntryKind | None = None) -> tuple[Entry, ...]:
    """All entries, oldest first; raises NotebookError."""
    return _notebook(ctx).entries(kind)


def show_entry(ctx: Context, text: str) -> tuple[Entry, dict[str, tuple[Any, ...]]]:
    """One entry by id, number or start of its id, and its raw records; raises NotebookError."""
    notebook = _notebook(ctx)
    entry = notebook.find(text)
    return entry, notebook.raw(entry.id)


def notes_on(ctx: Context, entry_id: str) -> tuple[Entry, ...]:
    """The notes written to one entry, oldest first."""
    return tuple(e for e in list_entries(ctx, "note") if e.on_entry == entry_id)


def goes_on(entry: Entry) -> bool:
    """Whether an entry that has not ended is still being measured by a process of this machine."""
    process = entry.about.process
    return not entry.ended and process is not None and still_runs(process)


def page_of(entry: Entry) -> dict[str, Any]:
    """An entry as plain values; of one that has not ended also whether it still goes on."""
    page: dict[str, Any] = msgspec.to_builtins(entry)
    return page if entry.ended else {**page, "goes_on": goes_on(entry)}


def add_note(ctx: Context, text: str, *, entry: str | None = None) -> str:
    """Write a note by hand, alone or to an entry; returns its id.

    Raises UsageError where it says nothing, NotebookError.
    """
    if not text.strip():
        raise UsageError("a note without words.", do_next="Give the note as one argument.")
    notebook = _notebook(ctx)
    on_entry = notebook.find(entry).id if entry else None
    written = notebook.write("note", text.strip(), on_entry=on_entry)
    _tell(ctx, written)
    return written.id


def _notebook(ctx: Context) -> Notebook:
    return Notebook(ctx.paths.notebook)


def _tell(ctx: Context, entry: Entry) -> None:
    told = EntryWritten(id=entry.id, kind=entry.kind, at=entry.at, sentence=entry.sentence)
    ctx.emit(told)
