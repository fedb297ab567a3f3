"""Notebook and settings on a disk that is full, and under a writer that is killed at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from homesplit.errors import HomesplitError, NotebookError
from homesplit.io.atomic import write_atomically
from homesplit.io.box_store import KnownBox, load_boxes, remember_box
from homesplit.io.notebook import Notebook
from homesplit.io.paths import Paths

PAGE = 4096
DISK_BYTES = 2**20
OVERWRITER = """
import sys
from pathlib import Path
from homesplit.io.atomic import write_atomically
path = Path(sys.argv[1])
for turn in range(10**9):
    write_atomically(path, bytes([65 + turn % 2]) * 200_000)
    print(turn, flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    """A file system of one MiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


@contextlib.contextmanager
def only_pages_left(disk: Path, pages: int) -> Generator[None]:
    """Fill the disk up but for so many pages."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        file.truncate(max(0, file.tell() // PAGE - pages) * PAGE)
    yield
    filler.unlink()


def test_a_notebook_on_a_full_disk_keeps_every_entry_and_refuses_the_next_in_a_sentence(
    disk: Path,
) -> None:
    book = Notebook(disk / "notebook.sqlite")
    shown = [book.write("note", "the first", raw={"rows": [1, 2, 3]}).id]
    refused = 0
    for pages in range(24):
        with only_pages_left(disk, pages):
            try:
                shown.append(book.write("note", "x" * 9000, raw={"rows": list(range(3000))}).id)
            except NotebookError as error:
                refused += 1
                assert "full" in str(error)
            with contextlib.suppress(NotebookError):  # it may not be readable now; later it is
                assert [entry.id for entry in book.entries()] == shown
        assert [entry.id for entry in book.entries()] == shown
        assert all(book.raw(entry) for entry in shown)
    assert refused, "the disk was never full"
    with contextlib.closing(sqlite3.connect(book.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_first_entry_on_a_full_disk_is_refused_and_the_next_one_is_written(disk: Path) -> None:
    for pages in range(12):
        book = Notebook(disk / f"{pages}/notebook.sqlite")
        with only_pages_left(disk, pages), contextlib.suppress(NotebookError):
            book.write("note", "x" * 9000)
        book.write("note", "after all")
        assert book.entries()[-1].sentence == "after all"


def test_a_settings_file_on_a_full_disk_stays_as_it_was(disk: Path) -> None:
    path = disk / "settings.toml"
    write_atomically(path, b"old" * 1000)
    for pages in range(6):
        with only_pages_left(disk, pages):
            with contextlib.suppress(HomesplitError):
                write_atomically(path, b"new" * 5000)
            assert path.read_bytes() in (b"old" * 1000, b"new" * 5000)
        assert [p.name for p in disk.iterdir()] == ["settings.toml"]


def test_a_box_that_cannot_be_noted_is_an_error_in_words_and_the_known_ones_stay(
    disk: Path,
) -> None:
    paths = Paths(config=disk / "c", cache=disk / "k", data=disk / "d")
    remember_box(paths, KnownBox(name="atlas", host_key="a"))
    with only_pages_left(disk, 0), pytest.raises(HomesplitError, match="No space left"):
        remember_box(paths, KnownBox(name="borea" * 2000, host_key="b"))
    assert [box.name for box in load_boxes(paths)] == ["atlas"]


def test_a_settings_file_under_a_killed_writer_is_whole_and_leaves_no_pieces(
    tmp_path: Path,
) -> None:
    path = tmp_path / "settings"
    moments = random.Random(8)
    for _ in range(8):
        command = [sys.executable, "-c", OVERWRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
        data = path.read_bytes()
        assert data in (b"A" * 200_000, b"B" * 200_000)
    write_atomically(path, b"last")
    assert [p.name for p in tmp_path.iterdir()] == ["settings"]
