"""The rule of refusal alone, in a time of its own: goodput stays near the capacity at any load."""

from __future__ import annotations

from collections import deque

import pytest
from homesplit_engine.router.admission import SURE_SHARE
from homesplit_engine.router.overload import Overload

CAPACITY_REQUESTS_PER_S = 20.0
ALONE_S = 0.1
DEPLOYED_S, FIRST_TOKEN_S = 1.0, 60.0
SECONDS = 60.0


def goodput(times_capacity: float, own_s: float | None) -> float:
    """Requests a second that had their first token in time, of an even load on a known capacity."""
    overload, each_s = Overload(DEPLOYED_S), 1 / CAPACITY_REQUESTS_PER_S
    rate = times_capacity * CAPACITY_REQUESTS_PER_S
    waiting: deque[float] = deque()
    busy_s, good = 0.0, 0
    for number in range(round(rate * SECONDS)):
        now_s = number / rate
        while waiting and waiting[0] <= now_s:
            waiting.popleft()
        ahead_s = max(0.0, busy_s - now_s)
        limit_s = overload.limit_s(ahead_s, ALONE_S, now_s, waiting=len(waiting), own_s=own_s)
        if waiting and ahead_s + each_s > SURE_SHARE * min(FIRST_TOKEN_S, limit_s or FIRST_TOKEN_S):
            continue
        busy_s = max(busy_s, now_s) + each_s
        waiting.append(busy_s)
        good += busy_s - now_s <= (own_s or DEPLOYED_S)
    return good / SECONDS


@pytest.mark.parametrize("own_s", [None, 0.3, 0.5, 3.0])
@pytest.mark.parametrize("times_capacity", [1.0, 1.2, 2.0, 5.0, 10.0])
def test_goodput_under_overload_is_nine_tenths_of_the_capacity_or_more(
    times_capacity: float, own_s: float | None
) -> None:
    assert goodput(times_capacity, own_s) >= 0.9 * CAPACITY_REQUESTS_PER_S
