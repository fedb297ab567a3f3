"""The lab notebook's file: SQLite in WAL mode, one transaction an entry.

`synchronous=FULL` puts an entry on the disk before it is told as written: killing the
process at any moment, or the power, loses nothing that was shown. An entry is rare and
costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from homesplit.core.entry import About, Entry, EntryKind
from homesplit.errors import NotebookError

BUSY_S = 10.0
"""How long to wait for another process that is writing."""
MIGRATIONS = (
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        at TEXT NOT NULL,
        sentence TEXT NOT NULL,
        about BLOB NOT NULL,
        body BLOB NOT NULL,
        on_entry TEXT REFERENCES entries (id)
    );
    """,
    """
    CREATE TABLE raw (
        entry_id TEXT NOT NULL REFERENCES entries (id),
        name TEXT NOT NULL,
        lines BLOB NOT NULL,
        PRIMARY KEY (entry_id, name)
    );
    CREATE INDEX entries_on_entry ON entries (on_entry);
    """,
    """
    ALTER TABLE entries ADD COLUMN ended INTEGER NOT NULL DEFAULT 1;
    """,
    """
    CREATE TABLE raw_parts (
        entry_id TEXT NOT NULL REFERENCES entries (id),
        name TEXT NOT NULL,
        part INTEGER NOT NULL,
        lines BLOB NOT NULL,
        PRIMARY KEY (entry_id, name, part)
    );
    """,
)
"""Each brings the file from schema `index` to `index + 1`; never change one that was released."""
SCHEMA_VERSION = len(MIGRATIONS)

_COLUMNS = "number, id, kind, at, sentence, about, body, on_entry, ended"


class Notebook:
    """The notebook in one file; every call opens, works and closes, so that many may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self._path

    def write(
        self,
        kind: EntryKind,
        sentence: str,
        body: Any = None,
        *,
        about: About | None = None,
        raw: Mapping[str, Sequence[Any]] | None = None,
        on_entry: str | None = None,
        ended: bool = True,
    ) -> Entry:
        """Write one entry with its raw records, whole or not at all; raises NotebookError."""
        plain = msgspec.to_builtins(body)
        entry_id = secrets.token_hex(4)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = about or About()
        encode = msgspec.json.encode
        values = (entry_id, kind, at, sentence, encode(known), encode(plain), on_entry, ended)
        with self._open() as connection, connection:
            cursor = connection.execute(
                "INSERT INTO entries (id, kind, at, sentence, about, body, on_entry, ended) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            _keep_raw(connection, entry_id, raw or {})
        return Entry(
            id=entry_id,
            number=int(cursor.lastrowid or 0),
            kind=kind,
            at=at,
            sentence=sentence,
            body=plain,
            about=known,
            on_entry=on_entry,
            ended=ended,
        )

    def try_to_write(self) -> None:
        """Raises NotebookError where an entry could not be written now; changes nothing."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()

    def amend(
        self,
        entry_id: str,
        sentence: str,
        body: Any,
        *,
        about: About,
        raw: Mapping[str, Sequence[Any]] | None = None,
        ended: bool,
    ) -> Entry:
        """What has become known since of an entry that had not ended; raises NotebookError.

        The raw records come to those it has. All of it is written, or nothing.
        """
        encode = msgspec.json.encode
        values = (sentence, encode(about), encode(msgspec.to_builtins(body)), ended, entry_id)
        with self._open() as connection, connection:
            connection.execute(
                "UPDATE entries SET sentence = ?, about = ?, body = ?, ended = ? WHERE id = ?",
                values,
            )
            row = self._row(connection, entry_id)
            _keep_raw(connection, entry_id, raw or {})
        return _entry(row)

    def grow(self, entry_id: str, sentence: str, name: str, rows: Sequence[Any]) -> Entry:
        """The sentence of an entry that goes on, and raw records that come to those of `name`.

        Raises NotebookError. Both are written, or nothing.
        """
        with self._open() as connection, connection:
            connection.execute("UPDATE entries SET sentence = ? WHERE id = ?", (sentence, entry_id))
            row = self._row(connection, entry_id)
            if rows:
                connection.execute(
                    "INSERT INTO raw_parts SELECT ?, ?, COALESCE(MAX(part), 0) + 1, ? "
                    "FROM raw_parts WHERE entry_id = ? AND name = ?",
                    (entry_id, name, _lines(rows), entry_id, name),
                )
        return _entry(row)

    def _row(self, connection: sqlite3.Connection, entry_id: str) -> tuple[Any, ...]:
        asked = f"SELECT {_COLUMNS} FROM entries WHERE id = ?"
        row = connection.execute(asked, (entry_id,)).fetchone()
        if row is None:
            raise NotebookError(f"the entry {entry_id} is gone.", where=str(self._path))
        return row

    def entries(self, kind: EntryKind | None = None) -> tuple[Entry, ...]:
        """All entries in the order of writing, or those of one kind; raises NotebookError."""
        if not self._path.exists():
            return ()
        where, values = (" WHERE kind = ?", (kind,)) if kind else ("", ())
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM entries{where} ORDER BY number", values
            ).fetchall()
        return tuple(_entry(row) for row in rows)

    def find(self, text: str) -> Entry:
        """The entry with this id, number or unique start of an id; raises NotebookError."""
        found = [e for e in self.entries() if e.id.startswith(text) or str(e.number) == text]
        exact = [e for e in found if e.id == text or str(e.number) == text]
        if len(exact or found) == 1:
            return (exact or found)[0]
        what = "several entries begin with" if found else "the notebook has no entry"
        raise NotebookError(
            f"{what} {text!r}.", do_next="See `homesplit notebook list` for their ids."
        )

    def raw(self, entry_id: str) -> dict[str, tuple[Any, ...]]:
        """An entry's raw records by name, also of what goes on; raises NotebookError."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT name, lines FROM raw WHERE entry_id = ?", (entry_id,)
            ).fetchall()
            rows += connection.execute(
                "SELECT name, lines FROM raw_parts WHERE entry_id = ? ORDER BY name, part",
                (entry_id,),
            ).fetchall()
        found: dict[str, tuple[Any, ...]] = {}
        for name, lines in rows:
            told = tuple(msgspec.json.decode(line) for line in lines.splitlines())
            found[name] = found.get(name, ()) + told
        return found

    @contextlib.contextmanager
    def _open(self) -> Generator[sqlite3.Connection, None, None]:
        """An open connection at the present schema; SQLite's errors become NotebookError."""
        try:
            _make_private(self._path)
            connection = sqlite3.connect(self._path, timeout=BUSY_S)
        except (OSError, sqlite3.Error) as error:
            raise _refused(self._path, error) from error
        try:
            _prepare(connection, self._path)
            yield connection
        except sqlite3.Error as error:
            raise _refused(self._path, error) from error
        finally:
            connection.close()


def _keep_raw(
    connection: sqlite3.Connection, entry_id: str, raw: Mapping[str, Sequence[Any]]
) -> None:
    for name, rows in raw.items():
        values = (entry_id, name, _lines(rows))
        connection.execute("INSERT OR REPLACE INTO raw VALUES (?, ?, ?)", values)
        # Whole now: what came of it piece by piece is in it.
        gone = "DELETE FROM raw_parts WHERE entry_id = ? AND name = ?"
        connection.execute(gone, (entry_id, name))


def _lines(rows: Sequence[Any]) -> bytes:
    return b"\n".join(msgspec.json.encode(row) for row in rows)


def _make_private(path: Path) -> None:
    """Folder 0700 and file 0600: entries hold what only their owner should read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    version = _version(connection)
    if version > SCHEMA_VERSION:
        raise NotebookError(
            f"the notebook was written by a newer homesplit (schema {version}, "
            f"this one knows {SCHEMA_VERSION}).",
            where=str(path),
            do_next="Update homesplit, or move the file aside to begin a new notebook.",
        )
    if version < SCHEMA_VERSION:
        _migrate(connection)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: sqlite3.Connection) -> None:
    """All missing steps in one transaction; another process may have been quicker."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[_version(connection) :]:
            for statement in step.split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise


def _refused(path: Path, error: Exception) -> NotebookError:
    text = str(error)
    if "locked" in text or "busy" in text:
        return NotebookError(
            f"another process has held the notebook for over {BUSY_S:.0f} s.",
            where=str(path),
            do_next="End that process, or try again.",
        )
    if "full" in text:
        return NotebookError("the disk is full.", where=str(path), do_next="Free some space.")
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return NotebookError(
            f"the file is damaged or no notebook ({text}).",
            where=str(path),
            do_next="Move it aside to begin a new one; `sqlite3 FILE .recover` may save entries.",
        )
    return NotebookError(
        f"the notebook can't be used: {text}.",
        where=str(path),
        do_next="Check free space and permissions of its folder (`homesplit info` names it).",
    )


def _entry(row: tuple[Any, ...]) -> Entry:
    number, entry_id, kind, at, sentence, about, body, on_entry, ended = row
    return Entry(
        id=entry_id,
        number=number,
        kind=kind,
        at=at,
        sentence=sentence,
        body=msgspec.json.decode(body),
        about=msgspec.json.decode(about, type=About),
        on_entry=on_entry,
        ended=bool(ended),
    )
