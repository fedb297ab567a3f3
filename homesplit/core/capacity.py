"""The search for the highest rate that keeps the targets, by bisection with an interval.

Capacity is DistServe's (Zhong et al., OSDI 2024): the highest offered rate at which 90 % of
the offered requests are inside both targets. Each rate is tried until Wilson's 95 % interval
of the share (Wilson, 1927; requests taken as independent) lies on one side of 90 %.

A run in which the load generator itself was so late that this alone could have turned it shows
nothing of the server, and is no ground for either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.bootstrap import wilson
from homesplit.core.entry import labelled
from homesplit.core.say import counted, rate, seconds

WANTED = 0.9
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
"""After so many rates in turn at which nothing was completed, and none that held, the search ends:
there is nothing to find."""
LEAST_REQUESTS = 60
"""Of each run: with fewer, not even a run without a miss shows that 90 % are inside."""
USUAL_RATES = 7
"""Rates that a search tries which starts within a factor of four of what it finds."""
LONGEST_RUN_S = 600.0
"""A rate so low that its run would last longer is not tried."""
MOST_LATE = 2
"""Runs of one rate in which the generator was late; after these the rate is beyond its reach."""


class Trial(Struct, frozen=True, kw_only=True):
    """One rate and what came of all its runs so far; `low` to `high` is the 95 % interval."""

    rate_requests_per_s: float
    offered: int
    inside: int
    completed: int = 0
    left: int = 0
    """Requests whose users gave up while inside both targets: they count neither way."""
    unjudged: int = 0
    """Answers that came all at one moment, whose TPOT can't be judged: neither way likewise."""
    runs: int = 1
    late_runs: int = 0
    """Of these, which the generator's own lateness could have turned: they count only where all
    were so."""
    late_s: float | None = None
    """How late it was (p99), in the worst of them."""

    @property
    def unheard(self) -> bool:
        """Whether the generator was late in every run, so that nothing is known of the server."""
        return self.late_runs == self.runs

    @property
    def judged(self) -> int:
        """Of how many the share inside the targets is."""
        return self.offered - self.left - self.unjudged

    @property
    def attainment(self) -> float | None:
        """The share inside the targets; None where nobody was served."""
        return self.inside / self.judged if self.completed and self.judged else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the share inside the targets; all of 0..1 without a request."""
        return wilson(self.inside, self.judged)

    @property
    def holds(self) -> bool | None:
        """Whether 90 % are inside: True, False, or None when that is not known."""
        if self.unheard:
            return None
        low, high = self.interval
        if low >= WANTED:
            return True
        return False if high < WANTED else None

    @property
    def words(self) -> str:
        """The rate and what came of it, in words."""
        at = rate(self.rate_requests_per_s)
        if not self.completed:
            return f"{at}: no data, none of {counted(self.offered, 'request')} was completed"
        low, high = self.interval
        told = {True: "holds", False: "too much", None: "not clear yet"}[self.holds]
        told = "not judged" if self.unheard else told
        if self.late_runs:
            told += f", the load generator itself was {seconds(self.late_s or 0.0)} late (p99)"
        gone = f", {self.left} given up before" if self.left else ""
        gone += f", {self.unjudged} at one moment and not judged" if self.unjudged else ""
        share = f"{self.inside} of {self.judged} inside ({low:.0%} to {high:.0%})"
        return f"{at}: {share}{gone}, {told}"


class Bounds(Struct, frozen=True, kw_only=True):
    """The highest rate that held and the lowest above it that did not; None where none is known."""

    holds: float | None
    fails: float | None
    beyond: Trial | None = None
    """The trial of `fails` where it was the generator, not the server, that did not keep up."""
    too_much: float | None = None
    """The lowest rate that the server was shown not to hold, or not shown to hold."""


def bounds(trials: Sequence[Trial]) -> Bounds:
    """What the trials show; a rate that could not be shown to hold counts as failing."""
    held = [t.rate_requests_per_s for t in trials if t.holds]
    failed = [t for t in trials if t.holds is False or _given_up(t)]
    first = min(failed, key=lambda trial: trial.rate_requests_per_s, default=None)
    heard = [t.rate_requests_per_s for t in failed if not _beyond(t)]
    lowest = first.rate_requests_per_s if first else None
    below = [rate for rate in held if lowest is None or rate < lowest]
    return Bounds(
        holds=max(below, default=None),
        fails=lowest,
        beyond=first if first and _beyond(first) else None,
        too_much=min(heard, default=None),
    )


def _given_up(trial: Trial) -> bool:
    return trial.holds is None and (_beyond(trial) or trial.runs - trial.late_runs >= MOST_TRIES)


def _beyond(trial: Trial) -> bool:
    """Whether a rate is beyond what the generator can offer."""
    return trial.holds is None and trial.late_runs >= MOST_LATE


def next_rate(trials: Sequence[Trial], first: float) -> float | None:
    """The rate to try (again), None when the search is over. `trials` hold one of each rate."""
    if not trials:
        return first
    last = trials[-1]
    if last.holds is None and not _given_up(last):
        return last.rate_requests_per_s
    known = bounds(trials)
    if len(trials) >= MOST_RATES or (known.holds is None and _silent(trials)):
        return None
    if known.fails is None:
        return (known.holds or first) * STEP
    if known.holds is None:
        lower = known.fails / (STEP if last.inside else FAR_STEP)
        return lower if run_s(lower) <= LONGEST_RUN_S else None
    if known.fails <= known.holds * CLOSE:
        return None
    return math.sqrt(known.holds * known.fails)


def run_s(rate: float, left_out_share: float = 0.0) -> float:
    """How long a run of this rate lasts at the least, so that enough requests are counted."""
    return LEAST_REQUESTS / rate / (1.0 - left_out_share)


def _silent(trials: Sequence[Trial]) -> bool:
    """Whether the last rates gave no answer at all: a server that refuses everything."""
    last = trials[-MOST_EMPTY:]
    return len(last) == MOST_EMPTY and not any(trial.completed for trial in last)


def with_run(trials: Sequence[Trial], new: Trial) -> tuple[Trial, ...]:
    """The trials with one more run, joined to the last one where that was of the same rate."""
    if not trials or trials[-1].rate_requests_per_s != new.rate_requests_per_s:
        return (*trials, new)
    old = trials[-1]
    heard = [trial for trial in (old, new) if not trial.unheard] or [new]
    joined = Trial(
        rate_requests_per_s=new.rate_requests_per_s,
        offered=sum(trial.offered for trial in heard),
        inside=sum(trial.inside for trial in heard),
        completed=sum(trial.completed for trial in heard),
        left=sum(trial.left for trial in heard),
        unjudged=sum(trial.unjudged for trial in heard),
        runs=old.runs + new.runs,
        late_runs=old.late_runs + new.late_runs,
        late_s=max((t.late_s for t in (old, new) if t.late_s is not None), default=None),
    )
    return (*trials[:-1], joined)


class CapacityResult(Struct, frozen=True, kw_only=True):
    """The capacity: the highest rate shown to hold; it lies below `high`."""

    capacity_requests_per_s: float | None
    """None where the server's is not known: also where the generator was what did not keep up."""
    low: float | None
    high: float | None
    why: str | None
    """Why there is no capacity or no upper end, None when both are known."""
    trials: tuple[Trial, ...]
    confidence: float = CONFIDENCE
    loopback: bool | None = None
    ended: bool = True
    over: bool = False
    """Whether the search was stopped for its time before the rates lay close enough."""
    generator_limit_requests_per_s: float | None = None
    """The lowest rate at which the load generator, not the server, did not keep up, where that is
    what ended the search: the server's capacity then lies anywhere from `low` on, up to `high`
    where that is known."""
    entry: str | None = None


def expected_s(first: float, seconds: float, left_out_share: float) -> float:
    """About how long a search takes that begins at `first`: a few rates, each run once."""
    return USUAL_RATES * max(seconds, run_s(first, left_out_share))


def capacity_of(
    trials: Sequence[Trial], loopback: bool | None = None, within_s: float | None = None
) -> CapacityResult:
    """The result of a search that is over; with `within_s` because its time would have been."""
    known = bounds(trials)
    why = None
    if not any(trial.completed for trial in trials):
        why = "no data, no request was completed at any rate"
    elif known.beyond is not None:
        why = _generator_words(known.beyond)
        why += f"; {_stopped_words(trials, within_s)}" if within_s is not None else ""
    elif within_s is not None:
        why = _stopped_words(trials, within_s)
    elif known.holds is None:
        lowest = min((t.rate_requests_per_s for t in trials), default=0.0)
        why = f"no rate down to {rate(lowest)} kept 90 % inside the targets"
    elif known.fails is None:
        why = f"every rate up to {rate(known.holds)} kept the targets"
    limit = known.beyond.rate_requests_per_s if known.beyond else None
    return CapacityResult(
        capacity_requests_per_s=None if limit else known.holds,
        low=known.holds,
        high=known.too_much,
        why=why,
        trials=tuple(trials),
        loopback=loopback,
        over=within_s is not None,
        generator_limit_requests_per_s=limit,
    )


def _stopped_words(trials: Sequence[Trial], within_s: float) -> str:
    tried = counted(len(trials), "rate")
    return f"stopped after {tried}, the next run would have ended after {within_s:g} s (--within)"


def _generator_words(trial: Trial) -> str:
    return (
        f"the load generator, not the server, is the limit: at {rate(trial.rate_requests_per_s)} "
        f"it was itself {seconds(trial.late_s or 0.0)} late (p99), so that nothing is known "
        "of the server there (a machine of its own for the load generator reaches further)"
    )


def unended(trials: Sequence[Trial], loopback: bool | None = None) -> CapacityResult:
    """What a search has shown that goes on, or was broken off: bounds, and no capacity yet."""
    known = bounds(trials)
    return CapacityResult(
        capacity_requests_per_s=None,
        low=known.holds,
        high=known.too_much,
        why="the search did not end",
        trials=tuple(trials),
        loopback=loopback,
        ended=False,
    )


def capacity_sentence(result: CapacityResult) -> str:
    """The result in one plain sentence, with its label where it measured no network."""
    return labelled(_sentence(result), result.loopback)


def _sentence(result: CapacityResult) -> str:
    if not result.ended:
        if not result.trials:
            return "Search for capacity, not ended: no rate has been tried to its end."
        last = result.trials[-1].words
        held = f"; the highest that held is {rate(result.low)}" if result.low else ""
        tried = counted(len(result.trials), "rate")
        return f"Search for capacity, not ended after {tried}{held}; the last, {last}."
    low, high = result.low, result.high
    if low is not None and (high is None or result.over):
        return f"Capacity at least {rate(low)} ({_sure(high)}): {result.why}."
    if low is None or high is None:
        return f"Capacity not found: {result.why}."
    return f"Capacity {rate(low)} ({_sure(high)})."


def _sure(high: float | None) -> str:
    above = f"; {rate(high)} was too much or not shown to hold" if high else ""
    return f"95 % confidence at each rate tried{above}"
