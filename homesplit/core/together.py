"""Whether two boxes slow each other down: measured when both compute, beside each alone.

Two boxes of their own don't. Two virtual machines of one host do, and so may boxes on one power
limit; a mode that uses both at once then gives less than twice what one gives.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from homesplit_engine.records import StepEvent

from homesplit.core.calibration import Calibration

MIN_STEPS = 12
"""Fewer steps beside the other box's tell nothing."""
BESIDE = 0.9
"""A step counts when the other box computes for so much of it."""
NOTICED = 0.04
"""A smaller difference is the fit's own error, and taken for none."""


def slowed(
    fit: Calibration, turns: Iterable[tuple[Sequence[StepEvent], Sequence[StepEvent]]]
) -> float | None:
    """How many times as long a step takes beside the other box's steps, at least 1.

    `turns` are own steps and the other's, each time that both computed. In each the median of
    measured over fitted seconds is taken, and of these the median; None where in none of them
    enough steps lay beside the other's.
    """
    found = [times for own, other in turns if (times := _slowed_once(fit, own, other))]
    if not found:
        return None
    times = statistics.median(found)
    return times if times > 1.0 + NOTICED else 1.0


def _slowed_once(
    fit: Calibration, own: Sequence[StepEvent], other: Sequence[StepEvent]
) -> float | None:
    busy = by_start((step.start_s, step.end_s) for step in other)
    ratios = [
        (step.end_s - step.start_s) / expected
        for step in own
        if covered(step, busy) >= BESIDE and (expected := fitted_seconds(fit, step)) > 0
    ]
    return statistics.median(ratios) if len(ratios) >= MIN_STEPS else None


def alone_seconds(
    own: Sequence[StepEvent], other: Sequence[StepEvent], together: float
) -> list[float]:
    """Each step's seconds as its box would take with the other one at rest."""
    lengths = [step.end_s - step.start_s for step in own]
    if together <= 1.0:
        return lengths
    busy = by_start((step.start_s, step.end_s) for step in other)
    return [
        length / (together if covered(step, busy) >= BESIDE else 1.0)
        for step, length in zip(own, lengths, strict=True)
    ]


def together_words(fits: Sequence[Calibration]) -> str:
    """What was found, in one sentence; empty where nothing was measured or nothing is slower."""
    slow = [f"{fit.box} {fit.together - 1:.0%}" for fit in fits if fit.together > 1.0]
    if not slow:
        return ""
    return (
        f"Computing at once, they slow each other down ({', '.join(slow)} longer a step): "
        "do they share a machine?"
    )


def fitted_seconds(fit: Calibration, step: StepEvent) -> float:
    """What a fit says that a step takes."""
    pieces = [(piece.start, piece.tokens) for piece in step.prefill]
    return fit.step_seconds(pieces, len(step.decode), step.context_tokens)


def by_start(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches of time, overlapping ones joined, in order."""
    joined: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans):
        if joined and start_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end_s, joined[-1][1]))
        else:
            joined.append((start_s, end_s))
    return joined


def covered(step: StepEvent, busy: Sequence[tuple[float, float]]) -> float:
    """The share of a step that lies in `busy`, which `by_start` made."""
    length = step.end_s - step.start_s
    if length <= 0:
        return 0.0
    within = 0.0
    at = max(0, bisect_right(busy, step.start_s, key=lambda span: span[0]) - 1)
    while at < len(busy) and busy[at][0] < step.end_s:
        within += max(0.0, min(busy[at][1], step.end_s) - max(busy[at][0], step.start_s))
        at += 1
    return within / length
