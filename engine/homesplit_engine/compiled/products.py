"""Rows by a weight that lies as it came, out_features x in_features, read front to back.

Twelve outputs at a time, so that the next four of rows find their weights in the nearest cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.pool import pool
from homesplit_engine.compiled.tiles import (
    FLOAT_STEP,
    float_1x4,
    float_2x4,
    float_4x3,
    int8_1x4,
    int8_2x4,
    int8_4x3,
)

BLOCK = 12
"""Outputs taken together: a multiple of every tile's width."""
NEAR_ROWS = 16
"""Up to so many rows all meet a weight before the next comes, so that memory is asked evenly."""


def add_product(
    x: NDArray[np.float32], w: NDArray[np.float32], out: NDArray[np.float32], *, threads: int = 1
) -> None:
    """out += x w^T: rows x in, out x in, rows x out; all contiguous."""
    if threads == 1:
        _float_part(x, w, out, 0, len(w))
        return
    with pool(threads) as parts:
        _float_shared(x, w, out, parts)


def add_int8_product(
    x: NDArray[np.int16],
    x_scales: NDArray[np.float32],
    w: NDArray[np.int8],
    w_scales: NDArray[np.float32],
    out: NDArray[np.float32],
    *,
    threads: int = 1,
) -> None:
    """out += x w^T, with a scale for each row and each output; in is a multiple of INT8_STEP."""
    if threads == 1:
        _int8_part(x, x_scales, w, w_scales, out, 0, len(w))
        return
    with pool(threads) as parts:
        _int8_shared(x, x_scales, w, w_scales, out, parts)


@njit(**OPTIONS)
def _float_part(x: Any, w: Any, out: Any, first: int, end: int) -> None:
    blocks_end = first + (end - first) // BLOCK * BLOCK if x.shape[1] % FLOAT_STEP == 0 else first
    sums = np.empty((4, 4), np.float32)
    for block in range(first, blocks_end, BLOCK):
        _float_block(x, w, out, block, sums)
    for n in range(blocks_end, end):
        for m in range(len(x)):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[m, k] * w[n, k]
            out[m, n] += total


@njit(**OPTIONS)
def _float_block(x: Any, w: Any, out: Any, block: int, sums: Any) -> None:
    rows = len(x)
    together = rows if 0 < rows <= NEAR_ROWS else 4
    for first in range(0, rows - 3, together):
        for n in range(block, block + BLOCK, 3):
            for m in range(first, min(first + together, rows) - 3, 4):
                float_4x3(x, w, sums, m, n)
                for r in range(4):
                    for c in range(3):
                        out[m + r, n + c] += sums[r, c]
    m = rows - rows % 4
    if rows - m >= 2:
        for n in range(block, block + BLOCK, 4):
            float_2x4(x, w, sums, m, n)
            for r in range(2):
                for c in range(4):
                    out[m + r, n + c] += sums[r, c]
        m += 2
    if m < rows:
        for n in range(block, block + BLOCK, 4):
            float_1x4(x, w, sums, m, n)
            for c in range(4):
                out[m, n + c] += sums[0, c]


@njit(**OPTIONS)
def _int8_part(
    x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any, first: int, end: int
) -> None:
    blocks_end = first + (end - first) // BLOCK * BLOCK
    sums = np.empty((4, 4), np.float32)
    for block in range(first, blocks_end, BLOCK):
        _int8_block(x, x_scales, w, w_scales, out, block, sums)
    for n in range(blocks_end, end):
        for m in range(len(x)):
            total = np.int32(0)
            for k in range(x.shape[1]):
                total += np.int32(x[m, k]) * np.int32(w[n, k])
            out[m, n] += np.float32(total) * (x_scales[m] * w_scales[n])


@njit(**OPTIONS)
def _int8_block(
    x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any, block: int, sums: Any
) -> None:
    rows = len(x)
    together = rows if 0 < rows <= NEAR_ROWS else 4
    for first in range(0, rows - 3, together):
        for n in range(block, block + BLOCK, 3):
            for m in range(first, min(first + together, rows) - 3, 4):
                int8_4x3(x, w, sums, m, n)
                for r in range(4):
                    for c in range(3):
                        out[m + r, n + c] += sums[r, c] * (x_scales[m + r] * w_scales[n + c])
    m = rows - rows % 4
    if rows - m >= 2:
        for n in range(block, block + BLOCK, 4):
            int8_2x4(x, w, sums, m, n)
            for r in range(2):
                for c in range(4):
                    out[m + r, n + c] += sums[r, c] * (x_scales[m + r] * w_scales[n + c])
        m += 2
    if m < rows:
        for n in range(block, block + BLOCK, 4):
            int8_1x4(x, w, sums, m, n)
            for c in range(4):
                out[m, n + c] += sums[0, c] * (x_scales[m] * w_scales[n + c])


@njit(parallel=True, **OPTIONS)
def _float_shared(x: Any, w: Any, out: Any, parts: int) -> None:
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = _bounds(len(w), part, parts)
        _float_part(x, w, out, first, end)


@njit(parallel=True, **OPTIONS)
def _int8_shared(x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any, parts: int) -> None:
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = _bounds(len(w), part, parts)
        _int8_part(x, x_scales, w, w_scales, out, first, end)


@njit(**OPTIONS)
def _bounds(outs: int, part: int, parts: int) -> tuple[int, int]:
    """Whole blocks for each part, what is left over for the last."""
    blocks = outs // BLOCK
    first, end = blocks * part // parts * BLOCK, blocks * (part + 1) // parts * BLOCK
    return first, outs if part == parts - 1 else end
