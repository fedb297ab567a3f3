"""Goodput over the offered rate, one curve for each mode: where each stops keeping up."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.core.plan_map import RateCurve
from homesplit.core.predict import at_rate, outlook, saturation
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.workload import Targets, Workload

REQUESTS = 60
"""Simulated for each point."""
STEPS = 8
BEYOND = 1.25
"""The highest rate beside what the best arrangement completes when flooded."""


def rate_curves(
    scene: Scene, able: Sequence[Arrangement], workload: Workload, targets: Targets
) -> tuple[RateCurve, ...]:
    """Each arrangement's goodput at the same offered rates, requests per second."""
    top = BEYOND * max((saturation(scene, each, workload) for each in able), default=0.0)
    if top <= 0:
        return ()
    rates = tuple(top * step / STEPS for step in range(1, STEPS + 1))
    return tuple(
        RateCurve(
            mode=each.mode,
            rates_requests_per_s=rates,
            goodput_requests_per_s=tuple(
                outlook(scene, each, at_rate(workload, rate), targets, REQUESTS).goodput
                for rate in rates
            ),
        )
        for each in able
    )


def offered_rate(workload: Workload) -> float | None:
    """Requests per second that the load offers; None where its users set the pace."""
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        return None
    return (arrivals.rate_requests_per_s or 1.0) * workload.turns
