"""What lies between the products of a step that gives a few requests one token each.

Every array is contiguous and float32 unless said. Nothing here is checked: shapes are the
caller's to see to, and what is no number goes on as no number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.exps import exps

_SMALLEST = np.float32(1e-30)
_NO_SIGN, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
"""Of a float32's bits."""


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
    turns: Any,  # rows x 2 x width: cosines and sines
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
        cos, sin = turns[m, 0], turns[m, 1]
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
    bits, tops = rows.view(np.int32), scales.view(np.int32)
    for m in range(len(rows)):
        row, into = rows[m], out[m]
        # Without their sign floats are in the order of their bits, what is no number behind all.
        top = np.int32(0)
        for n in range(width):
            top = max(top, bits[m, n] & _NO_SIGN)
        tops[m] = top
        largest = max(scales[m], _SMALLEST) if top < _INFINITE else np.float32(np.nan)
        scales[m] = largest / levels
        times = levels / largest if largest == largest else np.float32(0)
        for n in range(width):
            into[n] = np.int16(np.int32(np.floor(row[n] * times + np.float32(0.5))))


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
