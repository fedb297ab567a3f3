"""A run's events in a file: one JSON object a line, each with `at_s` since the log began."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from homesplit.core.events import Event, from_line, to_line
from homesplit.errors import UsageError

MAX_LOG_BYTES = 256 * 2**20
"""A log that has grown to this size is not written on."""


class _When(msgspec.Struct, frozen=True):
    at_s: float = 0.0


class EventLog:
    """Appends events to a file; each line also decodes as the bare event."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._began = time.monotonic()
        self._written = 0

    def write(self, event: Event) -> None:
        """One more line."""
        if self._written > MAX_LOG_BYTES:
            return
        at = f'{{"at_s":{time.monotonic() - self._began:.3f},'.encode()
        self._written += self._file.write(at + to_line(event)[1:] + b"\n")

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def read_events(path: Path) -> Iterator[tuple[float, Event]]:
    """Each event of a log with its `at_s`; raises UsageError naming the line that is wrong.

    A file whose name ends in `.gz` is read as gzip.
    """
    # Here: a recording is seldom read, and the first picture should not wait for this.
    import gzip

    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield _decoded(raw, number, path)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the recorded run can't be read: {why}",
            where=str(path),
            do_next="Give a file that `--record` wrote.",
        ) from error


def _decoded(raw: bytes, number: int, path: Path) -> tuple[float, Event]:
    try:
        return msgspec.json.decode(raw, type=_When).at_s, from_line(raw)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"line {number} is not an event: {error}",
            where=str(path),
            do_next="Give a file that `--record` wrote.",
        ) from error
