"""A small seeded generator of random numbers, so that pure code can draw without a clock.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014): 64 bits of state, the same numbers on every machine and Python version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_BITS_21 = (1 << 21) - 1


def mix(value: int) -> int:
    """SplitMix64's finaliser: spreads the bits of `value` over 64 bits."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


FRESH_BITS = 53
"""Of a seed drawn anew: so many are a whole number in every reader of JSON."""


class Prng:
    """A stream of random numbers from one seed; `fork` gives independent streams by label."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = seed & _MASK
        self._state = mix(self._seed + _GOLDEN)

    def fork(self, *labels: int) -> Prng:
        """Another stream, fixed by this one's seed and the labels, whatever was drawn here."""
        seed = self._seed
        for label in labels:
            seed = mix(seed ^ mix(label + _GOLDEN))
        return Prng(seed)

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return mix(self._state)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.bits() % (high - low + 1)

    def exponential(self, mean: float) -> float:
        """An exponentially distributed number with this mean."""
        return -mean * math.log1p(-self.uniform())

    def normal(self) -> float:
        """A standard normal number (Box and Muller, 1958)."""
        radius = math.sqrt(-2.0 * math.log1p(-self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape: float, mean: float) -> float:
        """A gamma distributed number (Marsaglia and Tsang, 2000) with this shape and mean."""
        if shape < 1.0:
            boost = (1.0 - self.uniform()) ** (1.0 / shape)
            return boost * self.gamma(shape + 1.0, mean * (shape + 1.0) / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = (1.0 + c * x) ** 3
            if v <= 0.0:
                continue
            if math.log1p(-self.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * mean / shape

    def weighted(self, weights: Sequence[float]) -> int:
        """An index, drawn in proportion to `weights`."""
        left = self.uniform() * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0.0:
                return index
        return len(weights) - 1

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return self.bits() % count

    def tally(self, count: int, draws: int) -> list[int]:
        """How often each of [0, count) comes up in so many draws; `count` far below 2**21."""
        times = [0] * count
        for _ in range(draws // 3):
            # Three numbers of 21 bits from one of 64: a bootstrap draws millions.
            many = self.bits()
            times[(many & _BITS_21) % count] += 1
            times[((many >> 21) & _BITS_21) % count] += 1
            times[((many >> 42) & _BITS_21) % count] += 1
        for _ in range(draws % 3):
            times[self.below(count)] += 1
        return times

    def shuffled(self, count: int) -> list[int]:
        """The numbers 0 .. count - 1 in random order (Fisher and Yates)."""
        order = list(range(count))
        for index in range(count - 1, 0, -1):
            other = self.below(index + 1)
            order[index], order[other] = order[other], order[index]
        return order
