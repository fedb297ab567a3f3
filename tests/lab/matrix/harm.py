"""Does a cell's fault to a deployment, and undoes it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator

from tests.lab.errors import LabError
from tests.lab.matrix.cells import FRAME_FAULTS, OTHER_BOX, ROUTER_BOX, Mode
from tests.lab.matrix.moments import fresh_prompt
from tests.lab.matrix.stand import DETECTION_S, LINK_MBIT, Stand
from tests.lab.matrix.traffic import Stream, wait_all, wait_until

SHORT_S, LONG_S, BACK_S = 5.0, 60.0, 3.0
HELD_S = 40.0
"""How long a fault is held at most while answers are still being written."""
LASTING = ("cut", "loss", "latency", "rate", "disk-full", "clock-back")
"""Those that last until the answers are whole, and until what must be told of them is."""
AT_LEAST = ("stop-5", "stop-60", "cut-and-back")
"""Those that last for a time, and longer where a busy router has not told of the loss by then."""
TOLD_S = {"loss": 90.0, "latency": 60.0}
"""How long a fault is held at most for the monitor to name it; on an idle link only the router's
questions after the boxes can be lost or late."""
OTHERS_TOLD_S = 5 * DETECTION_S
FLOOD, FLOOD_CHARS, FLOOD_TOKENS = 5, 900, 60
"""Prompts for each box that they are spread over; together they want more than it has."""
CLOCK_BACK_S = -3600


class Harm:
    """One fault on one stand."""

    def __init__(self, stand: Stand, fault: str, mode: Mode) -> None:
        self._stand = stand
        self._mode = mode
        self._fault = fault
        self.flood: list[Stream] = []

    @contextlib.contextmanager
    def done_to(
        self, during: Callable[[], list[Stream]], told: Callable[[], bool] = lambda: True
    ) -> Generator[None]:
        """Do it on entry; undo it on leaving, whatever happens.

        A lasting fault ends no sooner than the answers of `during`, and than it was `told`.
        """
        undo = self._do()
        try:
            yield
            if self._fault in LASTING:
                wait_all(during(), HELD_S)
            if self._fault in (*LASTING, *AT_LEAST):
                wait_until(told, TOLD_S.get(self._fault, OTHERS_TOLD_S), 0.02)
        finally:
            undo()

    def _do(self) -> Callable[[], None]:
        stand, lab = self._stand, self._stand.lab
        match self._fault:
            case "kill-a" | "kill-b" | "kill-router":
                names = {"kill-a": ROUTER_BOX, "kill-b": OTHER_BOX, "kill-router": "router"}
                _signal(stand, names[self._fault], signal.SIGKILL)
            case "stop-5" | "stop-60":
                pid = _signal(stand, OTHER_BOX, signal.SIGSTOP)
                time_s = SHORT_S if self._fault == "stop-5" else LONG_S
                return _later(time_s, lambda: os.kill(pid, signal.SIGCONT))
            case "cut":
                lab.fault(OTHER_BOX, "cut-link")
                return lambda: _none(lab.fault(OTHER_BOX, "restore-link"))
            case "cut-and-back":
                lab.fault(OTHER_BOX, "cut-link")
                return _later(BACK_S, lambda: _none(lab.fault(OTHER_BOX, "restore-link")))
            case "loss" | "latency" | "rate":
                thin = f"{LINK_MBIT / 100:g}mbit"
                bad = {"loss": "5", "latency": "200", "rate": thin}[self._fault]
                good = {"loss": "0", "latency": "0", "rate": "normal"}[self._fault]
                lab.fault(OTHER_BOX, self._fault, bad)
                return lambda: _none(lab.fault(OTHER_BOX, self._fault, good))
            case "disk-full":
                return self._fill_disk()
            case "clock-back":
                self._shift_clock(CLOCK_BACK_S)
                return lambda: self._shift_clock(0)
            case "no-blocks":
                self._flood()
            case "reboot":
                lab.fault(OTHER_BOX, "reboot", for_s=1.0)
                stand.start_worker(OTHER_BOX)
            case fault if fault in FRAME_FAULTS:
                stand.order_file.write_text(fault)
            case fault:
                raise LabError(f"no fault {fault!r}")
        return lambda: None

    def _fill_disk(self) -> Callable[[], None]:
        filler = self._stand.folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return filler.unlink

    def _shift_clock(self, seconds: int) -> None:
        with self._stand.clock_file.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def _flood(self) -> None:
        """More prompts at once than there are blocks for."""
        boxes = 2 if self._mode in ("replica", "auto") else 1
        for _ in range(FLOOD * boxes):
            prompt = fresh_prompt("out of blocks", FLOOD_CHARS)
            name = f"flood-{time.monotonic_ns()}"
            self.flood.append(self._stand.traffic.ask(name, prompt, FLOOD_TOKENS))


def _signal(stand: Stand, name: str, number: signal.Signals) -> int:
    pid = stand.pid(name)
    if pid is None:
        raise LabError(f"{name} is not running")
    os.kill(pid, number)
    return pid


def _later(seconds: float, undo: Callable[[], None]) -> Callable[[], None]:
    """An undoing that waits until so long after now."""
    end_s = time.monotonic() + seconds

    def wait_and_undo() -> None:
        time.sleep(max(0.0, end_s - time.monotonic()))
        undo()

    return wait_and_undo


def _none(_: object) -> None:
    return None
