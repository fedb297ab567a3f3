"""A repeated run beside its former self: the same requests, then and now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from homesplit_engine.words import Timeline, tpot_s, ttft_s
from msgspec import Struct

from homesplit.core.bench_result import seconds_text
from homesplit.core.bootstrap import Interval, interval, mean, paired_difference, quantile
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.say import seconds_span
from homesplit.core.summary import inside, unjudged
from homesplit.core.window import Window
from homesplit.core.workload import Targets

Read = Callable[[Timeline], float | None]
LEAST_PAIRS = 20
"""Fewer requests in common tell no change of a time."""


class Change(Struct, frozen=True, kw_only=True):
    """What became of one set of figures; `low` to `high` is the 95 % interval of the change.

    The share inside the targets is paired request by request; None where nothing was common.
    """

    name: str
    attainment_then: float | None
    attainment_now: float | None
    low: float | None
    high: float | None
    ttft_p50_then_s: float | None
    ttft_p50_now_s: float | None
    tpot_p50_then_s: float | None = None
    tpot_p50_now_s: float | None = None
    ttft_change_s: Interval | None = None
    """Median of each request's TTFT now less then; None where too few were completed in both."""
    tpot_change_s: Interval | None = None

    @property
    def words(self) -> str:
        """In one sentence."""
        if self.low is None or self.high is None:
            return f"{self.name}: no request in common with the former run."
        first = _pair("TTFT", self.ttft_p50_now_s, self.ttft_p50_then_s, self.ttft_change_s)
        each = _pair("TPOT", self.tpot_p50_now_s, self.tpot_p50_then_s, self.tpot_change_s)
        share = f"{self.attainment_now or 0:.0%} inside the targets, before "
        share += f"{self.attainment_then or 0:.0%}"
        if self.low <= 0 <= self.high:
            judged = "no difference in the share inside the targets"
        else:
            judged = "more inside than before" if self.low > 0 else "fewer inside than before"
        return (
            f"{self.name}: {judged}; {share} (change {self.low:+.1%} to {self.high:+.1%}, 95 % "
            f"interval); {first}; {each}."
        )


def _pair(name: str, now: float | None, then: float | None, moved: Interval | None) -> str:
    """One time now and then, and by how much requests moved where that shows."""
    told = f"{name} p50 {seconds_text(now)}, before {seconds_text(then)}"
    if moved is None:
        return told
    if moved.low <= 0 <= moved.high:
        return f"{told}, no difference request by request"
    low, high = sorted((abs(moved.low), abs(moved.high)))
    by = seconds_span(low, high).removesuffix(" at both ends")
    return f"{told}, {by} {'more' if moved.low > 0 else 'less'} request by request"


def change(
    name: str,
    then: Sequence[Sequence[RequestLog]],
    now: Sequence[Sequence[RequestLog]],
    targets: Targets,
    *,
    seen_then: Window,
    seen_now: Window,
) -> Change:
    """The change from the runs `then` to the runs `now`, round by round, request by request.

    Of each only what counted in it: either may have been stopped before its end.
    """
    former, latter = _counted(then, seen_then), _counted(now, seen_now)
    common = sorted(former.keys() & latter.keys())
    judged = [
        key
        for key in common
        if not any(unjudged(timeline(log), targets) for log in (former[key], latter[key]))
    ]
    before = [float(inside(timeline(former[key]), targets)) for key in judged]
    after = [float(inside(timeline(latter[key]), targets)) for key in judged]
    found = paired_difference(after, before)
    return Change(
        name=name,
        attainment_then=mean(before) if before else None,
        attainment_now=mean(after) if after else None,
        low=found.low if found else None,
        high=found.high if found else None,
        ttft_p50_then_s=_p50(former.values(), ttft_s),
        ttft_p50_now_s=_p50(latter.values(), ttft_s),
        tpot_p50_then_s=_p50(former.values(), tpot_s),
        tpot_p50_now_s=_p50(latter.values(), tpot_s),
        ttft_change_s=_moved(former, latter, ttft_s),
        tpot_change_s=_moved(former, latter, tpot_s),
    )


def _counted(
    runs: Sequence[Sequence[RequestLog]], seen: Window
) -> dict[tuple[int, int], RequestLog]:
    return {
        (turn, log.id): log
        for turn, run in enumerate(runs)
        for log in run
        if seen.counts(log.due_s)
    }


def _p50(logs: Iterable[RequestLog], read: Read) -> float | None:
    values = [value for log in logs if (value := _value(log, read)) is not None]
    return quantile(0.5)(values) if values else None


def _value(log: RequestLog, read: Read) -> float | None:
    return read(timeline(log)) if log.outcome == "completed" else None


def _moved(
    former: dict[tuple[int, int], RequestLog], latter: dict[tuple[int, int], RequestLog], read: Read
) -> Interval | None:
    """The median of what each request took now less what it took then."""
    pairs = (
        (_value(former[key], read), _value(latter[key], read))
        for key in sorted(former.keys() & latter.keys())
    )
    moved = [now - then for then, now in pairs if then is not None and now is not None]
    return interval(moved, quantile(0.5)) if len(moved) >= LEAST_PAIRS else None
