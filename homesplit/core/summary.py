"""From raw request records to the figures of one run, by the measuring words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from homesplit_engine import words
from homesplit_engine.words import (
    Figures,
    Timeline,
    figures,
    inside_targets,
    itl_s,
    judgement,
    longest_gap_s,
    stalled_s,
    tpot_s,
    ttft_s,
    ttst_s,
)
from msgspec import Struct, field, structs

from homesplit.core import say
from homesplit.core.bootstrap import Interval, quantile, quantile_ends, share_interval
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.run_notes import bundled, most_frequent, run_notes, uncounted
from homesplit.core.window import Window, window
from homesplit.core.workload import Targets

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_BY_FIRST_CHUNK = ("tpot_s", "ttst_s")
"""Figures that need to know how many tokens came with the first chunk."""
_BY_COUNT = (*_BY_FIRST_CHUNK, "itl_s", "goodput_tokens_per_s", "throughput_tokens_per_s")
"""Figures that need to know how many tokens an answer had."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """The figures of one run overall and by class, with intervals and what to know about them."""

    figures: Figures
    by_class: dict[str, Figures]
    intervals: dict[str, Interval | None]
    left_out: int
    """Requests of the warm-up and the drain, not counted anywhere."""
    window: Window
    lateness_p99_s: float | None
    """How late the generator itself was with sending."""
    notes: tuple[str, ...]
    no_data: str | None = None
    """Why there is no figure at all, None when there are figures."""
    class_intervals: dict[str, dict[str, Interval | None]] = field(
        default_factory=dict[str, dict[str, Interval | None]]
    )
    """Those of each class."""
    estimated: tuple[str, ...] = ()
    """Names of the figures that rest on counts of tokens which the server did not tell."""


def summarise(
    plan: LoadPlan,
    logs: Sequence[RequestLog],
    targets: Targets,
    *,
    warm_up: float | None = None,
    drain: float | None = None,
) -> RunSummary:
    """The figures of `logs`; `warm_up` and `drain` in seconds override the rule (0: all counts)."""
    seen = window(plan.seconds, warm_up, drain)
    counted = [log for log in logs if seen.counts(log.due_s)]
    ends = [log.ended_s for log in counted if log.outcome == "completed" and log.ended_s]
    last_s = max(ends, default=plan.seconds)
    # A closed loop that ran dry ends with its last answer.
    dry = plan.closed and len(logs) >= len(plan.requests)
    window_s = max(0.0, last_s - seen.warm_up_s) if dry else seen.length_s(last_s)
    return summed(
        [counted], seen, window_s, targets, left_out=len(logs) - len(counted), notes=plan.notes
    )


def summed(
    runs: Sequence[Sequence[RequestLog]],
    seen: Window,
    window_s: float,
    targets: Targets,
    *,
    left_out: int,
    notes: Sequence[str] = (),
) -> RunSummary:
    """One summary of the counted requests of runs under one window, `window_s` in all."""
    counted = [log for run in runs for log in run]
    lines = [timeline(log) for log in counted]
    whole = _figures(lines, targets, window_s)
    no_data = _no_data(counted, whole, left_out)
    known = _rates_unknown if no_data else _as_they_are
    names = sorted({line.class_name for line in lines})
    of = {name: [line for line in lines if line.class_name == name] for name in names}
    intervals = _intervals(lines, known(whole), targets, window_s)
    if len(names) == 1:
        # The one class is the whole: its intervals take long and are the same.
        by_class, class_intervals = {names[0]: known(whole)}, {names[0]: intervals}
    else:
        by_class = {name: known(_figures(of[name], targets, window_s)) for name in names}
        class_intervals = {
            name: _intervals(of[name], by_class[name], targets, window_s) for name in names
        }
    return RunSummary(
        figures=known(whole),
        by_class=by_class,
        intervals=intervals,
        class_intervals=class_intervals,
        left_out=left_out,
        window=seen,
        lateness_p99_s=_p99([log.lateness_s for log in counted]),
        notes=(*notes, *run_notes(counted, lines, whole, seen)),
        no_data=no_data,
        estimated=_estimated(counted, targets),
    )


def _estimated(counted: Sequence[RequestLog], targets: Targets) -> tuple[str, ...]:
    """Which figures are estimates: without a usage record all that counts tokens.

    With one, what hangs on the tokens of the first chunk where a chunk holds several. When text
    came is seen and no estimate: TTFT, stalls and the longest gap never are.
    """
    done = [log for log in counted if log.outcome == "completed"]
    unknown = any(uncounted(log) for log in done)
    if not unknown and not any(bundled(log) for log in done):
        return ()
    judged = ("attainment", "goodput_requests_per_s") if targets.tpot_s is not None else ()
    return (*(_BY_COUNT if unknown else _BY_FIRST_CHUNK), *judged)


def _as_they_are(found: Figures) -> Figures:
    return found


def _rates_unknown(found: Figures) -> Figures:
    """Counts alone: what served nobody has no goodput that another's could be held against."""
    return structs.replace(
        found,
        attainment=None,
        goodput_requests_per_s=None,
        goodput_tokens_per_s=None,
        throughput_tokens_per_s=None,
    )


def _figures(lines: Sequence[Timeline], targets: Targets, window_s: float) -> Figures:
    return figures(
        lines, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s, window_s=window_s
    )


def inside(line: Timeline, targets: Targets) -> bool:
    """Whether a request is known to have been completed inside both targets."""
    return inside_targets(line, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s)


def unjudged(line: Timeline, targets: Targets) -> bool:
    """Whether a request counts neither way.

    Its user left while it was still inside both targets, or all of it came at one moment.
    """
    known = judgement(line, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s)
    return known is None or words.left_inside(
        line, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s
    )


_TIMED: dict[str, Callable[[Timeline], Sequence[float | None]]] = {
    "ttft_s": lambda line: (ttft_s(line),),
    "ttst_s": lambda line: (ttst_s(line),),
    "itl_s": itl_s,
    "tpot_s": lambda line: (tpot_s(line),),
    "longest_gap_s": lambda line: (longest_gap_s(line),),
}
"""What one request gives to each figure that has percentiles."""


def _intervals(
    lines: Sequence[Timeline], whole: Figures, targets: Targets, window_s: float
) -> dict[str, Interval | None]:
    """Those of every percentile and of both shares; None where there is no figure."""
    told = whole.attainment is not None
    share = share_interval(whole.inside, whole.judged) if told else None
    return {
        **_percentile_intervals([x for x in lines if x.outcome == "completed"], whole, targets),
        "attainment": share,
        "goodput_requests_per_s": _scaled(share, whole.judged / window_s) if window_s > 0 else None,
    }


def _percentile_intervals(
    done: Sequence[Timeline], whole: Figures, targets: Targets
) -> dict[str, Interval | None]:
    given = {name: [_known(read(line)) for line in done] for name, read in _TIMED.items()}
    limit_s = math.inf if targets.tpot_s is None else targets.tpot_s
    given["stall_s"] = [_known((stalled_s(line, limit_s),)) for line in done]
    ends = quantile_ends(given, tuple(PERCENTILES.values()))
    return {
        f"{name}_{part}": _interval(getattr(getattr(whole, name), part), each, given[name])
        for name in given
        for part, each in zip(PERCENTILES, ends[name], strict=True)
    }


def _known(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _interval(
    value: float | None, ends: tuple[float, float] | None, given: Sequence[Sequence[float]]
) -> Interval | None:
    if value is None or ends is None:
        return None
    low, high = ends
    count = sum(bool(each) for each in given)
    # Of very many gaps not all are drawn from: their value may lie a little beside.
    return Interval(value=value, low=min(low, value), high=max(high, value), count=count)


def _scaled(share: Interval | None, factor: float) -> Interval | None:
    if share is None:
        return None
    return Interval(
        value=share.value * factor,
        low=share.low * factor,
        high=share.high * factor,
        count=share.count,
    )


def _p99(values: Sequence[float]) -> float | None:
    return quantile(0.99)(values) if values else None


def _no_data(counted: Sequence[RequestLog], whole: Figures, left_out: int) -> str | None:
    if not counted and left_out:
        return (
            f"no data: every request ({left_out}) was due in the warm-up or the drain; "
            "take a longer run (--seconds), or count all of it (--warm-up 0 --drain 0)"
        )
    if not counted:
        return "no data: no request was offered"
    if whole.completed:
        return None
    reasons = most_frequent([log.error or log.outcome for log in counted])
    return f"no data: none of {say.counted(whole.offered, 'request')} was completed ({reasons})"
