"""The measuring words, one definition each, for router, load generator, simulator and screens.

Sources: TTFT, TPOT and goodput as in DistServe (Zhong et al., OSDI 2024) and MLPerf
LoadGen; ITL as in `vllm bench serve`, where one chunk is one token. `stall` is our own:
no other tool defines it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from homesplit_engine.records import Outcome


class Timeline(Struct, frozen=True, kw_only=True):
    """One offered request as seen from one place: when it started and when tokens came.

    `start_s` and `token_s` are seconds on one clock. `start_s` is the receipt of the whole
    request (at the router) or its sending (at a client). Empty chunks are not tokens.
    """

    request_id: str
    outcome: Outcome
    start_s: float
    token_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Tokens of the answer; None means one per entry of `token_s`."""
    class_name: str = "all"
    arrival_tokens: tuple[int, ...] = ()
    """Tokens that came with each entry of `token_s`; empty means one with each."""
    end_s: float | None = None
    """When its user left, of one that was cancelled; None where nobody saw it."""
    uncounted: bool = False
    """Whether it came in one piece that nobody counted: one token or many."""

    @property
    def tokens(self) -> int:
        """Output tokens: as counted by the server, else one per arrival."""
        return len(self.token_s) if self.output_tokens is None else self.output_tokens

    @property
    def first_tokens(self) -> int:
        """Tokens that came with the first arrival: 1 unless the server bundles them."""
        return self.arrival_tokens[0] if self.arrival_tokens else 1


def ttft_s(timeline: Timeline) -> float | None:
    """Time to first token: start to first content token, seconds; None before any token."""
    return timeline.token_s[0] - timeline.start_s if timeline.token_s else None


def ttst_s(timeline: Timeline) -> float | None:
    """Time to second token: start to second content token, seconds; None before it.

    Equals TTFT where the first arrival bundles two tokens or more.
    """
    if timeline.token_s and timeline.first_tokens > 1:
        return ttft_s(timeline)
    return timeline.token_s[1] - timeline.start_s if len(timeline.token_s) > 1 else None


def itl_s(timeline: Timeline) -> tuple[float, ...]:
    """Inter-token latencies: every gap between consecutive tokens as they came, seconds.

    Tokens that came together have no gap between them: the first of them ends the whole wait,
    the others add zeros.
    """
    gaps = arrival_gaps_s(timeline)
    if not timeline.arrival_tokens:
        return gaps
    together = sum(timeline.arrival_tokens) - len(timeline.arrival_tokens)
    return (*gaps, *(0.0,) * together)


def arrival_gaps_s(timeline: Timeline) -> tuple[float, ...]:
    """Every gap between consecutive arrivals, seconds: what a reader sees pass without text."""
    times = timeline.token_s
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def tpot_s(timeline: Timeline) -> float | None:
    """Time per output token: (last - first) / (tokens - 1), seconds; None below two tokens.

    Where the server's first chunk bundles several tokens, all of them were there at TTFT: the
    divisor is then the tokens that came after it, so that the figure does not depend on
    bundling. None where all came at one moment: that shows no pace.
    """
    later_tokens, times = timeline.tokens - timeline.first_tokens, timeline.token_s
    if len(times) < 2 or later_tokens < 1 or times[-1] <= times[0]:
        return None
    return (times[-1] - times[0]) / later_tokens


def at_once(timeline: Timeline) -> bool:
    """Whether an answer of several tokens came all at one moment, so that it has no TPOT."""
    several = timeline.tokens > 1 or timeline.uncounted
    return several and bool(timeline.token_s) and tpot_s(timeline) is None


def _pace_at_most_s(timeline: Timeline) -> float:
    """The slowest TPOT that an answer which came at once can have had, seconds.

    Its first token can't have been made before it was asked for.
    """
    if timeline.uncounted:
        return math.inf
    return (timeline.token_s[0] - timeline.start_s) / (timeline.tokens - 1)


def longest_gap_s(timeline: Timeline) -> float | None:
    """The longest gap between two arrivals, seconds (the longest ITL); None below two."""
    return max(arrival_gaps_s(timeline), default=None)


def stalled_s(timeline: Timeline, tpot_target_s: float) -> float | None:
    """Stall: the summed parts of all ITLs beyond the TPOT target, seconds.

    A stall is time in which no token arrives, however many come at its end.
    """
    gaps = arrival_gaps_s(timeline)
    return sum(max(0.0, gap - tpot_target_s) for gap in gaps) if gaps else None


def inside_targets(
    timeline: Timeline, *, ttft_target_s: float | None, tpot_target_s: float | None
) -> bool:
    """Whether a request is known to have completed inside both targets (None always holds).

    Rejected, failed and cancelled requests are outside. A one-token answer has no TPOT
    and is judged by its TTFT alone.
    """
    return judgement(timeline, ttft_target_s=ttft_target_s, tpot_target_s=tpot_target_s) is True


def judgement(
    timeline: Timeline, *, ttft_target_s: float | None, tpot_target_s: float | None
) -> bool | None:
    """As `inside_targets`; None where it can't be told.

    That is so of several tokens that came at one moment, in time, unless they came so soon
    that no pace of theirs can have been outside.
    """
    if timeline.outcome != "completed":
        return False
    first = ttft_s(timeline)
    if ttft_target_s is not None and (first is None or first > ttft_target_s):
        return False
    if tpot_target_s is None:
        return True
    per_token = tpot_s(timeline)
    if per_token is not None:
        return per_token <= tpot_target_s
    if at_once(timeline) and _pace_at_most_s(timeline) > tpot_target_s:
        return None
    return True


def left_inside(
    timeline: Timeline, *, ttft_target_s: float | None, tpot_target_s: float | None
) -> bool:
    """Whether its user left while the request was still inside both targets.

    Such a request says nothing of the server: it is no miss. One that was outside already, in
    its wait for the first token or in the pace of the tokens until then, stays one.
    """
    if timeline.outcome != "cancelled":
        return False
    times, end_s = timeline.token_s, timeline.end_s
    first = ttft_s(timeline)
    if first is None:
        waited = None if end_s is None else end_s - timeline.start_s
        return ttft_target_s is None or waited is None or waited <= ttft_target_s
    if ttft_target_s is not None and first > ttft_target_s:
        return False
    pace = tpot_s(timeline)
    if end_s is not None:
        # The next token had not come yet either.
        later = sum(timeline.arrival_tokens[1:]) if timeline.arrival_tokens else len(times) - 1
        pace = max(pace or 0.0, (end_s - times[0]) / (later + 1))
    return tpot_target_s is None or pace is None or pace <= tpot_target_s


class Percentiles(Struct, frozen=True, kw_only=True):
    """p50, p90, p95, p99 and mean of `count` values, seconds; all None where there is no data."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    count: int


def percentile(ordered: Sequence[float], share: float) -> float:
    """The `share` quantile (0..1) of sorted values, linear between neighbours (numpy's default)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Percentiles of the values that exist; no value gives None, never 0."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return Percentiles(p50=None, p90=None, p95=None, p99=None, mean=None, count=0)
    return Percentiles(
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        mean=sum(ordered) / len(ordered),
        count=len(ordered),
    )


class Figures(Struct, frozen=True, kw_only=True):
    """The summary of one run over one set of offered requests.

    ITL is pooled per token; TTFT, TTST, TPOT and stall are per request. `attainment` is
    inside / (offered - left - unjudged); goodput divides by `window_s`. Without any request to
    judge: None.
    """

    offered: int
    completed: int
    failed: int
    rejected: int
    cancelled: int
    inside: int
    window_s: float
    ttft_s: Percentiles
    ttst_s: Percentiles
    itl_s: Percentiles
    tpot_s: Percentiles
    stall_s: Percentiles
    longest_gap_s: Percentiles
    attainment: float | None
    goodput_requests_per_s: float | None
    goodput_tokens_per_s: float | None
    throughput_tokens_per_s: float | None
    left: int = 0
    """Those of `cancelled` whose users left while they were inside both targets."""
    unjudged: int = 0
    """Those of `completed` that came all at once, so that their TPOT can't be judged."""

    @property
    def judged(self) -> int:
        """The denominator of attainment."""
        return self.offered - self.left - self.unjudged


def figures(
    timelines: Sequence[Timeline],
    *,
    ttft_target_s: float | None,
    tpot_target_s: float | None,
    window_s: float,
) -> Figures:
    """Summarise `timelines` offered during `window_s` seconds against the targets."""
    done = [t for t in timelines if t.outcome == "completed"]
    judged_as = [
        judgement(t, ttft_target_s=ttft_target_s, tpot_target_s=tpot_target_s) for t in done
    ]
    good = [t for t, inside in zip(done, judged_as, strict=True) if inside]
    left = sum(
        left_inside(t, ttft_target_s=ttft_target_s, tpot_target_s=tpot_target_s) for t in timelines
    )
    unjudged = judged_as.count(None)
    judged = len(timelines) - left - unjudged
    stall_target_s = tpot_target_s if tpot_target_s is not None else math.inf
    timed = bool(timelines) and window_s > 0
    rated = timed and (judged > 0 or unjudged == 0)
    return Figures(
        offered=len(timelines),
        completed=len(done),
        failed=sum(t.outcome == "failed" for t in timelines),
        rejected=sum(t.outcome == "rejected" for t in timelines),
        cancelled=sum(t.outcome == "cancelled" for t in timelines),
        inside=len(good),
        window_s=window_s,
        ttft_s=percentiles(ttft_s(t) for t in done),
        ttst_s=percentiles(ttst_s(t) for t in done),
        itl_s=percentiles(gap for t in done for gap in itl_s(t)),
        tpot_s=percentiles(tpot_s(t) for t in done),
        stall_s=percentiles(stalled_s(t, stall_target_s) for t in done),
        longest_gap_s=percentiles(longest_gap_s(t) for t in done),
        attainment=len(good) / judged if judged else None,
        goodput_requests_per_s=len(good) / window_s if rated else None,
        goodput_tokens_per_s=sum(t.tokens for t in good) / window_s if rated else None,
        throughput_tokens_per_s=sum(t.tokens for t in done) / window_s if timed else None,
        left=left,
        unjudged=unjudged,
    )
