"""Faults outside of the matrix: two at once, and those that hit what watches or what lies between.

    python -m tests.lab.matrix.odd [--only WORD,…] [--modes split,replica] [--subnet 10.86.0.0/24]

Each is done while prompts are read, handed over and written, is undone, and then judged as the
matrix judges: every text that of the engine alone, or ended by a typed error where the router or
all boxes were taken away; nothing held afterwards; both boxes used again. Prints a line each;
exit 1 when one was not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import psutil
from homesplit_engine.events import FaultSeen

from tests.lab.api import running_lab
from tests.lab.errors import LabError
from tests.lab.matrix.answers import TOKENS, Answers
from tests.lab.matrix.cells import OTHER_BOX, ROUTER_BOX, Mode
from tests.lab.matrix.harm import Harm
from tests.lab.matrix.moments import (
    BESIDE,
    BESIDE_TOKENS,
    HANDOFF_CHARS,
    TARGET_CHARS,
    fresh_prompt,
)
from tests.lab.matrix.run import BACK_S, CLEAN_S, ENDED_S
from tests.lab.matrix.stand import LINK_MBIT, SETTINGS, Stand, end_in_good_order_when_told, standing
from tests.lab.matrix.traffic import Stream, wait_all, wait_until

ASLEEP_S = 10.0
SLOW_S, WORK_S, REST_S = 20.0, 0.02, 0.18
"""A box that computes a tenth of the time."""
TYPED = ("router_ended", "router_stopped", "503", "429")
MAY_END = (
    "both workers killed",
    "router and the other worker killed",
    "all three killed",
    "disk full, and the router killed",
    "the router's supervisor killed",
)
"""Where the router or both boxes are taken away: an answer may end with a typed error."""
Undo = Callable[[], None]


class Odd:
    """The faults, on one stand; each is done now and gives what undoes it."""

    def __init__(self, stand: Stand, mode: Mode) -> None:
        self._stand = stand
        self._mode: Mode = mode

    def all(self) -> dict[str, Callable[[], Undo]]:
        """By name; those that leave a process to be started again stand last."""
        return {
            "router asleep for 10 s": lambda: self._asleep("router"),
            "both workers asleep for 10 s": lambda: self._asleep(ROUTER_BOX, OTHER_BOX),
            "router and its box's worker asleep for 10 s": lambda: self._asleep(
                "router", ROUTER_BOX
            ),
            "both workers killed": lambda: self._killed(ROUTER_BOX, OTHER_BOX),
            "router and the other worker killed": lambda: self._killed("router", OTHER_BOX),
            "all three killed": lambda: self._killed("router", ROUTER_BOX, OTHER_BOX),
            "loss, and the other worker killed": lambda: self._two("loss", "kill-b"),
            "200 ms, and the worker on the router's box killed": lambda: self._two(
                "latency", "kill-a"
            ),
            "disk full, and the other worker killed": lambda: self._two("disk-full", "kill-b"),
            "disk full, and the router killed": lambda: self._two("disk-full", "kill-router"),
            "clock back, and the cable out for 3 s": lambda: self._two(
                "clock-back", "cut-and-back"
            ),
            "a worker at a tenth of its speed": self._slow,
            "wall clock a year ahead": self._ahead,
            "cable out and in five times": self._flapping,
            "the other worker killed three times": self._killed_often,
            "the other worker's supervisor killed": lambda: self._orphan(OTHER_BOX),
            "the router's supervisor killed": lambda: self._orphan("router"),
        }

    def _pid(self, name: str) -> int:
        pid = self._stand.pid(name)
        if pid is None:
            raise LabError(f"{name} is not running")
        return pid

    def _asleep(self, *names: str) -> Undo:
        pids = [self._pid(name) for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(ASLEEP_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return _nothing

    def _killed(self, *names: str) -> Undo:
        for pid in [self._pid(name) for name in names]:
            os.kill(pid, signal.SIGKILL)
        return _nothing

    def _two(self, first: str, second: str) -> Undo:
        """The second while the first lasts."""
        stack = contextlib.ExitStack()
        for fault in (first, second):
            harm = Harm(self._stand, fault, self._mode)
            stack.enter_context(harm.done_to(list, lambda: True))
        time.sleep(ASLEEP_S)
        return stack.close

    def _slow(self) -> Undo:
        over = threading.Event()
        with ThreadPoolExecutor() as threads:
            lived = threads.submit(slow_down, self._pid(OTHER_BOX), over)
            wait([lived], SLOW_S)
            over.set()
        if not lived.result():
            raise LabError(f"the worker on {OTHER_BOX} ended while it was slow")
        return _nothing

    def _ahead(self) -> Undo:
        def shift(seconds: int) -> None:
            with self._stand.clock_file.open("r+b") as file:
                file.write(seconds.to_bytes(8, "little", signed=True))

        shift(365 * 86_400)
        return lambda: shift(0)

    def _flapping(self) -> Undo:
        for _ in range(5):
            self._stand.lab.fault(OTHER_BOX, "cut-link")
            time.sleep(2.5)
            self._stand.lab.fault(OTHER_BOX, "restore-link")
            time.sleep(1.0)
        return _nothing

    def _killed_often(self) -> Undo:
        for _ in range(3):
            before = self._pid(OTHER_BOX)
            os.kill(before, signal.SIGKILL)
            wait_until(lambda last=before: self._stand.pid(OTHER_BOX) not in (None, last), BACK_S)
        return _nothing

    def _orphan(self, name: str) -> Undo:
        supervisor = psutil.Process(self._pid(name)).ppid()
        os.kill(supervisor, signal.SIGKILL)

        def again() -> None:
            gone = wait_until(lambda: not psutil.pid_exists(self._stand.pid(name) or 0), BACK_S)
            if not gone:
                raise LabError(f"{name} outlived its supervisor")
            self._stand.start_again(name)

        return again


def _nothing() -> None:
    return None


def slow_down(pid: int, over: threading.Event) -> bool:
    """Have a process compute a tenth of the time until it is over; False where it ends before."""
    try:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(REST_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(WORK_S)
    except ProcessLookupError:
        return False
    return True


def try_one(stand: Stand, answers: Answers, name: str, mode: Mode) -> list[str]:
    """One fault at prompts that wait, are read, are handed over and are written; what is wrong."""
    stand.traffic.set_mode(SETTINGS[mode])
    prompts = [fresh_prompt("odd", chars) for chars in (TARGET_CHARS, HANDOFF_CHARS, TARGET_CHARS)]
    wanted = dict(zip(prompts, answers.greedy(*prompts), strict=True))
    wanted |= {BESIDE: answers.greedy(BESIDE, tokens=BESIDE_TOKENS)[0]}
    seen, label = len(stand.traffic.events), f"{time.monotonic_ns()}"
    streams = [stand.traffic.ask(f"beside-{label}", BESIDE, BESIDE_TOKENS)]
    wait_until(lambda: len(streams[0].times) > 2, ENDED_S)
    streams += [
        stand.traffic.ask(f"odd-{label}-{n}", prompt, TOKENS) for n, prompt in enumerate(prompts)
    ]
    wait_until(lambda: bool(streams[1].times), 5.0)
    began_s = time.monotonic()
    undo = Odd(stand, mode).all()[name]()
    undo()
    wrong = [] if wait_all(streams, ENDED_S) else ["an answer neither came nor failed in time"]
    wrong += [told for one in streams if (told := what_is_wrong(one, wanted[one.prompt], name))]
    if not wait_until(stand.is_whole, BACK_S, 0.1):
        wrong.append("not whole again")
    if not wait_until(lambda: stand.held() is None, CLEAN_S, 0.1):
        wrong.append(f"still held: {stand.held()}")
    again = stand.traffic.ask(f"again-{label}", prompts[0], TOKENS)
    if not again.done.wait(CLEAN_S) or again.error or again.text != wanted[prompts[0]]:
        wrong.append(f"asked again afterwards: {again.error or 'another text'}")
    faults = [e.fault for _, e in stand.traffic.events[seen:] if isinstance(e, FaultSeen)]
    gaps = [one.longest_gap(began_s) for one in streams if not one.error]
    longest_s = max((end - begin for begin, end in gaps), default=0.0)
    errors = sorted({(one.error or "").split(":")[0] for one in streams if one.error})
    told = dict.fromkeys(fault.sentence for fault in faults if ":" not in fault.sentence[:12])
    print(f"{'FAIL' if wrong else 'ok  '} {mode}: {name}: pause {longest_s:.1f} s, errors {errors}")
    for line in [*wrong, *list(told)[:4]]:
        print(f"       {line}")
    sys.stdout.flush()
    return wrong


def what_is_wrong(stream: Stream, wanted: str, name: str) -> str | None:
    """What is not as it must be with one answer; None when nothing."""
    typed = any(word in (stream.error or "") for word in TYPED)
    if typed and not stream.broken and name in MAY_END:
        right = wanted.startswith(stream.text.rstrip("\ufffd"))
        return None if right else f"{stream.name}: another text before its end"
    if stream.error or stream.broken:
        return f"{stream.name}: {stream.error or 'broken off'}"
    return None if stream.text == wanted else f"{stream.name}: another text"


def run(only: Sequence[str], modes: Sequence[Mode], subnet: str) -> int:
    """Every fault that is asked for in every mode that is; how many were not as they must be."""
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="homesplit-odd-") as folder,
        running_lab(2, f"{LINK_MBIT}mbit", subnet=subnet) as lab,
        standing(lab, Path(folder), wire=False) as stand,
    ):
        answers = Answers(Path(folder) / "model")
        for mode in modes:
            for name in Odd(stand, mode).all():
                if not only or any(word in name for word in only):
                    failed += bool(try_one(stand, answers, name, mode))
    return failed


def main() -> int:
    """Run and print; 1 when something was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.matrix.odd", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="faults with one of these")
    parser.add_argument("--modes", default="split,replica", metavar="MODES")
    parser.add_argument("--subnet", default="10.86.0.0/24")
    args = parser.parse_args()
    end_in_good_order_when_told()
    modes = msgspec.convert(args.modes.split(","), tuple[Mode, ...])
    return int(bool(run([word for word in args.only.split(",") if word], modes, args.subnet)))


if __name__ == "__main__":
    raise SystemExit(main())
