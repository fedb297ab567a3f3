"""The search for the highest rate that keeps the targets, by bisection with an interval.

Capacity is DistServe's (Zhong et al., OSDI 2024): the highest offered rate at which 90 % of
the offered requests are inside both targets. Each rate is tried until Wilson's 95 % interval
of the share (Wilson, 1927; requests taken as independent) lies on one side of 90 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.entry import labelled

WANTED = 0.9
Z = 1.96
"""Two-sided 95 %."""
CONFIDENCE = 0.95
STEP = 2.0
"""Factor between rates while one that holds or one that fails is still missing."""
FAR_STEP = 4.0
"""The same on the way down from a rate at which no request at all was inside."""
CLOSE = 1.1
"""The search ends when the lowest failing rate is at most this many times the highest holding."""
MOST_TRIES = 3
"""Runs of one rate; after these it counts as failing: capacity is what was shown to hold."""
MOST_RATES = 16
MOST_EMPTY = 2
"""After so many rates in turn at which nothing was completed, there is nothing to search for."""
LEAST_REQUESTS = 60
"""Of each run: with fewer, not even a run without a miss shows that 90 % are inside."""
LONGEST_RUN_S = 600.0
"""A rate so low that its run would last longer is not tried."""


class Trial(Struct, frozen=True, kw_only=True):
    """One rate and what came of all its runs so far; `low` to `high` is the 95 % interval."""

    rate_requests_per_s: float
    offered: int
    inside: int
    completed: int = 0
    runs: int = 1

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the share inside the targets; all of 0..1 without a request."""
        return wilson(self.inside, self.offered)

    @property
    def holds(self) -> bool | None:
        """Whether 90 % are inside: True, False, or None when the interval spans 90 %."""
        low, high = self.interval
        if low >= WANTED:
            return True
        return False if high < WANTED else None


def wilson(inside: int, offered: int) -> tuple[float, float]:
    """The ends of Wilson's score interval for a share."""
    if offered == 0:
        return 0.0, 1.0
    share = inside / offered
    width = Z * math.sqrt(share * (1 - share) / offered + Z * Z / (4 * offered * offered))
    middle, scale = share + Z * Z / (2 * offered), 1 + Z * Z / offered
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


class Bounds(Struct, frozen=True, kw_only=True):
    """The highest rate that held and the lowest above it that did not; None where none is known."""

    holds: float | None
    fails: float | None


def bounds(trials: Sequence[Trial]) -> Bounds:
    """What the trials show; a rate that could not be shown to hold counts as failing."""
    held = [t.rate_requests_per_s for t in trials if t.holds]
    failed = [t.rate_requests_per_s for t in trials if t.holds is False or _given_up(t)]
    lowest = min(failed, default=None)
    below = [rate for rate in held if lowest is None or rate < lowest]
    return Bounds(holds=max(below, default=None), fails=lowest)


def _given_up(trial: Trial) -> bool:
    return trial.holds is None and trial.runs >= MOST_TRIES


def next_rate(trials: Sequence[Trial], first: float) -> float | None:
    """The rate to try (again), None when the search is over. `trials` hold one of each rate."""
    if not trials:
        return first
    last = trials[-1]
    if last.holds is None and not _given_up(last):
        return last.rate_requests_per_s
    if len(trials) >= MOST_RATES or _silent(trials):
        return None
    known = bounds(trials)
    if known.fails is None:
        return (known.holds or first) * STEP
    if known.holds is None:
        lower = known.fails / (STEP if last.inside else FAR_STEP)
        return lower if run_s(lower) <= LONGEST_RUN_S else None
    if known.fails <= known.holds * CLOSE:
        return None
    return math.sqrt(known.holds * known.fails)


def run_s(rate: float, warm_up_share: float = 0.0) -> float:
    """How long a run of this rate lasts at the least, so that enough requests are counted."""
    return LEAST_REQUESTS / rate / (1.0 - warm_up_share)


def _silent(trials: Sequence[Trial]) -> bool:
    """Whether the last rates gave no answer at all: a server that refuses everything."""
    last = trials[-MOST_EMPTY:]
    return len(last) == MOST_EMPTY and not any(trial.completed for trial in last)


def with_run(
    trials: Sequence[Trial], rate: float, offered: int, inside: int, completed: int
) -> tuple[Trial, ...]:
    """The trials with one more run, joined to the last one where that was of the same rate."""
    if trials and trials[-1].rate_requests_per_s == rate:
        old = trials[-1]
        joined = Trial(
            rate_requests_per_s=rate,
            offered=old.offered + offered,
            inside=old.inside + inside,
            completed=old.completed + completed,
            runs=old.runs + 1,
        )
        return (*trials[:-1], joined)
    new = Trial(rate_requests_per_s=rate, offered=offered, inside=inside, completed=completed)
    return (*trials, new)


class CapacityResult(Struct, frozen=True, kw_only=True):
    """The capacity: the highest rate shown to hold; it lies below `high`."""

    capacity_requests_per_s: float | None
    low: float | None
    high: float | None
    why: str | None
    """Why there is no capacity or no upper end, None when both are known."""
    trials: tuple[Trial, ...]
    confidence: float = CONFIDENCE
    loopback: bool | None = None
    entry: str | None = None


def capacity_of(trials: Sequence[Trial], loopback: bool | None = None) -> CapacityResult:
    """The result of a search that is over."""
    known = bounds(trials)
    why = None
    if not any(trial.completed for trial in trials):
        why = "no data, no request was completed at any rate"
    elif known.holds is None:
        tried = min((t.rate_requests_per_s for t in trials), default=0.0)
        why = f"no rate down to {tried:.3g} requests/s kept 90 % inside the targets"
    elif known.fails is None:
        why = f"every rate up to {known.holds:.3g} requests/s kept the targets"
    return CapacityResult(
        capacity_requests_per_s=known.holds,
        low=known.holds,
        high=known.fails,
        why=why,
        trials=tuple(trials),
        loopback=loopback,
    )


def capacity_sentence(result: CapacityResult) -> str:
    """The result in one plain sentence, with its label where it measured no network."""
    return labelled(_sentence(result), result.loopback)


def _sentence(result: CapacityResult) -> str:
    if result.capacity_requests_per_s is None or result.high is None:
        return f"Capacity not found: {result.why}."
    return (
        f"Capacity {result.capacity_requests_per_s:.3g} requests/s (95 % confidence at each rate "
        f"tried; {result.high:.3g} requests/s was too much or not shown to hold)."
    )
