"""Has the system lay memory under the KV pool's next slots before a step needs them.

Memory is laid when it is first touched, a page of 2 MiB at a time in large pages. All layers of
a pool come to their next page in the same token, so that one decode step in some thousands would
wait for all of them: 60 pages took 50 to 100 ms for SmolLM2-135M.
"""

from __future__ import annotations

import contextlib
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
"""Of each array at a time: a large page."""
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
    """Keeps memory laid up to half a page and more beyond the last slot of each request."""

    def __init__(self, stretches: Sequence[Stretch], slots: int) -> None:
        self._stretches = [one for one in stretches if one.slot_bytes]
        self._slots = slots
        widest = max((one.slot_bytes for one in self._stretches), default=AHEAD_BYTES)
        self._step = max(1, AHEAD_BYTES // widest)
        # Requests lie apart, with room to grow between them, so each piece is laid for itself.
        self._laid = bytearray(-(-slots // self._step))
        self._can = sys.platform == "linux" and bool(self._stretches)
        self.thread: threading.Thread | None = None

    def reached(self, slot: int) -> None:
        """A request's last slot is this; the memory after it will be wanted soon.

        Returns at once, and raises nothing: what is not laid now is laid as it is touched.
        """
        if not self._can:
            return
        last = min(slot + self._step // 2, self._slots - 1)
        wanted = [at for at in {slot // self._step, last // self._step} if not self._laid[at]]
        if not wanted or (self.thread is not None and self.thread.is_alive()):
            return  # while the thread is at it, the request's next block asks again
        thread = threading.Thread(
            target=self._lay, args=(sorted(wanted),), name="first-touch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._can = False  # no more threads here
            return
        self.thread = thread

    def _lay(self, pieces: Sequence[int]) -> None:
        with contextlib.suppress(OSError):
            os.nice(_LOWER_BY)  # on Linux of this thread alone
        for at in pieces:
            self._laid[at] = 1
            first, end = at * self._step, min(self._slots, (at + 1) * self._step)
            if not all(_populate(one, first, end) for one in self._stretches):
                self._can = False
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
