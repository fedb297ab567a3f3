"""When requests are sent in an open loop: fixed beforehand, whatever the server does."""

from __future__ import annotations

from collections.abc import Callable

from homesplit.core.prng import Prng
from homesplit.core.workload import Arrivals

EVEN = 1e-3
"""Below, gaps are alike to the eye, and the shape of their distribution is no number any more."""


def send_times(arrivals: Arrivals, *, seconds: float, rng: Prng) -> tuple[float, ...]:
    """Send times in [0, seconds) of an open loop, in rising order.

    Raises ValueError where the rate isn't positive. Gaps are gamma distributed with the
    coefficient of variation `burstiness` (1 is Poisson, 0 even), in a time that runs at
    the rate of the pattern: half the rate, and the same gap lasts twice as long.
    """
    rate = arrivals.rate_requests_per_s
    if rate is None or not rate > 0:
        raise ValueError("an open loop needs a rate above 0 requests per second")
    when = _pattern_time(arrivals, rate, seconds)
    times: list[float] = []
    expected = _first(rng, arrivals.burstiness)
    while (moment := when(expected)) is not None and moment < seconds:
        times.append(moment)
        expected += _gap(rng, arrivals.burstiness)
    return tuple(times)


def _first(rng: Prng, burstiness: float) -> float:
    """From the start to the first request, in units of the mean gap.

    The rest of a gap in which the start falls by chance, so that the mean rate is right from the
    first second on: long gaps are met in proportion to their length. An even load starts half a
    gap in, and the rest of a Poisson gap is another.
    """
    if burstiness < EVEN:
        return 0.5
    if burstiness == 1:
        return _gap(rng, burstiness)
    shape = 1.0 / burstiness**2
    return rng.uniform() * rng.gamma(shape + 1.0, 1.0 + burstiness**2)


def _gap(rng: Prng, burstiness: float) -> float:
    """One gap in units of the mean gap."""
    if burstiness < EVEN:
        return 1.0
    return rng.gamma(1.0 / burstiness**2, 1.0)


def _pattern_time(
    arrivals: Arrivals, rate: float, seconds: float
) -> Callable[[float], float | None]:
    """From a number of expected arrivals to the moment at which so many are due."""
    match arrivals.pattern:
        case "steady":
            return lambda count: count / rate
        case "on_off":
            return lambda count: _on_off(count / rate, arrivals.on_s, arrivals.off_s)
        case "ramp":
            end = arrivals.ramp_to_requests_per_s or rate
            return lambda count: _ramp(count, rate, end, seconds)


def _on_off(on_time_s: float, on_s: float, off_s: float) -> float:
    """The moment at which `on_time_s` seconds of the on phases have passed."""
    if on_s <= 0:
        raise ValueError("an on/off load needs an on phase above 0 seconds")
    rounds = int(on_time_s // on_s)
    return on_time_s + rounds * off_s


def _ramp(count: float, start: float, end: float, seconds: float) -> float | None:
    """Solves start*t + (end - start)*t²/(2*seconds) = count for t; None when never reached."""
    slope = (end - start) / seconds
    if slope == 0:
        return count / start
    inside = start * start + 2.0 * slope * count
    if inside < 0:
        return None
    # This form of the root has no cancellation for a small slope.
    return 2.0 * count / (start + inside**0.5)
