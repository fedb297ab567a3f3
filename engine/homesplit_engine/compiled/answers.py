"""Attention of rows that each belong to another request: a step that writes answers.

Every array is contiguous and float32 unless said. Nothing here is checked: shapes are the
caller's to see to, and what is no number goes on as no number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.exps import exps, greatest
from homesplit_engine.compiled.heads import (
    KEYS,
    score_1,
    score_2,
    score_3,
    weigh_1,
    weigh_2,
    weigh_3,
)
from homesplit_engine.compiled.outer import WIDE
from homesplit_engine.compiled.pool import pool
from homesplit_engine.compiled.vectors import LANES

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

_HIDDEN = np.float32(-1e30)
_NEAR = 12
"""Tokens whose values are weighed together: they stay in the nearest cache meanwhile."""
_AHEAD_BYTES = 18 * 2**10
"""Between the keys or values in use and those that are asked for."""


def attend(
    asked: Floats,  # rows x heads x width, scaled
    keys: Floats,  # slots x kv_heads x width
    values: Floats,
    seen: Words,  # row m sees the slots seen[ends[m] - counts[m] : ends[m]]
    ends: Words,
    counts: Words,
    window: int,  # only the last so many are seen; 0 for all
    *,
    threads: int = 1,
) -> Floats:
    """Softmax attention of every row, shaped as `asked`."""
    out = np.empty_like(asked)
    kv_heads, slots = keys.shape[1], len(keys)
    rows_held = keys.reshape(slots, -1), values.reshape(slots, -1)
    given = (asked, *rows_held, kv_heads, seen, ends, counts, window)
    longest = -(-int(counts.max()) // WIDE) * WIDE
    if threads == 1:
        scratch = np.empty((1, asked.shape[1], longest), np.float32)
        _attend(scratch, out, *given)
        return out
    with pool(threads) as parts:
        scratch = np.empty((parts, asked.shape[1], longest), np.float32)
        _attend_shared(scratch, out, *given)
    return out


@njit(**OPTIONS)
def _attend(scratch: Any, out: Any, *given: Any) -> None:
    """`given` is what `attend` puts together; so below."""
    _attend_part(given, scratch[0], out, 0, _units(given))


@njit(parallel=True, **OPTIONS)
def _attend_shared(
    scratch: Any,  # one for each thread
    out: Any,
    *given: Any,
) -> None:
    units, parts = _units(given), len(scratch)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = units * part // parts, units * (part + 1) // parts
        _attend_part(given, scratch[part], out, first, end)


@njit(**OPTIONS)
def _units(given: Any) -> int:
    asked, kv_heads = given[0], given[3]
    return len(asked) * kv_heads


@njit(**OPTIONS)
def _attend_part(given: Any, scores: Any, out: Any, first: int, end: int) -> None:
    """The units [first, end): one is a row and a KV head, with the heads that share it."""
    asked, keys, values, kv_heads, seen, ends, counts, window = given
    group = asked.shape[1] // kv_heads
    m = first // kv_heads
    while m * kv_heads < end:
        heads = max(first - m * kv_heads, 0), min(end - m * kv_heads, kv_heads)
        count = min(counts[m], window) if window else counts[m]
        slots = seen[ends[m] - count : ends[m]]
        _score(asked[m], keys, slots, group, heads[0], heads[1], scores)
        answers = out[m]
        for g in range(heads[0] * group, heads[1] * group):
            _softmax(scores[g], count)
            answers[g, :] = np.float32(0)
        _weigh(scores, values, slots, group, heads[0], heads[1], answers)
        m += 1


@njit(**OPTIONS)
def _tokens_ahead(held: Any) -> int:
    """As many as have _AHEAD_BYTES of keys or values, slots x numbers."""
    return max(_AHEAD_BYTES // (4 * held.shape[1]), KEYS)


@njit(**OPTIONS)
def _score(
    queries: Any, keys: Any, slots: Any, group: int, first: int, end: int, scores: Any
) -> None:
    """Every query by every key, for the KV heads [first, end)."""
    count, width = len(slots), queries.shape[1]
    fours, whole = count - count % KEYS, width - width % LANES
    ahead = _tokens_ahead(keys)
    for t in range(0, fours, KEYS):
        for h in range(first, end):
            g, at = h * group, h * width
            while g + 3 <= (h + 1) * group:
                score_3(queries, g, keys, at, slots, t, ahead, scores)
                g += 3
            while g + 2 <= (h + 1) * group:
                score_2(queries, g, keys, at, slots, t, ahead, scores)
                g += 2
            if g < (h + 1) * group:
                score_1(queries, g, keys, at, slots, t, ahead, scores)
    for g in range(first * group, end * group):
        at = g // group * width
        for t in range(fours if whole == width else 0, count):
            d = whole if t < fours else 0
            total = scores[g, t] if t < fours else np.float32(0)
            for n in range(d, width):
                total += queries[g, n] * keys[slots[t], at + n]
            scores[g, t] = total


@njit(**OPTIONS)
def _weigh(
    weights: Any, values: Any, slots: Any, group: int, first: int, end: int, answers: Any
) -> None:
    """The values by their weights, added to the answers, for the KV heads [first, end)."""
    count, width = len(slots), answers.shape[1]
    whole = width - width % WIDE
    ahead = _tokens_ahead(values)
    for t in range(0, count, _NEAR):
        last = min(t + _NEAR, count)
        for h in range(first, end):
            at = h * width
            for d in range(0, whole, WIDE):
                g = h * group
                while g + 3 <= (h + 1) * group:
                    weigh_3(weights, g, values, at, slots, t, last, ahead, answers, d)
                    g += 3
                while g + 2 <= (h + 1) * group:
                    weigh_2(weights, g, values, at, slots, t, last, ahead, answers, d)
                    g += 2
                if g < (h + 1) * group:
                    weigh_1(weights, g, values, at, slots, t, last, ahead, answers, d)
    for g in range(first * group, end * group):
        at = g // group * width
        for d in range(whole, width):
            for t in range(count):
                answers[g, d] += weights[g, t] * values[slots[t], at + d]


@njit(**OPTIONS)
def _softmax(row: Any, count: int) -> None:
    """Of the first `count`; what lies behind them, up to whole vectors, is overwritten."""
    whole = -(-count // WIDE) * WIDE
    for t in range(count, whole):
        row[t] = _HIDDEN
    total = exps(row, whole, greatest(row, whole, _HIDDEN))
    part = np.float32(1) / total
    for t in range(count):
        row[t] *= part
