"""The notebook's file and its exports: nothing lost, nothing leaked, everything readable."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import nbformat
import pytest

from homesplit.core.entry import LOOPBACK_LABEL, About
from homesplit.core.events import EntryWritten, Event
from homesplit.errors import HomesplitError, NotebookError, UsageError
from homesplit.io.box_store import KnownBox, remember_box
from homesplit.io.notebook import MIGRATIONS, Notebook
from homesplit.io.paths import Paths
from homesplit.stages.context import Context
from homesplit.stages.export import FORMATS, export, pictures_beside
from homesplit.stages.notebook import (
    Course,
    add_note,
    goes_on,
    list_entries,
    notes_on,
    page_of,
    record,
    show_entry,
)
from tests.view.test_notebook_kinds import LEDGER, MAP

FIGURES: dict[str, Any] = {
    "offered": 10,
    "completed": 9,
    "failed": 1,
    "rejected": 0,
    "ttft_s": {"p50": 0.25, "p90": 0.5},
    "tpot_s": {"p50": None, "p90": None},
    "stall_s": {"p90": 0.0},
    "attainment": 0.9,
    "goodput_requests_per_s": 1.5,
    "by_class": {},
}
WRITER = """
import sys
from pathlib import Path
from homesplit.io.notebook import Notebook
print("ready", flush=True)
book = Notebook(Path(sys.argv[1]))
while True:
    entry = book.write("note", "x" * 2000, {"n": 1}, raw={"rows": [{"a": 1}] * 50})
    print(entry.id, flush=True)
"""
GROWER = """
import sys
from pathlib import Path
from homesplit.core.entry import About
from homesplit.io.notebook import Notebook
print("ready", flush=True)
book = Notebook(Path(sys.argv[1]))
entry = book.write("run", "0 runs so far.", {"runs": 0}, ended=False)
count = 0
while True:
    count += 1
    raw = {f"run {count}": [{"a": 1}] * 20}
    told = f"{count} runs so far."
    book.amend(entry.id, told, {"runs": count}, about=About(), raw=raw, ended=False)
    print(count, flush=True)
"""


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return context(tmp_path, [])


def context(folder: Path, told: list[Event]) -> Context:
    paths = Paths(config=folder / "c", cache=folder / "k", data=folder / "d")
    return Context(emit=told.append, paths=paths)


def test_an_entry_comes_back_whole_with_its_raw_records_and_is_told(tmp_path: Path) -> None:
    told: list[Event] = []
    ctx = context(tmp_path, told)
    key = record(ctx, "run", "It ran.", FIGURES, raw={"requests": [{"id": 1}, {"id": 2}]})
    entry, raw = show_entry(ctx, key)
    assert (entry.sentence, entry.body, entry.number) == ("It ran.", FIGURES, 1)
    assert raw == {"requests": ({"id": 1}, {"id": 2})}
    assert "homesplit" in entry.about.versions
    assert [event.id for event in told if isinstance(event, EntryWritten)] == [key]


def test_every_entry_that_was_shown_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sqlite"
    draw = random.Random(9)
    kept = set[str]()
    for turn in range(6):
        # The first ones hit the making of the file, the later ones writing and checkpoints.
        begun = turn >= 3
        shown = killed(path, after_s=draw.uniform(0.0, 0.2 if begun else 0.02), begun=begun)
        entries = Notebook(path).entries() if path.exists() else ()
        now = {entry.id for entry in entries}
        assert shown <= now and kept <= now
        assert [entry.number for entry in entries] == sorted(entry.number for entry in entries)
        assert all(len(Notebook(path).raw(key)["rows"]) == 50 for key in now - kept)
        kept = now
    with sqlite3.connect(path) as whole:
        assert whole.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert kept


def test_an_entry_that_grows_survives_kill_9_with_all_that_was_shown_of_it(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sqlite"
    shown = killed(path, after_s=0.2, begun=True, writer=GROWER)
    (entry,) = Notebook(path).entries()
    count = entry.body["runs"]
    assert max(int(text) for text in shown) <= count
    assert not entry.ended and entry.sentence == f"{count} runs so far."
    assert set(Notebook(path).raw(entry.id)) == {f"run {n}" for n in range(1, count + 1)}


def test_raw_records_that_come_piece_by_piece_are_one_list_and_then_whole(
    ctx: Context,
) -> None:
    notebook = Notebook(ctx.paths.notebook)
    entry = notebook.write("run", "Begun.", {}, ended=False)
    for number in range(3):
        rows = [{"id": 2 * number}, {"id": 2 * number + 1}]
        grown = notebook.grow(entry.id, f"{number} so far.", "requests", rows)
        assert grown.sentence == f"{number} so far." and not grown.ended
    notebook.grow(entry.id, "Nothing new.", "requests", ())
    assert notebook.raw(entry.id) == {"requests": tuple({"id": n} for n in range(6))}
    whole = [{"id": n} for n in range(7)]
    notebook.amend(entry.id, "Done.", {}, about=About(), raw={"requests": whole}, ended=True)
    assert notebook.raw(entry.id) == {"requests": tuple(whole)}
    with pytest.raises(NotebookError, match="is gone"):
        notebook.grow("zzz", "So.", "requests", whole)


def test_an_entry_that_an_error_or_its_user_ends_says_so(ctx: Context) -> None:
    ends = [
        (KeyboardInterrupt(), "Broken off by its user."),
        (asyncio.CancelledError(), "Broken off by its user."),
        (NotebookError("the disk is full."), "Broken off by an error: the disk is full."),
        (RuntimeError("oh"), "Broken off by an error: RuntimeError."),
    ]
    for error, words in ends:
        course = Course(ctx, "run")
        course.so_far("Begun.", {}, about=About())
        with pytest.raises(type(error)), course.open():
            raise error
        entry = list_entries(ctx)[-1]
        assert entry.sentence == f"Begun. {words}" and not entry.ended
    course = Course(ctx, "run")
    course.so_far("Whole.", {}, about=About(), ended=True)
    with pytest.raises(RuntimeError), course.open():
        raise RuntimeError
    assert list_entries(ctx)[-1].sentence == "Whole."


async def test_what_a_thread_writes_late_is_not_written_over_what_came_of_it(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(ctx, "run")
    key = course.so_far("Begun.", {}, about=About())
    late: list[Callable[[], None]] = []

    async def later(work: Callable[..., None], *given: Any) -> None:
        late.append(lambda: work(*given))

    monkeypatch.setattr("homesplit.stages.notebook.asyncio.to_thread", later)
    rows = [{"id": 1}]
    await course.grow("1 so far.", "requests", rows)
    course.so_far("Run 1 done.", {}, about=About(), raw={"requests": rows})
    late.pop()()
    entry, raw = show_entry(ctx, key)
    assert entry.sentence == "Run 1 done." and raw == {"requests": ({"id": 1},)}
    await course.grow("2 so far.", "requests", rows)
    course.broken_off(KeyboardInterrupt())
    late.pop()()
    assert show_entry(ctx, key)[0].sentence == "Run 1 done. Broken off by its user."


def test_an_unended_entry_is_being_measured_only_while_its_process_lives(
    ctx: Context, tmp_path: Path
) -> None:
    course = Course(ctx, "run")
    key = course.so_far("So far.", FIGURES, about=About())
    entry, _ = show_entry(ctx, key)
    assert goes_on(entry) and page_of(entry)["goes_on"] is True
    assert "is going on" in export(ctx, tmp_path / "x.md").read_text()
    with subprocess.Popen(["true"]) as other:
        mark = f"{other.pid}@{time.time():.2f}"
    gone = msgspec.structs.replace(entry, about=About(process=mark))
    assert not goes_on(gone)
    # Another process with the same number is another process.
    later = msgspec.structs.replace(entry, about=About(process=f"{os.getpid()}@1.00"))
    assert page_of(later)["goes_on"] is False
    assert not goes_on(msgspec.structs.replace(entry, about=About()))
    assert not goes_on(msgspec.structs.replace(entry, ended=True))


def test_an_unended_entry_is_marked_until_it_has_ended(ctx: Context, tmp_path: Path) -> None:
    kept = Course(ctx, "run")
    key = kept.so_far("So far.", FIGURES, about=About(), raw={"run 1": [{"id": 1}]})
    assert "This measurement is going on." in export(ctx, tmp_path / "x.md").read_text()
    assert json.loads(export(ctx, tmp_path / "x.jsonl").read_text())["ended"] is False
    again = kept.so_far("Done.", {}, about=About(), raw={"run 2": [{"id": 2}]}, ended=True)
    entry, raw = show_entry(ctx, key)
    assert again == key and entry.ended and entry.number == 1
    assert raw == {"run 1": ({"id": 1},), "run 2": ({"id": 2},)}
    assert "This measurement" not in export(ctx, tmp_path / "y.md").read_text()
    with pytest.raises(NotebookError, match="is gone"):
        Notebook(ctx.paths.notebook).amend("zzz", "So.", None, about=About(), ended=True)


def test_a_notebook_of_an_older_homesplit_is_read_and_all_of_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "notebook.sqlite"
    with sqlite3.connect(path) as old:
        for step in MIGRATIONS[:2]:
            old.executescript(step)
        old.execute("PRAGMA user_version = 2")
        old.execute(
            "INSERT INTO entries (id, kind, at, sentence, about, body) VALUES (?, ?, ?, ?, ?, ?)",
            ("a", "run", "2026", "It ran.", b"{}", b"{}"),
        )
    old.close()
    (entry,) = Notebook(path).entries()
    assert entry.sentence == "It ran." and entry.ended


def killed(path: Path, *, after_s: float, begun: bool, writer: str = WRITER) -> set[str]:
    """What a writer showed before it was killed: after its first entry if `begun`."""
    command = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        first = process.stdout.readline() if begun else ""
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        *whole, _ = (first + process.stdout.read()).split("\n")
    return set(whole)


def test_the_file_is_for_its_owner_alone(ctx: Context) -> None:
    record(ctx, "note", "mine")
    assert os.stat(ctx.paths.notebook).st_mode & 0o077 == 0


def test_what_cannot_be_exported_is_told_without_a_switch_that_the_app_has_not(
    ctx: Context, tmp_path: Path
) -> None:
    add_note(ctx, "warm")
    with pytest.raises(NotebookError) as told:
        export(ctx, tmp_path / "missing" / "x.md")
    assert "--" not in told.value.sentence()
    assert "Give another path" in told.value.sentence()


def test_a_loopback_run_is_labelled_in_its_sentence_and_every_export(
    ctx: Context, tmp_path: Path
) -> None:
    record(ctx, "run", "It ran.", FIGURES, about=About(loopback=True))
    assert LOOPBACK_LABEL in list_entries(ctx)[0].sentence
    for form in FORMATS:
        assert LOOPBACK_LABEL in export(ctx, tmp_path / f"x.{form}").read_text()


def test_names_addresses_and_host_keys_stay_home_unless_asked_for(
    ctx: Context, tmp_path: Path
) -> None:
    body = {**FIGURES, "boxes": ["gandalf", "frodo"], "address": "192.168.7.20"}
    about = About(boxes=({"name": "gandalf", "host_key": "SHA256:" + "a" * 43},))
    record(ctx, "run", "Mode split on gandalf and frodo.", body, about=about)
    for form in FORMATS:
        text = export(ctx, tmp_path / f"x.{form}").read_text()
        assert not any(word in text for word in ("gandalf", "frodo", "192.168", "a" * 43))
        assert "Mode split on box A and box B." in text or "box B and box A" in text
    assert "gandalf" in export(ctx, tmp_path / "y.md", names=True).read_text()


def test_an_export_says_what_stands_in_place_of_names_and_one_with_names_does_not(
    ctx: Context, tmp_path: Path
) -> None:
    record(ctx, "note", "It ran.")
    for form in ("md", "ipynb"):
        assert "Machines are called box A" in export(ctx, tmp_path / f"x.{form}").read_text()
        kept = export(ctx, tmp_path / f"y.{form}", names=True).read_text()
        assert "Machines are called" not in kept
    assert json.loads(export(ctx, tmp_path / "x.jsonl").read_text())["names_replaced"] is True


def test_a_box_whose_name_is_an_ordinary_word_keeps_it_and_the_export_says_so(
    ctx: Context, tmp_path: Path
) -> None:
    body = {**FIGURES, "boxes": ["left", "gandalf"]}
    record(ctx, "run", "Mode split, left to gandalf; 3 were left out.", body)
    text = export(ctx, tmp_path / "x.md").read_text()
    assert "Mode split, left to box A; 3 were left out." in text
    assert "The name `left` stays: ordinary words" in text


def test_boxes_met_before_stay_home_even_where_only_a_sentence_names_them(
    ctx: Context, tmp_path: Path
) -> None:
    remember_box(ctx.paths, KnownBox(name="Gandalf.local", host_key="SHA256:x", user="radagast"))
    record(ctx, "note", "GANDALF was hot; radagast@gandalf and fe80::1 too.")
    for form in FORMATS:
        text = export(ctx, tmp_path / f"x.{form}").read_text().lower()
        assert not any(word in text for word in ("gandalf", "radagast", "fe80"))


def test_the_ipynb_is_valid_and_its_code_runs_from_its_own_data(
    ctx: Context, tmp_path: Path
) -> None:
    record(ctx, "run", 'It\'s "quoted" \\ and ünicode.', FIGURES)
    record(ctx, "note", "A note alone.")
    record(ctx, "plan", "Split.", {"modes": [], "ledger": [LEDGER], "map": MAP})
    path = export(ctx, tmp_path / "x.ipynb")
    book: Any = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    shown = [out for cell in book.cells for out in cell.get("outputs", [])]
    assert shown and all(out.data["image/svg+xml"].startswith("<svg") for out in shown)
    code = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert "TTFT p50" in ran.stdout and "Prefill and hand-off by prompt length" in ran.stdout


def test_markdown_has_the_sentence_first_then_the_table(ctx: Context, tmp_path: Path) -> None:
    key = record(ctx, "run", "It ran.", FIGURES)
    add_note(ctx, "The fan was loud.", entry=key)
    text = export(ctx, tmp_path / "x.md").read_text()
    assert text.index("It ran.") < text.index("| all | 10 | 9 |") < text.index("The fan was loud.")
    assert "no data" in text


def test_markdown_shows_its_pictures_from_a_folder_beside_it(ctx: Context, tmp_path: Path) -> None:
    record(ctx, "run", "Mode split on gandalf.", {**FIGURES, "boxes": ["gandalf"]})
    path = export(ctx, tmp_path / "my lab.md", names=True)
    folder = tmp_path / "my lab_pictures"
    drawn = next(folder.glob("entry-*.svg")).read_text()
    (folder / "entry-9-gandalf.svg").write_text(drawn)
    (folder / "mine.svg").write_text(drawn)
    (folder / "entry-2-mine.svg").write_text("<svg/>")
    text = export(ctx, path).read_text()
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert "my%20lab_pictures/entry-1-ttft-p50.svg" in shown
    assert all((tmp_path / unquote(link)).read_text().startswith("<svg") for link in shown)
    # Of an earlier export nothing is left, and what is not ours stays.
    assert {file.name for file in folder.iterdir()} == {
        "mine.svg",
        "entry-2-mine.svg",
        *(unquote(link).partition("/")[2] for link in shown),
    }
    assert text.index("| all |") < text.index("![TTFT p50]") < text.index("Entry ")


def test_an_export_that_finds_the_disk_full_leaves_the_former_one_whole(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(ctx, "run", "Mode split.", FIGURES)
    path = export(ctx, tmp_path / "x.md")
    assert pictures_beside(path) == tmp_path / "x_pictures"
    record(ctx, "run", "Mode replica.", FIGURES)

    def whole() -> dict[str, str]:
        return {file.name: file.read_text() for file in tmp_path.rglob("*x*/*.svg")}

    def full(path: Path, data: bytes, mode: int) -> None:
        raise HomesplitError("the file can't be written: No space left.", where=str(path))

    before = (path.read_text(), whole())
    with monkeypatch.context() as patch, pytest.raises(HomesplitError, match="No space left"):
        patch.setattr("homesplit.stages.export.write_atomically", full)
        export(ctx, path)
    assert (path.read_text(), whole()) == before and before[1]
    # One without pictures takes those of the former away, and names no folder for them.
    add_note(ctx, "It was hot.")
    note = list_entries(ctx)[-1].id
    assert pictures_beside(export(ctx, path, entries=[note])) is None
    assert not (tmp_path / "x_pictures").exists()


def test_jsonl_holds_the_raw_records(ctx: Context, tmp_path: Path) -> None:
    record(ctx, "run", "It ran.", FIGURES, raw={"requests": [{"id": 7}]})
    line = json.loads(export(ctx, tmp_path / "x.jsonl").read_text())
    assert line["raw"]["requests"] == [{"id": 7}]


def test_notes_hang_on_the_entry_they_were_written_to(ctx: Context) -> None:
    key = record(ctx, "run", "It ran.", FIGURES)
    note = add_note(ctx, "The fan was loud.", entry=key[:5])
    assert [entry.id for entry in notes_on(ctx, key)] == [note]


def test_a_note_without_words_is_refused(ctx: Context) -> None:
    with pytest.raises(UsageError, match="without words"):
        add_note(ctx, "  ")


def test_an_unknown_entry_form_or_an_empty_notebook_is_told_in_a_sentence(
    ctx: Context, tmp_path: Path
) -> None:
    with pytest.raises(NotebookError, match="empty"):
        export(ctx, tmp_path / "x.md")
    record(ctx, "note", "one")
    with pytest.raises(NotebookError, match="no entry"):
        show_entry(ctx, "zzz")
    with pytest.raises(UsageError, match="no form"):
        export(ctx, tmp_path / "x.doc")


def test_a_damaged_file_is_refused_in_a_sentence(ctx: Context) -> None:
    ctx.paths.notebook.parent.mkdir(parents=True)
    ctx.paths.notebook.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(NotebookError, match="damaged"):
        list_entries(ctx)


def test_a_locked_file_is_refused_in_a_sentence(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.io.notebook.BUSY_S", 0.05)
    record(ctx, "note", "one")
    with sqlite3.connect(ctx.paths.notebook, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NotebookError, match="another process"):
            record(ctx, "note", "two")


def test_an_older_schema_is_brought_up_and_a_newer_one_refused(ctx: Context) -> None:
    from homesplit.io.notebook import MIGRATIONS

    path = ctx.paths.notebook
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as old:
        old.executescript(MIGRATIONS[0])
        old.execute("PRAGMA user_version = 1")
        old.execute(
            "INSERT INTO entries VALUES (1, 'abc', 'note', '2026', 'old', '{}', 'null', NULL)"
        )
    record(ctx, "note", "new", raw={"rows": [1]})
    assert [entry.sentence for entry in list_entries(ctx)] == ["old", "new"]
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(NotebookError, match="newer homesplit"):
        list_entries(ctx)
