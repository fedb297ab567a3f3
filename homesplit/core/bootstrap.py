"""Intervals: how far a figure could have come out otherwise with other requests.

Percentile bootstrap (Efron, 1979) over requests, seeded: the same records give the same
interval. It tells nothing of what would differ on another day or machine. A share near 0 or 1
has Wilson's (1927) instead, and a difference of shares that no pair shows Agresti and Min's
(2005): drawn again from values that are all alike, a bootstrap would claim to know exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

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


def quantile_ends(
    figures: Mapping[str, Sequence[Sequence[float]]], shares: Sequence[float], *, seed: int = 1
) -> dict[str, list[tuple[float, float] | None]]:
    """The 95 % interval of each of the `shares` quantiles of each figure, in their order.

    A figure holds for each request what that request gave: one value, none, or all its gaps.
    Requests are drawn again whole, since gaps of one answer are not independent, and the same
    draw serves all figures. None where fewer than two requests gave a value.
    """
    ordered = {name: _ordered(groups) for name, groups in figures.items()}
    count = max((len(groups) for groups in figures.values()), default=0)
    rng = Prng(seed)
    drawn: dict[str, list[list[float]]] = {name: [] for name in figures}
    for _ in range(ROUNDS if count else 0):
        times = rng.tally(count, min(count, MOST_VALUES))
        for name, (values, owners) in ordered.items():
            # Each value stands as often as its request was drawn.
            ranks = list(accumulate(map(times.__getitem__, owners)))
            if ranks and ranks[-1]:
                drawn[name].append([_ranked(values, ranks, share) for share in shares])
    return {
        name: [
            _ends(sorted(each[n] for each in drawn[name])) if _several(groups) else None
            for n in range(len(shares))
        ]
        for name, groups in figures.items()
    }


def _several(groups: Sequence[Sequence[float]]) -> bool:
    return sum(bool(group) for group in groups) > 1


def _ends(again: Sequence[float]) -> tuple[float, float]:
    return percentile(again, 0.025), percentile(again, 0.975)


def _ranked(values: Sequence[float], ranks: Sequence[int], share: float) -> float:
    """As `percentile`, of sorted values of which the first stand `ranks[0]` times, and so on."""
    place = share * (ranks[-1] - 1)
    below = math.floor(place)
    low = values[bisect_right(ranks, below)]
    high = values[bisect_right(ranks, min(below + 1, ranks[-1] - 1))]
    return low + (high - low) * (place - below)


def _ordered(groups: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """All values in order and whose each is; of very many, evenly spaced ones."""
    every = sorted((value, owner) for owner, group in enumerate(groups) for value in group)
    kept = every[:: len(every) // MOST_VALUES + 1]
    return [value for value, _ in kept], [owner for _, owner in kept]


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
