"""A repeated run beside its former self, where one of the two was stopped."""

from __future__ import annotations

import pytest

from homesplit.core.again import change
from homesplit.core.window import Window
from tests.core.test_window import TARGETS, log

WHOLE = Window(warm_up_s=5.0, drain_s=5.0, offered_s=100.0)
STOPPED = Window(warm_up_s=5.0, drain_s=5.0, offered_s=40.0)


@pytest.mark.parametrize("stopped", ["then", "now"])
def test_of_each_run_what_counted_in_it_is_compared(stopped: str) -> None:
    # Those of the drain of the stopped run fail, as they may: they count in neither.
    short = [log(n, outcome="failed" if n >= 35 else "completed") for n in range(40)]
    long = [log(n) for n in range(100)]
    then, now = (short, long) if stopped == "then" else (long, short)
    windows = (STOPPED, WHOLE) if stopped == "then" else (WHOLE, STOPPED)
    found = change("run", [then], [now], TARGETS, seen_then=windows[0], seen_now=windows[1])
    assert (found.attainment_then, found.attainment_now) == (1.0, 1.0)
    assert "no difference" in found.words
