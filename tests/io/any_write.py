"""Does one thing to notebook or settings again and again, hit at each of its writes in turn.

    LD_PRELOAD=writes.so python -m tests.io.any_write FOLDER SUBJECT kill|full

Prints a JSON document: at how many writes it was hit, and what was wrong afterwards.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from homesplit.core.entry import About
from homesplit.errors import HomesplitError
from homesplit.io.atomic import write_atomically
from homesplit.io.box_store import KnownBox, load_boxes, remember_box
from homesplit.io.notebook import Notebook
from homesplit.io.paths import Paths

KINDS = {"kill": 1, "full": 2}
REFUSED, DONE, BROKE, NOT_HIT = 3, 4, 5, 0
"""How a process ends: in an error with words, whole though hit, in any other error, never hit."""
MOST = 500
BIG = "x" * 9000
ROWS = [{"row": number} for number in range(800)]
OLD, NEW = b"old" * 3000, b"new" * 5000


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that writes, and what must hold afterwards wherever it was hit."""

    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    check: Callable[[Path, bool], None]
    """Told whether it was done as far as its caller knows; raises AssertionError."""


def _book(folder: Path) -> Notebook:
    return Notebook(folder / "desk" / "notebook.sqlite")


def _sentences(folder: Path) -> list[str]:
    return [entry.sentence for entry in _book(folder).entries()]


def _nothing(_: Path) -> None:
    return None


def _first(folder: Path) -> None:
    _book(folder).write("note", "first", {"body": BIG}, raw={"rows": ROWS})


def _check_first(folder: Path, done: bool) -> None:
    seen = _sentences(folder)
    assert seen == ["first"] or (seen == [] and not done), seen
    _book(folder).write("note", "after")
    assert _sentences(folder) == [*seen, "after"]


def _second(folder: Path) -> None:
    _book(folder).write("note", "second", {"body": BIG}, raw={"rows": ROWS})


def _check_second(folder: Path, done: bool) -> None:
    seen = _sentences(folder)
    assert seen == ["first", "second"] or (seen == ["first"] and not done), seen
    for entry in _book(folder).entries():
        assert entry.body == {"body": BIG}
        assert _book(folder).raw(entry.id) == {"rows": tuple(ROWS)}
    _book(folder).write("note", "after")
    assert _sentences(folder) == [*seen, "after"]


def _begun(folder: Path) -> None:
    entry = _book(folder).write("run", "begun", ended=False)
    _book(folder).grow(entry.id, "one part", "rows", ROWS[:100])


def _go_on(folder: Path) -> None:
    (entry,) = _book(folder).entries()
    _book(folder).grow(entry.id, "two parts", "rows", ROWS[100:300])
    _book(folder).amend(
        entry.id, "whole", {"body": BIG}, about=About(), raw={"rows": ROWS}, ended=True
    )


def _check_course(folder: Path, done: bool) -> None:
    (entry,) = _book(folder).entries()
    rows = _book(folder).raw(entry.id)["rows"]
    states = {
        "one part": (False, None, ROWS[:100]),
        "two parts": (False, None, ROWS[:300]),
        "whole": (True, {"body": BIG}, ROWS),
    }
    assert (entry.ended, entry.body, list(rows)) == states[entry.sentence], entry.sentence
    assert not done or entry.sentence == "whole"


def _settings(folder: Path) -> Path:
    return folder / "settings"


def _old_settings(folder: Path) -> None:
    write_atomically(_settings(folder), OLD)


def _new_settings(folder: Path) -> None:
    write_atomically(_settings(folder), NEW)


def _check_settings(folder: Path, done: bool) -> None:
    data = _settings(folder).read_bytes()
    assert data == NEW or (data == OLD and not done)
    write_atomically(_settings(folder), b"last")
    assert [path.name for path in folder.iterdir()] == ["settings"]


def _paths(folder: Path) -> Paths:
    return Paths(config=folder / "c", cache=folder / "k", data=folder / "d")


def _boxes(folder: Path) -> list[str]:
    return [box.name for box in load_boxes(_paths(folder))]


def _know(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        remember_box(_paths(folder), KnownBox(name=name, host_key=name))

    return act


def _check_boxes(folder: Path, done: bool) -> None:
    assert _boxes(folder) == ["atlas", "borea"] or (_boxes(folder) == ["atlas"] and not done)
    _know("cirrus")(folder)
    assert {"atlas", "cirrus"} <= set(_boxes(folder))


SUBJECTS = {
    "a first entry": Subject(_nothing, _first, _check_first),
    "another entry": Subject(_first, _second, _check_second),
    "an entry that goes on": Subject(_begun, _go_on, _check_course),
    "a settings file": Subject(_old_settings, _new_settings, _check_settings),
    "a box that becomes known": Subject(_know("atlas"), _know("borea"), _check_boxes),
}


class Shim:
    """The library that this process was started with."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.harm_at = library.harm_at
        self.harm_at.argtypes = (ctypes.c_long, ctypes.c_int)
        self.changes_left = library.changes_left
        self.changes_left.restype = ctypes.c_long


def hit(shim: Shim, act: Callable[[Path], None], folder: Path, at: int, kind: int) -> int:
    """Do it in a process of its own; how that ended, negative for a signal."""
    pid = os.fork()
    if not pid:
        code = BROKE
        try:
            shim.harm_at(at, kind)
            act(folder)
            code = NOT_HIT if shim.changes_left() else DONE
        except HomesplitError:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(subject: Subject, folder: Path, kind: int) -> dict[str, object]:
    """Hit it at each of its writes, the first one first."""
    shim, wrong = Shim(), list[str]()
    codes: list[int] = []
    prepared, place = folder / "prepared", folder / "place"
    prepared.mkdir()
    subject.prepare(prepared)
    for at in range(1, MOST):
        shutil.copytree(prepared, place)
        code = hit(shim, subject.act, place, at, kind)
        try:
            subject.check(place, code in (NOT_HIT, DONE))
            assert code in (NOT_HIT, DONE, REFUSED, -9), f"ended with {code}"
        except (AssertionError, HomesplitError, OSError) as error:
            wrong.append(f"write {at}, ended with {code}: {type(error).__name__}: {error}")
        shutil.rmtree(place)
        if code == NOT_HIT:
            break
        codes.append(code)
    else:
        wrong.append(f"it writes more than {MOST - 1} times, and the rest was not hit")
    return {"hit": len(codes), "refused": codes.count(REFUSED), "wrong": wrong}


if __name__ == "__main__":
    told = run(SUBJECTS[sys.argv[2]], Path(sys.argv[1]), KINDS[sys.argv[3]])
    sys.stdout.write(msgspec.json.encode(told).decode())
