"""What the split trades: time to first token against one box alone, for stalls taken away."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.words import arrival_gaps_s, ttft_s
from msgspec import Struct

from homesplit.core.bench_result import seconds_text
from homesplit.core.bootstrap import Interval, interval, quantile
from homesplit.core.compare_result import LEAST_PAIRS, ModeRuns, Verdict, ranked
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.say import seconds_span

Key = tuple[int, int]
"""Round and request."""


class Trade(Struct, frozen=True, kw_only=True):
    """What one arrangement cost and took away against another."""

    sentence: str
    split: str
    alone: str


def headline(told: Verdict, found: Trade | None) -> str:
    """The verdict in one sentence, begun with the trade where it is about the same modes."""
    if found is None or not {found.split, found.alone} <= set(told.about):
        return told.sentence
    said = told.sentence
    return f"{found.sentence.rstrip('.')}; {said[0].lower()}{said[1:]}"


def trade(modes: Sequence[ModeRuns], link_bytes_per_s: float | None) -> Trade | None:
    """One sentence over the requests that both completed; None where one of the two is missing.

    The time is the median difference of the same request's TTFT, with its 95 % bootstrap
    interval; a stall is a gap between two arrivals beyond the TPOT target.
    """
    split = next((m for m in ranked(modes) if _mode(m) == "split"), None)
    alone = next((m for m in ranked(modes) if _mode(m) == "colocated"), None)
    if split is None or alone is None:
        return None
    ours, theirs = _completed(split), _completed(alone)
    common = sorted(ours.keys() & theirs.keys())
    waited = ((ttft_s(timeline(ours[key])), ttft_s(timeline(theirs[key]))) for key in common)
    # An answer without a word has no first token.
    gaps = [mine - other for mine, other in waited if mine is not None and other is not None]
    if len(gaps) < LEAST_PAIRS:
        return None
    told = _time_words(interval(gaps, quantile(0.5)), _box(alone))
    stalls = _stall_words(
        sum(_stalls(split, ours[key]) for key in common)
        - sum(_stalls(alone, theirs[key]) for key in common)
    )
    sentence = f"{_link_words(split, link_bytes_per_s)} {told}, and {stalls}."
    return Trade(sentence=sentence, split=split.name, alone=alone.name)


def _mode(mode: ModeRuns) -> str | None:
    return mode.setting.mode if mode.setting else None


def _box(alone: ModeRuns) -> str:
    return (alone.setting.decode_box if alone.setting else None) or "one box"


def _completed(mode: ModeRuns) -> dict[Key, RequestLog]:
    return {
        (turn, log.id): log
        for turn, run in enumerate(mode.runs)
        for log in run.logs
        if log.outcome == "completed" and run.summary.window.counts(log.due_s)
    }


def _stalls(mode: ModeRuns, log: RequestLog) -> int:
    target = mode.runs[0].workload.targets.tpot_s
    return 0 if target is None else sum(gap > target for gap in arrival_gaps_s(timeline(log)))


def _link_words(split: ModeRuns, link_bytes_per_s: float | None) -> str:
    if split.runs[0].loopback:
        return "Over loopback"
    if link_bytes_per_s is None:
        return "Over this link"
    return f"On this {link_bytes_per_s * 8 / 1e9:.3g} Gbit/s link"


def _time_words(found: Interval | None, box: str) -> str:
    if found is None or found.low <= 0.0 <= found.high:
        return f"the split cost no TTFT that shows against {box} alone"
    low, high = sorted((abs(found.low), abs(found.high)))
    verb = "cost" if found.value > 0 else "saved"
    return (
        f"the split {verb} {seconds_text(abs(found.value))} of TTFT at p50 against {box} alone "
        f"({seconds_span(low, high)}, 95 % interval)"
    )


def _stall_words(more: int) -> str:
    if more == 0:
        return "there were as many stalls"
    plural = "" if abs(more) == 1 else "s"
    return f"took {-more} stall{plural} away" if more < 0 else f"brought {more} stall{plural}"
