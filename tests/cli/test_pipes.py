"""Commands whose reader leaves early, as `head` does, end quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from homesplit.io.notebook import Notebook
from homesplit.io.paths import user_paths


def start(
    home: Path, *argv: str, stdout: int, stderr: int, unbuffered: bool
) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HOMESPLIT_HOME": str(home), "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    return subprocess.Popen(
        [sys.executable, "-m", "homesplit", *argv], stdout=stdout, stderr=stderr, env=env
    )


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("argv", [("info",), ("info", "--json"), ("--help",), ("notebook", "list")])
def test_a_reader_that_has_left_stdout_gets_no_traceback(
    tmp_path: Path, argv: tuple[str, ...], unbuffered: bool
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(tmp_path, *argv, stdout=writing, stderr=subprocess.PIPE, unbuffered=unbuffered)
    os.close(writing)
    _, told = process.communicate(timeout=120)
    assert told == b""
    assert process.returncode in (0, 1)


def test_advice_is_kept_also_where_its_reader_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    asked = "plan --boxes rtx-4090,rtx-3090 --link 1Gbit/s --users 1 --no-flips --prompt-tokens 100"
    argv = [*asked.split(), "--output-tokens", "10"]
    process = start(tmp_path, *argv, stdout=writing, stderr=subprocess.PIPE, unbuffered=False)
    os.close(writing)
    _, told = process.communicate(timeout=120)
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path))
    kept = Notebook(user_paths().notebook).entries()
    assert told == b"" and [entry.kind for entry in kept] == ["plan"]


def test_work_goes_on_when_nobody_reads_its_progress(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = ("discover", "--seconds", "0.2", "--json")
    process = start(tmp_path, *argv, stdout=subprocess.PIPE, stderr=writing, unbuffered=False)
    os.close(writing)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert told.startswith(b"{")
