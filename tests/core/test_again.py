"""A repeated run beside its former self, where one of the two was stopped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from homesplit.core.again import change
from homesplit.core.measured import RequestLog
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


@pytest.mark.parametrize(
    ("later_s", "said"),
    [
        (0.25, "TTFT p50 0.75 s, before 0.5 s, 0.25 s more request by request"),
        (-0.25, "TTFT p50 0.25 s, before 0.5 s, 0.25 s less request by request"),
        (0.0, "TTFT p50 0.5 s, before 0.5 s, no difference request by request"),
    ],
)
def test_times_are_held_against_the_former_ones_request_by_request(
    later_s: float, said: str
) -> None:
    then = [answered(n, 0.5) for n in range(100)]
    now = [answered(n, 0.5 + later_s) for n in range(100)]
    found = change("run", [then], [now], TARGETS, seen_then=WHOLE, seen_now=WHOLE)
    each = "TPOT p50 50 ms, before 50 ms, no difference request by request."
    assert f"; {said}; {each}" in found.words
    few = change("run", [then[:20]], [now[:20]], TARGETS, seen_then=WHOLE, seen_now=WHOLE)
    assert few.ttft_change_s is None and few.words.count("request by request") == 0


def answered(number: int, first_s: float) -> RequestLog:
    """Two tokens, 50 ms apart."""
    at_s = number + first_s
    return replace(
        log(number),
        arrival_s=(at_s, at_s + 0.05),
        arrival_tokens=(),
        output_tokens=2,
        ended_s=at_s + 0.05,
    )
