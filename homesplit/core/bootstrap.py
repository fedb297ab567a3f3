"""Intervals: how far a figure could have come out otherwise with other requests.

Percentile bootstrap (Efron, 1979) over requests, seeded: the same records give the same
interval. It tells nothing of what would differ on another day or machine. A share near 0 or 1
has Wilson's (1927) instead, and a difference of shares that no pair shows Agresti and Min's
(2005): drawn again from values that are all alike, a bootstrap would claim to know exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from homesplit_engine.words import percentile
from msgspec import Struct

from homesplit.core.prng import Prng

ROUNDS = 400
Z = 1.96
"""Two-sided 95 %."""
MOST_VALUES = 4000
"""Larger sets are thinned evenly: the interval is then a little too wide, never too narrow."""


class Interval(Struct, frozen=True, kw_only=True):
    """A figure with the ends of its 95 % interval, from `count` requests."""

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


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The ends of Wilson's 95 % score interval of a share; all of 0..1 where nothing counts."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    width = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def share_interval(hits: int, count: int) -> Interval | None:
    """A share with Wilson's interval; None where nothing counts."""
    if count == 0:
        return None
    low, high = wilson(hits, count)
    share = hits / count
    # Rounding may put an end of 0 or 1 past the share itself.
    return Interval(value=share, low=min(low, share), high=max(high, share), count=count)


def paired_difference(left: Sequence[float], right: Sequence[float]) -> Interval | None:
    """The mean of `left` less `right`, each 0 or 1 of the same requests; None below two pairs."""
    pairs = list(zip(left, right, strict=True))
    found = interval([one - other for one, other in pairs], mean)
    if found is None or found.low < found.high:
        return found
    low, high = _agresti_min(sum(a > b for a, b in pairs), sum(b > a for a, b in pairs), len(pairs))
    return Interval(value=found.value, low=low, high=high, count=found.count)


def _agresti_min(more: int, fewer: int, count: int) -> tuple[float, float]:
    """Half a pair is added to each of the four ways in which a pair can come out."""
    whole = count + 2
    middle = (more - fewer) / whole
    width = Z * math.sqrt((more + fewer + 1) / whole - middle * middle) / math.sqrt(whole)
    return max(-1.0, middle - width), min(1.0, middle + width)


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def quantile(share: float) -> Callable[[Sequence[float]], float]:
    """A statistic: the `share` quantile."""
    return lambda values: percentile(sorted(values), share)
