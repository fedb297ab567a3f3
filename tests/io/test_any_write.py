"""Notebook and settings survive being killed, and a full disk, at each of their writes in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.io import any_write
from tests.io.any_write import KINDS, REFUSED, SUBJECTS

LIMIT_S = 600.0
COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="writes are hit by Linux's system calls"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc"),
]


class _Told(msgspec.Struct):
    hit: int
    refused: int
    wrong: list[str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ends a process, or fills its disk, at one of its writes."""
    made = tmp_path_factory.mktemp("writes") / "writes.so"
    source = Path(__file__).with_name("writes.c")
    words = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(made), str(source)]
    headers = subprocess.run(
        [str(COMPILER), "-E", "-o", os.devnull, str(source)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if headers.returncode:
        pytest.skip(f"the C compiler lacks headers: {headers.stderr.strip().splitlines()[:1]}")
    subprocess.run(words, check=True, timeout=LIMIT_S)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_whatever_write_is_hit_all_that_was_told_as_kept_is_whole_and_it_goes_on(
    library: Path, tmp_path: Path, subject: str, kind: str
) -> None:
    words = [sys.executable, "-m", "tests.io.any_write", str(tmp_path), subject, kind]
    ended = subprocess.run(
        words,
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    told = msgspec.json.decode(ended.stdout, type=_Told)
    assert told.wrong == []
    assert told.hit > 2 and (told.refused > 0) == (kind == "full")


def test_one_that_writes_more_often_than_it_was_hit_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(any_write, "MOST", 3)
    monkeypatch.setattr(any_write, "Shim", lambda: None)

    def refused(*_: object) -> int:
        return REFUSED

    monkeypatch.setattr(any_write, "hit", refused)
    nothing = any_write.Subject(lambda _: None, lambda _: None, lambda _, __: None)
    told = any_write.run(nothing, tmp_path, KINDS["full"])
    assert (told["hit"], told["wrong"]) == (
        2,
        ["it writes more than 2 times, and the rest was not hit"],
    )
