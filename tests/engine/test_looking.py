"""What may hang is asked by somebody whom nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from homesplit_engine.config import WorkerConfig
from homesplit_engine.keys import make_keys
from homesplit_engine.model import load_model
from homesplit_engine.worker.looking import HANGS_S, Looking
from homesplit_engine.worker.worker import Worker

from tests.engine.tiny import make_model

AGES_S = 60.0


def until(so: Callable[[], bool]) -> None:
    """Wait for what a thread does in its own time."""
    end_s = time.monotonic() + AGES_S
    while not so():
        assert time.monotonic() < end_s
        time.sleep(0.001)


class Disk:
    """A far end that may stand still, and the time beside it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = 0
        self.answers, self.stuck = threading.Event(), threading.Event()
        self.answers.set()
        self.broken = False

    def free(self) -> int | None:
        self.asked += 1
        if not self.answers.is_set():
            self.stuck.set()
            assert self.answers.wait(AGES_S)
        if self.broken:
            raise RuntimeError("no such disk")
        return self.asked

    def looking(self) -> Looking[int | None]:
        return Looking("the disk", self.free, None, lambda: self.now_s)


def test_an_answer_is_the_newest_that_came_and_another_is_asked_for() -> None:
    looking = Disk().looking()
    assert looking.last() is None
    until(lambda: looking.last() is not None)
    until(lambda: (looking.last() or 0) > 3)
    assert looking.hangs_s() is None


def test_one_that_hangs_is_said_so_keeps_nobody_waiting_and_comes_back() -> None:
    disk = Disk()
    looking = disk.looking()
    until(lambda: looking.last() is not None)
    disk.answers.clear()
    looking.last()
    assert disk.stuck.wait(AGES_S) and looking.hangs_s() is None
    disk.now_s += HANGS_S + 1.0
    assert looking.hangs_s() == HANGS_S + 1.0
    assert [looking.last() for _ in range(3)] == [None, None, None]
    disk.answers.set()
    until(lambda: looking.last() is not None)
    assert looking.hangs_s() is None


def test_one_that_fails_is_unknown_is_logged_and_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    looking = disk.looking()
    until(lambda: looking.last() is not None)
    disk.broken = True
    until(lambda: looking.last() is None)
    disk.broken = False
    until(lambda: looking.last() is not None)
    assert "looking at the disk failed" in caplog.text


def test_one_that_is_told_to_stop_ends_its_thread_and_one_that_hangs_keeps_nobody() -> None:
    idle, disk = Disk().looking(), Disk()
    hanging = disk.looking()
    disk.answers.clear()
    hanging.last()
    assert disk.stuck.wait(AGES_S)
    for looking in (idle, hanging):
        looking.stop_soon()
        looking.join()
    assert not idle.lives and hanging.lives
    disk.answers.set()
    until(lambda: not hanging.lives)


def test_a_worker_that_stopped_leaves_no_thread(tmp_path: Path) -> None:
    keys = make_keys(["a"])
    config = WorkerConfig(
        box="a",
        model_dir=str(make_model(tmp_path)),
        keys_file="",
        ready_file=str(tmp_path / "ready"),
    )
    loaded = load_model(tmp_path, device="cpu", dtype="float32", weights="same")
    before = set(threading.enumerate())
    worker = Worker(config, keys["a"], loaded, blocks_total=4)
    worker.start()
    new = set(threading.enumerate()) - before
    assert {"look at the disk", "control", "gatekeeper"} <= {thread.name for thread in new}
    worker.stop()
    assert not [thread.name for thread in new if thread.is_alive()]
