"""A measured figure with how it was measured, or the reason why there is none."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Reading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure: `value` in `unit` by `method`, or `value` None and `why` it is missing.

    `samples` are the raw repetitions in the same unit; `spread` is
    (largest - smallest) / median of the samples, None with fewer than two.
    """

    value: float | None
    unit: str = ""
    method: str = ""
    samples: tuple[float, ...] = ()
    spread: float | None = None
    warnings: tuple[str, ...] = ()
    why: str | None = None
    taken_at: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is a figure."""
        return self.value is not None


def measured(
    samples: Sequence[float],
    *,
    unit: str,
    method: str,
    warnings: Sequence[str] = (),
    taken_at: str | None = None,
) -> Reading:
    """The median of `samples` with their spread; no samples give an unknown reading."""
    if not samples:
        return unknown("no sample was taken")
    middle = statistics.median(samples)
    spread = (max(samples) - min(samples)) / middle if len(samples) > 1 and middle else None
    return Reading(
        value=middle,
        unit=unit,
        method=method,
        samples=tuple(samples),
        spread=spread,
        warnings=tuple(warnings),
        taken_at=taken_at,
    )


def stated(value: float, *, unit: str, source: str) -> Reading:
    """A figure that somebody else states (a maker, a profile), not measured by us."""
    return Reading(value=value, unit=unit, method=f"stated: {source}")


def unknown(why: str) -> Reading:
    """No figure, and the reason in words."""
    return Reading(value=None, why=why)
