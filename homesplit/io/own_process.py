"""Which process this is, and whether another one still runs."""

from __future__ import annotations

import os

import psutil

_SAME_S = 2.0
"""The moment a process began is told by the clock, which may be set meanwhile."""


def own_mark() -> str:
    """This process as its number and the moment it began: numbers are used again."""
    own = psutil.Process(os.getpid())
    return f"{own.pid}@{own.create_time():.2f}"


def still_runs(mark: str) -> bool:
    """Whether the process of this mark runs on this machine."""
    number, _, began = mark.partition("@")
    try:
        return abs(psutil.Process(int(number)).create_time() - float(began)) < _SAME_S
    except (psutil.Error, ValueError):
        return False
