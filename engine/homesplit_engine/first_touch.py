"""Has the system lay memory under the KV pool's next slots before a step needs them.

Memory is laid when it is first touched, a page of 2 MiB at a time in large pages. All layers of
a pool come to their next page in the same token, so that one decode step in some thousands would
wait for all of them: 60 pages took 50 to 100 ms for SmolLM2-135M.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
import threading
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

AHEAD_BYTES = 2 * 2**20
"""Of each array, beyond the last slot in use."""
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: lays pages, and changes nothing in them
_LOWER_BY = 10
"""The laying thread's nice value above its process's: who answers goes first."""
log = logging.getLogger(__name__)


class Stretch(Struct, frozen=True):
    """An array whose rows are slots, as bytes."""

    held: NDArray[np.uint8]
    """Keeps the memory; shape (bytes,)."""
    slot_bytes: int


class FirstTouch:
    """Keeps memory laid up to a page beyond the highest slot that was asked for."""

    def __init__(self, stretches: Sequence[Stretch], slots: int) -> None:
        self._stretches = [one for one in stretches if one.slot_bytes]
        self._slots = slots
        widest = max((one.slot_bytes for one in self._stretches), default=AHEAD_BYTES)
        self._step = max(1, AHEAD_BYTES // widest)
        can = sys.platform == "linux" and bool(self._stretches)
        self._asked = 0 if can else slots
        """Slots below are laid, or the thread is at it."""
        self.thread: threading.Thread | None = None

    def reached(self, slot: int) -> None:
        """A slot came into use; the memory after it will be soon. Returns at once."""
        if slot + self._step // 2 < self._asked or self._asked >= self._slots:
            return
        if self.thread is not None and self.thread.is_alive():
            return  # the next step asks again
        first, self._asked = self._asked, min(self._slots, slot + self._step)
        self.thread = threading.Thread(
            target=self._lay, args=(first, self._asked), name="first-touch", daemon=True
        )
        self.thread.start()

    def _lay(self, first: int, end: int) -> None:
        os.nice(_LOWER_BY)  # on Linux of this thread alone
        for at in range(first, end, self._step):
            for one in self._stretches:
                if not _populate(one, at, min(end, at + self._step)):
                    self._asked = self._slots
                    return


def lays_ahead() -> bool:
    """Whether this system lays memory when it is asked to."""
    held = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    return _populate(Stretch(held, mmap.PAGESIZE), 0, 2)


def _populate(stretch: Stretch, first: int, end: int) -> bool:
    begin = stretch.held.ctypes.data
    start = begin + first * stretch.slot_bytes
    start -= start % mmap.PAGESIZE
    stop = begin + end * stretch.slot_bytes
    # By ctypes, because mmap.madvise keeps the interpreter's lock while pages are laid.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _POPULATE_WRITE) == 0:
        return True
    why = os.strerror(ctypes.get_errno())
    log.info("KV memory is laid as it is touched: %s", why)
    return False
