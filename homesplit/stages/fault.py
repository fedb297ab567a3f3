"""Breaks something on purpose for some seconds, where that is safe: in the demo or in a lab.

The demo can pause one of its own workers. A lab names a command in `HOMESPLIT_FAULTS`; it is
called as COMMAND BOX WHAT with `pause`, `resume`, `cut-link`, `restore-link`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from homesplit.errors import HomesplitError

FAULT_S = 10.0
"""How long a fault lasts before it is undone."""
COMMAND_S = 30.0
"""The longest wait for the lab's command."""
_UNDO = {"pause": "resume", "cut-link": "restore-link"}
_TOLD = {"pause": "pause {box}", "cut-link": "pull the network cable of {box}"}
_HAPPENED = {"pause": "You paused {box}", "cut-link": "You pulled the cable of {box}"}


class FaultChoice(Struct, frozen=True, kw_only=True):
    """One fault that can be asked for."""

    box: str
    what: str

    @property
    def words(self) -> str:
        """As an order, such as `pause borea for 10 s`."""
        return f"{_TOLD[self.what].format(box=self.box)} for {FAULT_S:.0f} s"

    @property
    def happened(self) -> str:
        """As a sentence, once it was done."""
        return f"{_HAPPENED[self.what].format(box=self.box)} for {FAULT_S:.0f} s."


class Breaker(Protocol):
    """Something that can break and mend a box."""

    def kinds(self) -> tuple[str, ...]:
        """The faults it knows."""
        ...

    async def act(self, box: str, what: str) -> None:
        """Do one thing (`pause`, `resume`, …); raises HomesplitError."""
        ...


class OwnWorkers:
    """The demo's workers: processes of this machine, told to stop and go on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids

    def kinds(self) -> tuple[str, ...]:
        """Loopback has no cable to pull."""
        return ("pause",)

    async def act(self, box: str, what: str) -> None:
        """Stop the process, or let it go on."""
        try:
            os.kill(self._pids[box], signal.SIGSTOP if what == "pause" else signal.SIGCONT)
        except (KeyError, ProcessLookupError) as error:
            raise HomesplitError("its worker has ended", where=box) from error


class LabCommand:
    """The lab's own command, run without a shell."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def kinds(self) -> tuple[str, ...]:
        """Both."""
        return tuple(_UNDO)

    async def act(self, box: str, what: str) -> None:
        """Call it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                box,
                what,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(COMMAND_S):
                _, told = await process.communicate()
        except (OSError, TimeoutError) as error:
            raise HomesplitError(f"the lab did not answer: {error}", where=box) from error
        if process.returncode:
            last = told.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise HomesplitError(f"the lab could not {what}: {last[0]}", where=box)


def lab_breaker() -> LabCommand | None:
    """The lab's command where this runs on a lab's desk, else None."""
    words = shlex.split(os.environ.get("HOMESPLIT_FAULTS", ""))
    return LabCommand(words) if words else None


def choices(breaker: Breaker, boxes: Sequence[str]) -> tuple[FaultChoice, ...]:
    """Everything that can be broken."""
    return tuple(FaultChoice(box=box, what=what) for what in breaker.kinds() for box in boxes)


async def break_for_a_while(breaker: Breaker, choice: FaultChoice) -> None:
    """Break it, wait, and mend it, also when this is given up meanwhile."""
    await breaker.act(choice.box, choice.what)
    try:
        await asyncio.sleep(FAULT_S)
    finally:
        await asyncio.shield(breaker.act(choice.box, _UNDO[choice.what]))
