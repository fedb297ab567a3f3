"""What lies between the products of a step that gives a few requests one token each.

Every array is contiguous and float32 unless said. Nothing here is checked: shapes are the
caller's to see to, and what is no number goes on as no number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.exps import exps, greatest
from homesplit_engine.compiled.outer import WIDE
from homesplit_engine.compiled.pool import pool

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

_HIDDEN = np.float32(-1e30)
_SMALLEST = np.float32(1e-30)


@njit(**OPTIONS)
def norm(rows: Any, weight: Any, eps: Any, out: Any) -> None:
    """Root-mean-square norm of each row into `out`."""
    for m in range(len(rows)):
        _norm_row(rows[m], weight, eps, out[m])


@njit(**OPTIONS)
def turn(
    every: Any,  # rows x (heads + 2 * kv_heads) x width, as the product gives them
    norms: Any,  # 2 x width: of queries and keys; 0 x width where there are none
    eps: Any,
    turns: Any,  # 2 x rows x width: cosines and sines
    scaling: Any,
    slots: Any,  # of each row, int64
    keys: Any,  # slots x kv_heads x width
    values: Any,
    asked: Any,  # rows x heads x width
) -> None:
    """Rope; queries scaled into `asked`, keys and values into their slots."""
    heads, kv_heads, width = asked.shape[1], keys.shape[1], asked.shape[2]
    one = np.float32(1)
    for m in range(len(every)):
        cos, sin = turns[0, m], turns[1, m]
        for h in range(heads):
            if len(norms):
                _norm_row(every[m, h], norms[0], eps, every[m, h])
            _turn_head(every[m, h], cos, sin, scaling, asked[m, h])
        for h in range(kv_heads):
            key, value = every[m, heads + h], every[m, heads + kv_heads + h]
            if len(norms):
                _norm_row(key, norms[1], eps, key)
            _turn_head(key, cos, sin, one, keys[slots[m], h])
            into = values[slots[m], h]
            for d in range(width):
                into[d] = value[d]


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
    group = asked.shape[1] // keys.shape[1]
    longest = -(-int(counts.max()) // WIDE) * WIDE
    if threads == 1:
        scratch = np.empty((1, group, longest), np.float32)
        _attend(asked, keys, values, seen, ends, counts, window, scratch, out)
        return out
    with pool(threads) as parts:
        scratch = np.empty((parts, group, longest), np.float32)
        _attend_shared(asked, keys, values, seen, ends, counts, window, scratch, out)
    return out


@njit(**OPTIONS)
def _attend(
    asked: Any,
    keys: Any,
    values: Any,
    seen: Any,
    ends: Any,
    counts: Any,
    window: int,
    scratch: Any,
    out: Any,
) -> None:
    units = len(asked) * keys.shape[1]
    _attend_part(asked, keys, values, seen, ends, counts, window, scratch[0], out, 0, units)


@njit(parallel=True, **OPTIONS)
def _attend_shared(
    asked: Any,
    keys: Any,
    values: Any,
    seen: Any,
    ends: Any,
    counts: Any,
    window: int,
    scratch: Any,  # one for each thread
    out: Any,
) -> None:
    units, parts = len(asked) * keys.shape[1], len(scratch)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = units * part // parts, units * (part + 1) // parts
        _attend_part(
            asked, keys, values, seen, ends, counts, window, scratch[part], out, first, end
        )


@njit(**OPTIONS)
def gate(both: Any, scratch: Any, out: Any) -> None:
    """silu(first half) * second half of each row; `scratch` holds half, up to whole vectors."""
    half = out.shape[1]
    for m in range(len(both)):
        row, into = both[m], out[m]
        for n in range(half):
            scratch[n] = -row[n]
        exps(scratch, len(scratch), np.float32(0))
        for n in range(half):
            into[n] = row[n] / (np.float32(1) + scratch[n]) * row[half + n]


@njit(**OPTIONS)
def to_int16(rows: Any, levels: Any, out: Any, scales: Any) -> None:
    """Each row as whole numbers up to `levels`, and what one of them is worth."""
    width = rows.shape[1]
    for m in range(len(rows)):
        row, into = rows[m], out[m]
        largest = _SMALLEST
        for n in range(width):
            largest = max(largest, abs(row[n]))
        if not largest < np.inf or not _numbers(row):
            largest = np.float32(np.nan)
        scales[m] = largest / levels
        times = levels / largest if largest == largest else np.float32(0)
        for n in range(width):
            into[n] = np.int16(math.floor(row[n] * times + np.float32(0.5)))


@njit(**OPTIONS)
def _numbers(row: Any) -> bool:
    zero = np.float32(0)
    for n in range(len(row)):
        zero += row[n] * np.float32(0)
    return zero == zero


@njit(**OPTIONS)
def _norm_row(row: Any, weight: Any, eps: Any, out: Any) -> None:
    total = np.float32(0)
    for n in range(len(row)):
        total += row[n] * row[n]
    scale = np.float32(1) / np.float32(math.sqrt(total / np.float32(len(row)) + eps))
    for n in range(len(row)):
        out[n] = row[n] * scale * weight[n]


@njit(**OPTIONS)
def _turn_head(head: Any, cos: Any, sin: Any, scaling: Any, out: Any) -> None:
    half = len(head) // 2
    for n in range(half):
        low, high = head[n], head[half + n]
        out[n] = (low * cos[n] - high * sin[n]) * scaling
        out[half + n] = (high * cos[half + n] + low * sin[half + n]) * scaling


@njit(**OPTIONS)
def _attend_part(
    asked: Any,
    keys: Any,
    values: Any,
    seen: Any,
    ends: Any,
    counts: Any,
    window: int,
    scores: Any,
    out: Any,
    first: int,
    end: int,
) -> None:
    """The units [first, end): one is a row and a KV head, with the heads that share it."""
    kv_heads = keys.shape[1]
    group, width = asked.shape[1] // kv_heads, asked.shape[2]
    for unit in range(first, end):
        m, h = unit // kv_heads, unit % kv_heads
        count = min(counts[m], window) if window else counts[m]
        slots = seen[ends[m] - count : ends[m]]
        queries = asked[m, h * group : (h + 1) * group]
        answers = out[m, h * group : (h + 1) * group]
        _score(queries, keys, slots, h, scores)
        for g in range(group):
            _softmax(scores[g], count)
            answer = answers[g]
            for d in range(width):
                answer[d] = np.float32(0)
        _weigh(scores, values, slots, h, answers)


@njit(**OPTIONS)
def _score(queries: Any, keys: Any, slots: Any, h: int, scores: Any) -> None:
    """Every query by every key, four keys at a time."""
    width, count = queries.shape[1], len(slots)
    fours = count - count % 4
    for t in range(0, fours, 4):
        k0, k1 = keys[slots[t], h], keys[slots[t + 1], h]
        k2, k3 = keys[slots[t + 2], h], keys[slots[t + 3], h]
        for g in range(len(queries)):
            query = queries[g]
            s0 = s1 = s2 = s3 = np.float32(0)
            for d in range(width):
                q = query[d]
                s0 += q * k0[d]
                s1 += q * k1[d]
                s2 += q * k2[d]
                s3 += q * k3[d]
            scores[g, t] = s0
            scores[g, t + 1] = s1
            scores[g, t + 2] = s2
            scores[g, t + 3] = s3
    for t in range(fours, count):
        key = keys[slots[t], h]
        for g in range(len(queries)):
            total = np.float32(0)
            for d in range(width):
                total += queries[g, d] * key[d]
            scores[g, t] = total


@njit(**OPTIONS)
def _weigh(weights: Any, values: Any, slots: Any, h: int, answers: Any) -> None:
    """The values by their weights, four at a time, added to the answers."""
    width, count = answers.shape[1], len(slots)
    fours = count - count % 4
    for t in range(0, fours, 4):
        v0, v1 = values[slots[t], h], values[slots[t + 1], h]
        v2, v3 = values[slots[t + 2], h], values[slots[t + 3], h]
        for g in range(len(answers)):
            p0, p1 = weights[g, t], weights[g, t + 1]
            p2, p3 = weights[g, t + 2], weights[g, t + 3]
            answer = answers[g]
            for d in range(width):
                answer[d] += p0 * v0[d] + p1 * v1[d] + p2 * v2[d] + p3 * v3[d]
    for t in range(fours, count):
        value = values[slots[t], h]
        for g in range(len(answers)):
            part, answer = weights[g, t], answers[g]
            for d in range(width):
                answer[d] += part * value[d]


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
