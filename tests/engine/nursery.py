"""Worker processes without the seconds that loading torch takes: forked from one that has it.

`python -m tests.engine.nursery` reads an order a line and answers with the new process's pid.
It ends, and ends what it started, when its input does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec

CHECKOUT = Path(__file__).parents[2]
LOOK_S = 0.01
LOADED = (
    "homesplit_engine.model",
    "homesplit_engine.worker.worker",
    "transformers.models.llama.modeling_llama",
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One process: the engine's arguments, and the files for what it says and how it ended."""

    arguments: tuple[str, ...]
    says: str
    ended: str


class Forked:
    """What `subprocess.Popen` is for a process of one's own, as far as tests need it."""

    stderr = None

    def __init__(self, pid: int, order: Order) -> None:
        self.pid = pid
        self._order = order

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it runs."""
        try:
            return int(Path(self._order.ended).read_text())
        except FileNotFoundError:
            return None

    def wait(self, timeout: float) -> int:
        """Its exit code once it has ended; raises TimeoutExpired."""
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(self._order.arguments, timeout)
            time.sleep(LOOK_S)
        return code

    def communicate(self) -> tuple[None, str]:
        """What it said."""
        return None, Path(self._order.says).read_text()

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Nursery:
    """The process that all others are forked from."""

    def __init__(self) -> None:
        # Read as torch is loaded, and every worker of these tests has one thread.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
            env=environment,
        )

    def start(self, *arguments: str, folder: Path, name: str) -> Forked:
        """Fork a process that runs the engine with these arguments."""
        says, ended = folder / f"{name}.says", folder / f"{name}.ended"
        ended.unlink(missing_ok=True)
        order = Order(arguments=arguments, says=str(says), ended=str(ended))
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None and answers is not None
        orders.write(msgspec.json.encode(order) + b"\n")
        orders.flush()
        return Forked(int(answers.readline()), order)


@cache
def nursery() -> Nursery:
    """The one of this test run."""
    return Nursery()


# ------------------------------------------------------------------ the process itself


def _load() -> None:
    """What every worker would load."""
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _become(order: Order) -> NoReturn:
    """Be the engine's process from here on."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        says = os.open(order.says, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(says, 1)
        os.dup2(says, 2)
        from homesplit_engine.__main__ import main

        code = main(order.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _bury(running: dict[int, Order]) -> None:
    """Note how those ended that have."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ended = Path(running.pop(pid).ended)
        # The folder may be gone with its test.
        with contextlib.suppress(OSError):
            part = ended.with_suffix(".part")
            part.write_text(str(os.waitstatus_to_exitcode(status)))
            part.replace(ended)


def main() -> None:
    """Fork what is asked for until nobody asks any more."""
    _load()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, Order] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
        _bury(running)
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                break
            order = msgspec.json.decode(line, type=Order)
            pid = os.fork()
            if not pid:
                _become(order)
            running[pid] = order
            print(pid, flush=True)  # noqa: T201
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
