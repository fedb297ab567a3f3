"""Targets and a load that suit the machines at hand, from a few requests served alone."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.words import percentiles
from msgspec import Struct

from homesplit.core.measured import RequestLog
from homesplit.core.workload import Targets

TTFT_TIMES, TPOT_TIMES = 3.0, 2.0
"""How many times as long as alone a request may take among others: room to queue once, and to
share each step with one more."""
BUSY_SHARE = 0.45
"""Share of one box's time that a load of the suggested rate takes."""
ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class Alone(Struct, frozen=True, kw_only=True):
    """What requests took that had the boxes to themselves, seconds."""

    ttft_s: float
    """The longest TTFT among them."""
    tpot_s: float
    """The median."""
    whole_s: float
    """From sending to the last token, on average."""
    requests: int

    @property
    def targets(self) -> Targets:
        """Rounded up to a plain figure."""
        return Targets(
            ttft_s=rounded_up(TTFT_TIMES * self.ttft_s), tpot_s=rounded_up(TPOT_TIMES * self.tpot_s)
        )

    @property
    def rate_requests_per_s(self) -> float:
        """A load that keeps one box busy for about half of its time."""
        return BUSY_SHARE / self.whole_s

    @property
    def sentence(self) -> str:
        """Where the targets come from."""
        return (
            f"Targets for these machines: TTFT {self.targets.ttft_s:g} s, {TTFT_TIMES:g} times "
            f"what the longest prompt took alone; TPOT {self.targets.tpot_s:g} s, "
            f"{TPOT_TIMES:g} times what a token took alone ({self.requests} requests)."
        )


def alone(logs: Sequence[RequestLog]) -> Alone | None:
    """The figures of requests that were sent one after another; None when too few completed."""
    done = [log for log in logs if log.outcome == "completed" and len(log.arrival_s) > 1]
    if not done:
        return None
    tpots = [
        (log.arrival_s[-1] - log.arrival_s[0]) / (log.output_tokens - 1)
        for log in done
        if log.output_tokens is not None and log.output_tokens > 1
    ]
    tpot_s = percentiles(tpots).p50
    if tpot_s is None or tpot_s <= 0:
        return None
    return Alone(
        ttft_s=max(log.arrival_s[0] - log.sent_s for log in done),
        tpot_s=tpot_s,
        whole_s=sum(log.arrival_s[-1] - log.sent_s for log in done) / len(done),
        requests=len(done),
    )


def rounded_up(value: float) -> float:
    """The next plain figure: 1, 1.2, 1.5, 2 … times a power of ten."""
    scale = 1.0
    while value >= 10 * scale:
        scale *= 10
    while value < scale:
        scale /= 10
    found = next(step for step in ROUND if step * scale >= value * (1 - 1e-9))
    return float(f"{found * scale:.3g}")
