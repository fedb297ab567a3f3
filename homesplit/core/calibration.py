"""Fits step times of the real engine on a real box: the most trusted source of cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from homesplit_engine.records import StepEvent
from msgspec import Struct

FEATURES = ("step", "prompt token", "token pair", "answer token", "context token")
MIN_STEPS = 20


class Calibration(Struct, frozen=True, kw_only=True):
    """Seconds per step, prompt token, query-key pair, decoding request and context token.

    Fitted by least squares on relative errors, all coefficients at least 0. `error_p90` is
    the share by which nine of ten fitted steps differ from the fit at most.
    """

    box: str
    model: str
    step_s: float
    token_s: float
    pair_s: float
    sequence_s: float
    context_s: float
    steps: int
    error_p50: float
    error_p90: float
    residuals: tuple[float, ...] = ()
    """(fitted - measured) / measured of each step, in order."""


def fit_calibration(
    steps: Sequence[StepEvent], *, box: str | None = None, model: str = ""
) -> Calibration | None:
    """The fit over one box's steps; None with fewer than `MIN_STEPS` usable ones."""
    chosen = [s for s in steps if (box is None or s.box == box) and s.end_s > s.start_s]
    if len(chosen) < MIN_STEPS or len({s.box for s in chosen}) != 1:
        return None
    rows = [_features(step) for step in chosen]
    times = [step.end_s - step.start_s for step in chosen]
    fitted = _non_negative_fit(rows, times)
    residuals = tuple(
        (sum(c * f for c, f in zip(fitted, row, strict=True)) - time) / time
        for row, time in zip(rows, times, strict=True)
    )
    errors = sorted(abs(r) for r in residuals)
    return Calibration(
        box=chosen[0].box,
        model=model,
        step_s=fitted[0],
        token_s=fitted[1],
        pair_s=fitted[2],
        sequence_s=fitted[3],
        context_s=fitted[4],
        steps=len(chosen),
        error_p50=errors[len(errors) // 2],
        error_p90=errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)))],
        residuals=residuals,
    )


def _features(step: StepEvent) -> tuple[float, ...]:
    tokens = sum(piece.tokens for piece in step.prefill)
    pairs = sum(piece.tokens * (piece.start + (piece.tokens + 1) / 2.0) for piece in step.prefill)
    return (1.0, float(tokens), pairs, float(len(step.decode)), float(step.context_tokens))


def _non_negative_fit(
    rows: Sequence[tuple[float, ...]], times: Sequence[float]
) -> tuple[float, ...]:
    """Least squares on relative errors; the most negative coefficient is dropped until none is."""
    width = len(rows[0])
    used = [i for i in range(width) if any(row[i] for row in rows)]
    while used:
        found = _solve(used, rows, times)
        if found is None:
            used.pop()
            continue
        worst = found.index(min(found))
        if found[worst] >= 0:
            return tuple(found[used.index(i)] if i in used else 0.0 for i in range(width))
        used.pop(worst)
    return (0.0,) * width


def _solve(
    used: Sequence[int], rows: Sequence[tuple[float, ...]], times: Sequence[float]
) -> list[float] | None:
    """The normal equations of the used columns, scaled; None when they are singular."""
    scale = [max(abs(row[i]) for row in rows) for i in used]
    size = len(used)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, time in zip(rows, times, strict=True):
        values = [row[i] / s / time for i, s in zip(used, scale, strict=True)]
        for a in range(size):
            for b in range(size):
                matrix[a][b] += values[a] * values[b]
            matrix[a][size] += values[a]
    solved = _eliminate(matrix)
    return None if solved is None else [x / s for x, s in zip(solved, scale, strict=True)]


def _eliminate(matrix: list[list[float]]) -> list[float] | None:
    """Gauss elimination with pivoting of an n x (n + 1) matrix; None when singular."""
    size = len(matrix)
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        if abs(matrix[pivot][column]) < 1e-9 * max(abs(matrix[column][column]), 1e-30):
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < 1e-12:
            return None
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                for k in range(column, size + 1):
                    matrix[row][k] -= factor * matrix[column][k]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
