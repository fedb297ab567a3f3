"""What a comparison's measured steps change in a box's calibration: they have the last word.

A load is no calibration: it may hold no long prompt and no large batch. So the fit is made
over the measured steps together with what was known before, which counts for little: it
decides only where nothing was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from homesplit_engine.records import PrefillSlice, StepEvent
from msgspec import Struct, structs

from homesplit.core.calibration import (
    MIN_STEPS,
    Calibration,
    features,
    fitted_fields,
    gap_between,
    robust_fit,
    router_part,
)
from homesplit.core.cost import CostModel
from homesplit.core.served import Timed
from homesplit.core.together import alone_seconds

PRIOR_SHARE = 0.1
"""Of the measured steps' weight, what all former knowledge counts for together."""
_READS = ((0, 16), (0, 64), (0, 256), (0, 1024), (256, 64), (1024, 256))
_WRITES = ((1, 64), (1, 1024), (4, 256), (8, 128), (8, 4096), (16, 2048))


class Recalibrated(Struct, frozen=True, kw_only=True):
    """A box's fit after a comparison, and by how much the former one missed the same steps."""

    fit: Calibration
    error_before_p50: float

    @property
    def words(self) -> str:
        """What changed, in one sentence."""
        fit = self.fit
        return (
            f"{fit.box}: recalibrated on {fit.compared_steps} measured steps; the median step was "
            f"predicted {self.error_before_p50:.0%} off, now {fit.error_p50:.0%}"
        )


def recalibrated(
    prior: CostModel, base: Calibration, runs: Sequence[Timed], *, at: str
) -> Recalibrated | None:
    """The fit of `base`'s box after `runs`; None where they hold too few steps of it.

    `prior` is what the plan went by so far, calibrated or not; `base` holds the box's names
    and, where it was calibrated, what no step tells.
    """
    steps = [step for run in runs for step in _of(run, base.box)]
    if len(steps) < MIN_STEPS:
        return None
    rows = [features(step) for step in steps]
    # The fit is of the box alone; `together` stands beside it and must not be in it as well.
    times = [took_s for run in runs for took_s in _alone(run, base)]
    gap_s = prior.fit.gap_s if prior.fit else 0.0
    known = _known_before(prior, gap_s)
    share = PRIOR_SHARE * len(rows) / len(known)
    fitted = robust_fit(
        rows + [row for row, _ in known],
        times + [took_s for _, took_s in known],
        [1.0] * len(rows) + [share] * len(known),
    )
    gaps = [g for run in runs if (g := gap_between(_of(run, base.box))) is not None]
    routers = [r for run in runs if (r := router_part(run.records)) is not None]
    before = [_prior_s(prior, step, gap_s) / t - 1 for step, t in zip(steps, times, strict=True)]
    fit = structs.replace(
        base,
        **fitted_fields(fitted, rows, times),
        gap_s=statistics.median(gaps) if gaps else gap_s,
        router_s=statistics.median(routers) if routers else base.router_s,
        compared_steps=len(steps),
        compared_at=at,
    )
    return Recalibrated(fit=fit, error_before_p50=statistics.median(map(abs, before)))


def _of(run: Timed, box: str) -> list[StepEvent]:
    return [step for step in run.steps if step.box == box and step.end_s > step.start_s]


def _alone(run: Timed, base: Calibration) -> list[float]:
    others = [step for step in run.steps if step.box != base.box]
    return alone_seconds(_of(run, base.box), others, base.together)


def _prior_s(prior: CostModel, step: StepEvent, gap_s: float) -> float:
    pieces = [(piece.start, piece.tokens) for piece in step.prefill]
    made = prior.step_seconds(pieces, len(step.decode), step.context_tokens)
    return made - gap_s if prior.fit else made


def _known_before(prior: CostModel, gap_s: float) -> list[tuple[tuple[float, ...], float]]:
    """Steps of all kinds, with the time that they were believed to take."""
    kinds = [([read], 0, 0) for read in _READS]
    kinds += [([], batch, batch * context) for batch, context in _WRITES]
    kinds += [([_READS[1]], batch, batch * context) for batch, context in _WRITES[2:4]]
    made: list[tuple[tuple[float, ...], float]] = []
    for reads, batch, context in kinds:
        step = StepEvent(
            box=prior.box,
            step=0,
            start_s=0.0,
            end_s=0.0,
            prefill=tuple(
                PrefillSlice(request_id="", start=start, tokens=tokens) for start, tokens in reads
            ),
            decode=("",) * batch,
            context_tokens=context,
        )
        made.append((features(step), max(_prior_s(prior, step, gap_s), 1e-9)))
    return made
