"""A repeated run beside its former self: the same requests, then and now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homesplit_engine.words import ttft_s
from msgspec import Struct

from homesplit.core.bench_result import seconds_text
from homesplit.core.bootstrap import mean, paired_difference, quantile
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.summary import inside, unjudged
from homesplit.core.window import Window
from homesplit.core.workload import Targets


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

    @property
    def words(self) -> str:
        """In one sentence."""
        if self.low is None or self.high is None:
            return f"{self.name}: no request in common with the former run."
        first = f"TTFT p50 {seconds_text(self.ttft_p50_now_s)}, then "
        first += seconds_text(self.ttft_p50_then_s)
        share = f"{self.attainment_now or 0:.0%} inside the targets, then "
        share += f"{self.attainment_then or 0:.0%}"
        if self.low <= 0 <= self.high:
            judged = "no difference in the share inside the targets"
        else:
            judged = "more inside than then" if self.low > 0 else "fewer inside than then"
        return (
            f"{self.name}: {judged}; {share} (change {self.low:+.1%} to {self.high:+.1%}, 95 % "
            f"interval); {first}."
        )


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
        ttft_p50_then_s=_ttft_p50(former.values()),
        ttft_p50_now_s=_ttft_p50(latter.values()),
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


def _ttft_p50(logs: Iterable[RequestLog]) -> float | None:
    done = [timeline(log) for log in logs if log.outcome == "completed"]
    values = [value for line in done if (value := ttft_s(line)) is not None]
    return quantile(0.5)(values) if values else None
