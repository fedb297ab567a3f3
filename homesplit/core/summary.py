"""From raw request records to the figures of one run, by the measuring words."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine import words
from homesplit_engine.words import (
    Figures,
    Timeline,
    figures,
    inside_targets,
    judgement,
    tpot_s,
    ttft_s,
)
from msgspec import Struct, structs

from homesplit.core import say
from homesplit.core.bootstrap import Interval, interval, quantile, share_interval
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.run_notes import bundled, most_frequent, run_notes, uncounted
from homesplit.core.window import Window, window
from homesplit.core.workload import Targets

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
    return RunSummary(
        figures=known(whole),
        by_class={
            name: known(_figures([x for x in lines if x.class_name == name], targets, window_s))
            for name in names
        },
        intervals=_intervals(lines, known(whole), window_s),
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


def _intervals(
    lines: Sequence[Timeline], whole: Figures, window_s: float
) -> dict[str, Interval | None]:
    done = [line for line in lines if line.outcome == "completed"]
    first = [value for line in done if (value := ttft_s(line)) is not None]
    each = [value for line in done if (value := tpot_s(line)) is not None]
    told = whole.attainment is not None
    share = share_interval(whole.inside, whole.judged) if told else None
    return {
        "ttft_s_p50": interval(first, quantile(0.5)),
        "ttft_s_p90": interval(first, quantile(0.9)),
        "tpot_s_p50": interval(each, quantile(0.5)),
        "tpot_s_p90": interval(each, quantile(0.9)),
        "attainment": share,
        "goodput_requests_per_s": _scaled(share, whole.judged / window_s) if window_s > 0 else None,
    }


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
