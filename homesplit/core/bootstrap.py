"""Bootstrap intervals: how far a figure could have come out otherwise with other requests.

Percentile bootstrap (Efron, 1979) over requests, seeded: the same records give the same
interval. It tells nothing of what would differ on another day or machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homesplit_engine.words import percentile
from msgspec import Struct

from homesplit.core.prng import Prng

ROUNDS = 400
MOST_VALUES = 4000
"""Larger sets are thinned evenly: the interval is then a little too wide, never too narrow."""


class Interval(Struct, frozen=True, kw_only=True):
    """A figure with the ends of its 95 % bootstrap interval, from `count` requests."""

    value: float
    low: float
    high: float
    count: int


def interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], *, seed: int = 1
) -> Interval | None:
    """The interval of `statistic` over `values`; None with fewer than two values."""
    if len(values) < 2:
        return None
    kept = values[:: len(values) // MOST_VALUES + 1]
    rng = Prng(seed)
    count = len(kept)
    again = sorted(statistic([kept[rng.below(count)] for _ in range(count)]) for _ in range(ROUNDS))
    return Interval(
        value=statistic(values),
        low=percentile(again, 0.025),
        high=percentile(again, 0.975),
        count=len(values),
    )


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def quantile(share: float) -> Callable[[Sequence[float]], float]:
    """A statistic: the `share` quantile."""
    return lambda values: percentile(sorted(values), share)
