"""What is freed and soon wanted again stays with the process, where malloc can be told so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from homesplit_engine.heap import KEPT_BYTES, keep_freed_memory

FRAMES_A_TURN, TURNS = 4, 50
FRAME_BYTES = 512 * 1024
PROGRAM = f"""
import resource, sys
from homesplit_engine.heap import keep_freed_memory

def turn():
    return len([bytearray({FRAME_BYTES}) for _ in range({FRAMES_A_TURN})])

if sys.argv[1] == "keep":
    assert keep_freed_memory()
turn(), turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TURNS}):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env=env,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's malloc can be told")
def test_frames_that_come_and_go_ask_the_system_for_pages_once() -> None:
    pages = FRAMES_A_TURN * FRAME_BYTES // os.sysconf("SC_PAGE_SIZE")
    assert FRAMES_A_TURN * FRAME_BYTES < KEPT_BYTES
    assert _faults("keep") < pages
    assert _faults("glibc's own way") > 10 * pages


def test_where_malloc_has_no_such_settings_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
