"""Picks one of several outlooks: the simplest of those that are about as good as the best."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.predict import Outlook
from homesplit.core.workload import Targets

ABOUT_AS_GOOD = 0.97
"""Goodput within 3 % is a tie: what runs of one and the same arrangement differ by."""
MOST_DOUBT = 0.10
"""Fits that miss by more than this still don't make everything a tie."""
CLEARLY_QUICKER = 0.85
"""Where goodput ties without targets, a latency this much lower still decides."""

SIMPLICITY = {"colocated": 0, "replica": 1, "split": 2}
"""Lower is less to run: one box before two, copies before a hand-off."""


class Choice(Struct, frozen=True, kw_only=True):
    """The chosen outlook, the best one of another mode, and whether they tie."""

    best: Outlook
    runner_up: Outlook | None
    tie: bool


def choose(outlooks: Sequence[Outlook], targets: Targets) -> Choice:
    """The choice among at least one outlook."""
    near = about_as_good(outlooks, targets)
    best = min(near, key=lambda o: (SIMPLICITY[o.arrangement.mode], *_order(o)))
    others = [o for o in outlooks if o.arrangement.mode != best.arrangement.mode]
    runner_up = min(others, key=_order, default=None)
    tie = any(o.arrangement.mode != best.arrangement.mode for o in near)
    if tie:
        tied = [o for o in near if o.arrangement.mode != best.arrangement.mode]
        runner_up = min(tied, key=_order)
    return Choice(best=best, runner_up=runner_up, tie=tie)


def about_as_good(outlooks: Sequence[Outlook], targets: Targets) -> list[Outlook]:
    """Those whose goodput is within 3 % of the best, and whose latency is not clearly worse.

    Where the boxes' fits miss their own steps by more, that is the tie's width instead: a
    difference that is smaller than what it is made of says nothing.
    Latency only counts where the targets don't already settle it: without targets, or
    where next to nobody is inside them.
    """
    top = max(o.goodput for o in outlooks)
    doubt = min(MOST_DOUBT, max(o.doubt for o in outlooks))
    near = [o for o in outlooks if o.goodput >= min(ABOUT_AS_GOOD, 1.0 - doubt) * top]
    untargeted = targets.ttft_s is None and targets.tpot_s is None
    if untargeted or top <= 0 or max(o.attainment for o in near) < 0.5:
        quickest = min(o.latency_s for o in near)
        near = [o for o in near if o.latency_s * CLEARLY_QUICKER <= quickest]
    return near


def _order(made: Outlook) -> tuple[float, ...]:
    """Better first: goodput in steps of the tie's width, then stalls, then latency."""
    stall = made.figures.stall_s.p90 or 0.0
    return (-made.goodput, round(stall, 3), made.latency_s)
