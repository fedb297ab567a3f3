"""A process that dies is started again; one that never ran, or was told to end, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import psutil
import pytest
from homesplit_engine.config import (
    ConfigError,
    RouterConfig,
    RouterEndpoints,
    WorkerAddress,
    write_ready,
)
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.parent import Parent
from homesplit_engine.supervise import FIRST_PAUSE_S, LONG_LIFE_S, MOST_PAUSE_S, next_pause_s

from tests.engine.router_kit import make_tokenizer

PATIENCE_S = 90.0


@pytest.mark.parametrize(
    ("last_s", "lived_s", "pause_s"),
    [
        (None, 0.1, FIRST_PAUSE_S),
        (1.0, 0.1, 2.0),
        (MOST_PAUSE_S, 0.1, MOST_PAUSE_S),
        (MOST_PAUSE_S, LONG_LIFE_S, FIRST_PAUSE_S),
    ],
)
def test_the_pause_doubles_up_to_a_most_and_begins_anew_after_a_long_life(
    last_s: float | None, lived_s: float, pause_s: float
) -> None:
    assert next_pause_s(last_s, lived_s) == pause_s


def test_who_has_ended_lives_no_more_whether_or_not_anybody_asked_after_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    parent = Parent(process.pid)
    assert parent.lives
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not parent.lives
    process.wait()
    assert not parent.lives
    with pytest.raises(ConfigError, match="no such process"):
        Parent(process.pid)
    assert process.stdin is not None
    process.stdin.close()


class Supervised:
    """A router under its supervisor; it waits for a worker that never comes."""

    def __init__(self, folder: Path) -> None:
        self.ready_file = folder / "router.ready"
        self.config = folder / "router.json"
        keys = make_keys(("left",))
        make_tokenizer(folder)
        write_keys(folder / "router.keys", keys["router"])
        address = WorkerAddress(
            box="left",
            control_endpoint="tcp://127.0.0.1:9",
            kv_endpoint="tcp://127.0.0.1:9",
            public_key=keys["left"].public,
        )
        settings = RouterConfig(
            model_dir=str(folder),
            model_name="tiny",
            keys_file=str(folder / "router.keys"),
            ready_file=str(self.ready_file),
            workers=(address,),
        )
        self.config.write_bytes(msgspec.json.encode(settings))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Begin to supervise."""
        words = [sys.executable, "-m", "homesplit_engine", "router"]
        words += ["--config", str(self.config), "--supervised"]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        return self.process

    def child(self, but: int | None = None) -> int:
        """The pid that the ready file names, once it is another than `but`."""
        found: list[int] = []

        def ready() -> bool:
            if not self.ready_file.exists():
                return False
            told = msgspec.json.decode(self.ready_file.read_bytes(), type=RouterEndpoints)
            found[:] = [told.pid]
            return told.pid != but

        wait_for(ready)
        return found[0]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails after a generous while."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def supervised(tmp_path: Path) -> Generator[Supervised]:
    """Ends what it started whatever happens."""
    running = Supervised(tmp_path)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def test_a_killed_router_is_started_again_and_a_stopped_one_is_not(supervised: Supervised) -> None:
    process = supervised.start()
    first = supervised.child()
    os.kill(first, signal.SIGKILL)
    second = supervised.child(but=first)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    assert has_ended(second)


def test_a_router_that_never_got_ready_is_not_tried_again(supervised: Supervised) -> None:
    (supervised.config.parent / "router.keys").unlink()
    assert supervised.start().wait(PATIENCE_S) == 1


def test_a_router_ends_when_its_supervisor_is_killed(supervised: Supervised) -> None:
    process = supervised.start()
    child = supervised.child()
    process.kill()
    process.wait()
    wait_for(lambda: has_ended(child))


def test_a_ready_file_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "taken"
    (place / "inside").mkdir(parents=True)
    with pytest.raises(ConfigError, match="can't be written"):
        write_ready(place, RouterEndpoints(pid=1, url="http://127.0.0.1:1"))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
