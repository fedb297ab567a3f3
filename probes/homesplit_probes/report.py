"""The shape of a figure: a value with its method and samples, or the reason why there is none."""

from __future__ import annotations

import statistics
from typing import Any, Dict, Optional, Sequence

SCHEMA = 1
DOUBTFUL_SPREAD = 0.10

Figure = Dict[str, Any]


def figure(
    samples: Sequence[float], unit: str, method: str, warnings: Sequence[str] = ()
) -> Figure:
    """The median of `samples`, (largest - smallest) / median, and a warning when in doubt."""
    if not samples:
        return unknown("no sample was taken")
    middle = statistics.median(samples)
    told = list(warnings)
    doubt = middle_spread(samples)
    if doubt is not None and doubt > DOUBTFUL_SPREAD:
        told.append("the middle half of the samples differs by %.0f %%" % (doubt * 100))
    return {
        "value": middle,
        "unit": unit,
        "method": method,
        "samples": [float(s) for s in samples],
        "spread": (max(samples) - min(samples)) / middle if len(samples) > 1 and middle else None,
        "warnings": told,
    }


def middle_spread(samples: Sequence[float]) -> Optional[float]:
    """(third quartile - first quartile) / median; of all samples when they are fewer than four."""
    if len(samples) < 2:
        return None
    middle = statistics.median(samples)
    if not middle:
        return None
    if len(samples) < 4:
        return (max(samples) - min(samples)) / middle
    low, _, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle


def unknown(why: str) -> Figure:
    """No figure, and the reason in words."""
    return {"value": None, "why": why}
