"""Starts a worker or router and starts it again whenever it dies, until it is told to stop.

A process that never got ready has something wrong with its settings: it is not tried again,
so that whoever deploys it hears of it. The one that runs ends by itself when its supervisor
is gone, so no two of them ever hold the same port. Of a router it holds the sockets of open
answers, to end them with an error should it die.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from homesplit_engine.config import ConfigError, load
from homesplit_engine.farewell import Farewell
from homesplit_engine.open_files import allow_open_files

log = logging.getLogger("homesplit.supervisor")
FIRST_PAUSE_S = 0.25
MOST_PAUSE_S = 15.0
LONG_LIFE_S = 60.0
"""Who lived so long died of something new: the pause begins anew."""
STOP_S = 10.0
"""How long the process may take to end in good order before it is killed."""
LOOK_S = 0.1


class _ReadyFile(msgspec.Struct):
    """What both settings files and both ready files have in common."""

    ready_file: str


class _ReadyPid(msgspec.Struct):
    pid: int


def next_pause_s(last_s: float | None, lived_s: float) -> float:
    """How long to wait before another start: doubling, anew after a long life."""
    if last_s is None or lived_s >= LONG_LIFE_S:
        return FIRST_PAUSE_S
    return min(MOST_PAUSE_S, 2 * last_s)


class Supervisor:
    """One process kept alive."""

    def __init__(self, role: str, config: Path) -> None:
        """Raises ConfigError when the settings name no ready file."""
        self._role = role
        self._config = config
        self._ready = Path(load(config, _ReadyFile).ready_file)
        self._stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._told = ""
        self._after: str | None = None
        """What became of the last one, for the next one to tell."""

    def ask_to_stop(self) -> None:
        """End the process in good order; callable from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Keep the process running; its exit code when it ended for good."""
        was_ready, pause_s = False, None
        while True:
            began_s = time.monotonic()
            code = self._run_once()
            if self._stop.is_set() or code == 0:
                return 0
            was_ready = self._was_ready() or was_ready
            if not was_ready:
                return code if code > 0 else 1
            pause_s = next_pause_s(pause_s, time.monotonic() - began_s)
            self._after = f"the {self._role} {_how(code)} and was started again{self._told}"
            log.warning("the %s %s; started again in %g s", self._role, _how(code), pause_s)
            if self._stop.wait(pause_s):
                return 0

    def _run_once(self) -> int:
        self._told = ""
        if self._role != "router":
            return self._watched(self._start(()), None)
        try:
            farewell = Farewell()
        except OSError as error:
            log.warning("open answers would end without a word: %s", error)
            return self._watched(self._start(()), None)
        try:
            code = self._watched(self._start(farewell.fds), farewell)
        finally:
            told = farewell.say()
        if told:
            self._told = f"; {told} open answers ended with an error"
        return code

    def _start(self, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "homesplit_engine", self._role]
        words += ["--config", str(self._config), "--parent", str(os.getpid())]
        if fds:
            words += ["--farewell", *map(str, fds)]
            words += [] if self._after is None else ["--after", self._after]
        self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=fds)
        return self._child

    def _watched(self, child: subprocess.Popen[bytes], farewell: Farewell | None) -> int:
        """The exit code once it has ended, by itself or because it was to."""
        if farewell is not None:
            farewell.given()
        while (code := child.poll()) is None:
            if self._stop.is_set():
                return self._end(child, farewell)
            self._pass_time(farewell)
        return code

    def _pass_time(self, farewell: Farewell | None) -> None:
        if farewell is None:
            self._stop.wait(LOOK_S)
        else:
            farewell.hear(LOOK_S)

    def _end(self, child: subprocess.Popen[bytes], farewell: Farewell | None) -> int:
        child.terminate()
        end_s = time.monotonic() + STOP_S
        while (code := child.poll()) is None:
            if time.monotonic() > end_s:
                log.warning("the %s did not end within %g s and is killed", self._role, STOP_S)
                child.kill()
                return child.wait()
            if farewell is None:
                time.sleep(LOOK_S)
            else:
                farewell.hear(LOOK_S)
        return code

    def _was_ready(self) -> bool:
        """Whether the process that just ended had written its ready file, which is taken away."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            told = msgspec.json.decode(self._ready.read_bytes(), type=_ReadyPid)
            self._ready.unlink()
            return self._child is not None and told.pid == self._child.pid
        return False


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def main(role: str, config: str) -> int:
    """Supervise one process until it is told to stop; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        supervisor = Supervisor(role, Path(config))
        allow_open_files()
    except ConfigError as error:
        log.error("%s", error)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _asker(supervisor.ask_to_stop))
    return supervisor.run()


def _asker(ask: Callable[[], None]) -> Callable[[int, object], None]:
    def handle(_number: int, _frame: object) -> None:
        ask()

    return handle
