"""Fits step times of the real engine on a real box: the most trusted source of cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from homesplit_engine.records import RequestRecord, StepEvent
from msgspec import Struct

Weights = Literal["same", "int8"]
"""What the engine makes of the linear layers: `same` as everything else, or 8 bits."""
FEATURES = ("step", "prompt token", "token pair", "answer token", "context token", "reading step")
MIN_STEPS = 20
ROUNDS = 12
FINE = 0.01
"""Relative errors below this all weigh alike."""
QUIET_S = 0.005
"""A request that waited no longer than this found an idle box."""


class Calibration(Struct, frozen=True, kw_only=True):
    """Seconds per step, prompt token, query-key pair, decoding request and context token.

    Fitted by least absolute errors as ratios, all coefficients at least 0. `error_p90` is
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
    read_step_s: float = 0.0
    """What a step that reads prompts takes beside `step_s`."""
    gap_s: float = 0.0
    """Median pause between two steps of a busy box: telling tokens, choosing the next step."""
    router_s: float | None = None
    """Router's part of a quiet request's TTFT; None where no record told it."""
    client_s: float | None = None
    """What a quiet request's TTFT took longer for whoever asked than from the router's receipt on:
    sending, the way there and back, reading. None where nobody told both."""
    host_key: str | None = None
    fingerprint: str = ""
    kv_bytes_per_token: int = 0
    kv_tokens: int | None = None
    """Tokens of KV that the worker had room for."""
    weights: Weights = "same"
    """What the timed engine's linear layers were in."""
    refitted: bool = False
    """Whether it was timed with other weights and changed by what the model knows of both."""
    at: str = ""
    """UTC, ISO 8601."""
    compared_steps: int = 0
    """Steps of the newest comparison of modes that moved the fit; 0 where none did."""
    compared_at: str = ""
    together: float = 1.0
    """How many times as long a step takes while the other box computes too; 1 where boxes don't
    feel each other or it was never measured."""

    @property
    def words(self) -> str:
        """What it rests on, in words."""
        timed = _dated(f"calibrated on {self.steps} steps of the engine", self.at)
        if self.compared_steps:
            measured = _dated(f"{self.compared_steps} steps of a comparison", self.compared_at)
            timed = f"{timed}, and on {measured}" if self.steps else f"calibrated on {measured}"
        if self.refitted:
            other = "int8 weights" if self.weights == "int8" else "weights as they are"
            timed += f"; that was with {other}, the rest is by the cost model"
        if self.together > 1.0:
            timed += f"; a step takes {self.together - 1:.0%} longer while the other box computes"
        return timed

    def step_seconds(
        self, prefill: Sequence[tuple[int, int]], batch: int, context_tokens: int
    ) -> float:
        """One step of pieces of prompts as (start, tokens) and `batch` answers, without pause."""
        tokens = sum(count for _, count in prefill)
        pairs = sum(count * (start + (count + 1) / 2.0) for start, count in prefill)
        return (
            self.step_s
            + (self.read_step_s if tokens else 0.0)
            + self.token_s * tokens
            + self.pair_s * pairs
            + self.sequence_s * batch
            + self.context_s * context_tokens
        )


def _dated(text: str, at: str) -> str:
    return f"{text}, {at[:10]}" if at else text


class CalibrationOf(Struct, frozen=True, kw_only=True):
    """Whose steps are fitted: box, model, and when."""

    box: str | None = None
    model: str = ""
    host_key: str | None = None
    fingerprint: str = ""
    kv_bytes_per_token: int = 0
    kv_tokens: int | None = None
    weights: Weights = "same"
    at: str = ""
    seen_s: Mapping[str, float] = {}
    """By request, how long its first token took for whoever asked."""


def fit_calibration(
    steps: Sequence[StepEvent],
    *,
    of: CalibrationOf | None = None,
    records: Sequence[RequestRecord] = (),
) -> Calibration | None:
    """The fit over one box's steps; None with fewer than `MIN_STEPS` usable ones."""
    of = of or CalibrationOf()
    chosen = [s for s in steps if (of.box is None or s.box == of.box) and s.end_s > s.start_s]
    if len(chosen) < MIN_STEPS or len({s.box for s in chosen}) != 1:
        return None
    rows = [features(step) for step in chosen]
    times = [step.end_s - step.start_s for step in chosen]
    return Calibration(
        box=chosen[0].box,
        model=of.model,
        steps=len(chosen),
        **fitted_fields(robust_fit(rows, times), rows, times),
        gap_s=gap_between(chosen) or 0.0,
        router_s=router_part(records),
        client_s=client_part(records, of.seen_s),
        host_key=of.host_key,
        fingerprint=of.fingerprint,
        kv_bytes_per_token=of.kv_bytes_per_token,
        kv_tokens=of.kv_tokens,
        weights=of.weights,
        at=of.at,
    )


class FittedFields(TypedDict):
    """What a fit says of steps, by the names of `Calibration`."""

    step_s: float
    token_s: float
    pair_s: float
    sequence_s: float
    context_s: float
    read_step_s: float
    error_p50: float
    error_p90: float
    residuals: tuple[float, ...]


def fitted_fields(
    fitted: Sequence[float], rows: Sequence[tuple[float, ...]], times: Sequence[float]
) -> FittedFields:
    """Coefficients by name, and how far they miss the steps of `rows` that took `times`."""
    residuals = tuple(_errors(fitted, rows, times))
    errors = sorted(abs(r) for r in residuals)
    return FittedFields(
        step_s=fitted[0],
        token_s=fitted[1],
        pair_s=fitted[2],
        sequence_s=fitted[3],
        context_s=fitted[4],
        read_step_s=fitted[5],
        error_p50=errors[len(errors) // 2],
        error_p90=errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)))],
        residuals=residuals,
    )


def gap_between(steps: Sequence[StepEvent]) -> float | None:
    """The median pause between a step and the next while requests were there; None without any."""
    gaps = sorted(
        after.start_s - before.end_s
        for before, after in itertools.pairwise(steps)
        if after.step == before.step + 1 and before.running and after.start_s >= before.end_s
    )
    return gaps[len(gaps) // 2] if gaps else None


def router_part(records: Sequence[RequestRecord]) -> float | None:
    """The router's part of a quiet request's TTFT, of those that one box read and answered.

    Others handed their KV over meanwhile, or began anew.
    """
    return first_token_rest([record for record in records if record.served == "colocated"])


def client_part(records: Sequence[RequestRecord], seen_s: Mapping[str, float]) -> float | None:
    """The median of TTFT as seen by who asked less the router's, of requests without a queue."""
    parts = sorted(
        max(0.0, seen_s[r.request_id] - (r.token_s[0] - r.received_s))
        for r in records
        if r.token_s and r.request_id in seen_s and r.queue_s is not None and r.queue_s < QUIET_S
    )
    return parts[len(parts) // 2] if parts else None


def first_token_rest(records: Sequence[RequestRecord]) -> float | None:
    """The median of TTFT less waiting, reading and tokenising, over requests that had no queue."""
    rests = sorted(
        rest
        for r in records
        if r.token_s
        and r.queue_s is not None
        and r.prefill_s is not None
        and r.queue_s < QUIET_S
        and (rest := r.token_s[0] - r.received_s - r.queue_s - r.prefill_s - (r.tokenise_s or 0.0))
        >= 0
    )
    return rests[len(rests) // 2] if rests else None


def features(step: StepEvent) -> tuple[float, ...]:
    """What a step's time is made of, in the order of `FEATURES`."""
    tokens = sum(piece.tokens for piece in step.prefill)
    pairs = sum(piece.tokens * (piece.start + (piece.tokens + 1) / 2.0) for piece in step.prefill)
    return (
        1.0,
        float(tokens),
        pairs,
        float(len(step.decode)),
        float(step.context_tokens),
        1.0 if tokens else 0.0,
    )


def _errors(
    fitted: Sequence[float], rows: Sequence[tuple[float, ...]], times: Sequence[float]
) -> list[float]:
    """(fitted - measured) / measured of each row."""
    return [
        (sum(c * f for c, f in zip(fitted, row, strict=True)) - time) / time
        for row, time in zip(rows, times, strict=True)
    ]


def robust_fit(
    rows: Sequence[tuple[float, ...]],
    times: Sequence[float],
    importance: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Least absolute errors as ratios, by least squares weighted anew each round.

    Another program that disturbs some steps then moves the fit little. A step that took twice as
    long as fitted counts as one that took half: errors as shares of what was measured would draw
    the fit below the middle of steps that scatter. `importance` is what a row counts for, 1 where
    it is left out.
    """
    counts = importance or [1.0] * len(rows)
    fitted = _non_negative_fit(rows, times, counts)
    for _ in range(ROUNDS):
        errors = _errors(fitted, rows, times)
        weights = [
            c / max(abs(e), FINE) / max(1.0 + e, FINE) for c, e in zip(counts, errors, strict=True)
        ]
        fitted = _non_negative_fit(rows, times, weights)
    return fitted


def _non_negative_fit(
    rows: Sequence[tuple[float, ...]], times: Sequence[float], weights: Sequence[float]
) -> tuple[float, ...]:
    """Least squares on relative errors; the most negative coefficient is dropped until none is."""
    width = len(rows[0])
    used = [i for i in range(width) if any(row[i] for row in rows)]
    while used:
        found = _solve(used, rows, times, weights)
        if found is None:
            used.pop()
            continue
        worst = found.index(min(found))
        if found[worst] >= 0:
            return tuple(found[used.index(i)] if i in used else 0.0 for i in range(width))
        used.pop(worst)
    return (0.0,) * width


def _solve(
    used: Sequence[int],
    rows: Sequence[tuple[float, ...]],
    times: Sequence[float],
    weights: Sequence[float],
) -> list[float] | None:
    """The normal equations of the used columns, scaled; None when they are singular."""
    scale = [max(abs(row[i]) for row in rows) for i in used]
    size = len(used)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, time, weight in zip(rows, times, weights, strict=True):
        values = [row[i] / s / time for i, s in zip(used, scale, strict=True)]
        for a in range(size):
            for b in range(size):
                matrix[a][b] += weight * values[a] * values[b]
            matrix[a][size] += weight * values[a]
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
