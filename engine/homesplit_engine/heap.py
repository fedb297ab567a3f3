"""Memory that is freed and soon wanted again stays with the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

KEPT_BYTES = 64 * 2**20
"""At most so much freed memory lies at the end of a heap before it goes back to the system."""
_OWN_MAPPING_FROM_BYTES = 32 * 2**20
"""Smaller blocks come from the heaps. It is the most that glibc takes for this."""
_GROWN_BY_BYTES = 4 * 2**20

# From glibc's malloc.h, with the environment's words for the same.
_TUNED = (
    (-3, "MALLOC_MMAP_THRESHOLD_", _OWN_MAPPING_FROM_BYTES),
    (-1, "MALLOC_TRIM_THRESHOLD_", KEPT_BYTES),
    (-2, "MALLOC_TOP_PAD_", _GROWN_BY_BYTES),
)


def keep_freed_memory() -> bool:
    """Have glibc keep what is freed, instead of asking the system for fresh pages each time.

    A hand-off's frames are taken and freed hundreds of times a second at both ends, and ZeroMQ
    takes them from malloc; with glibc's own settings up to a third of a hand-off's time on a
    quick link went into clearing pages (`tests/bench/results/handoff.md`). False where this
    malloc has no such settings (macOS, musl). The user's own word in the environment stands.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
        taken = [mallopt(what, size) for what, word, size in _TUNED if word not in os.environ]
        return all(taken)
    return False


def give_freed_memory_back() -> None:
    """Have glibc give the system what lies free in its heaps: weights as they came, say."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
