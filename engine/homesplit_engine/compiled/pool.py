"""numba's threads, for one caller at a time: at a second its simplest pool ends the process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core import config

_ONE = threading.Lock()


@contextmanager
def pool(threads: int) -> Generator[int]:
    """The pool, and how many threads it gives: no more than the cores that numba found."""
    settings: Any = config
    with _ONE:
        given = min(threads, int(settings.NUMBA_NUM_THREADS))
        numba.set_num_threads(given)
        yield given
