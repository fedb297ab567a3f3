"""Attention of a sequence's many new rows: block by block of queries and keys, as they fit a cache.

The softmax is put together over the blocks of keys: what was summed is scaled down whenever a
greater score comes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.exps import exps, greatest
from homesplit_engine.compiled.outer import DEEP, WIDE
from homesplit_engine.compiled.panels import add_tiles
from homesplit_engine.compiled.pool import pool

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

QUERIES, KEYS = 48, 256
"""Of a block; KEYS is a multiple of WIDE."""
_ROWS = 12
"""That weigh together the values that the last of them sees."""
_HIDDEN = np.float32(-1e30)


def can_attend_prompt(width: int) -> bool:
    """Whether heads of such a width can be computed here."""
    return width % DEEP == 0


def attend_prompt(
    asked: Floats,  # rows x heads x width, scaled; the sequence's last rows
    keys: Floats,  # slots x kv_heads x width
    values: Floats,
    seen: Words,  # the slots of all the sequence's tokens
    window: int,  # only the last so many are seen; 0 for all
    *,
    threads: int = 1,
    out: Floats | None = None,
) -> Floats:
    """Causal softmax attention of every row, shaped as `asked`; in `out` if given."""
    if out is None:
        out = np.empty_like(asked)
    start = len(seen) - len(asked)
    first = max(0, start - window + 1) if window else 0
    slots = seen[first:]
    held = -(-len(slots) // WIDE) * WIDE
    kv_heads, width = keys.shape[1:]
    wide = -(-width // WIDE) * WIDE
    turned = np.empty((kv_heads, held // WIDE, width, WIDE), np.float32)
    laid = np.zeros((kv_heads, wide // WIDE, held, WIDE), np.float32)
    scores = np.empty((threads, QUERIES, KEYS), np.float32)
    sums = np.empty((threads, QUERIES, wide), np.float32)
    given = (asked, keys, values, slots, start - first, window, turned, laid)
    if threads == 1:
        _all(scores, sums, out, *given)
        return out
    with pool(threads) as parts:
        _shared(scores[:parts], sums, out, *given)
    return out


@njit(**OPTIONS)
def _all(scores: Any, sums: Any, out: Any, *given: Any) -> None:
    """`given` is what `attend_prompt` puts together; so below."""
    asked, keys, values, slots, start, window, turned, laid = given
    for h in range(keys.shape[1]):
        _lay(keys, values, slots, h, turned[h], laid[h])
    _part(asked, turned, laid, start, window, scores[0], sums[0], out, 0, _units(asked))


@njit(parallel=True, **OPTIONS)
def _shared(
    scores: Any,  # as many as threads
    sums: Any,
    out: Any,
    *given: Any,
) -> None:
    asked, keys, values, slots, start, window, turned, laid = given
    for h in prange(keys.shape[1]):  # pyright: ignore[reportGeneralTypeIssues]
        _lay(keys, values, slots, h, turned[h], laid[h])
    parts, units = len(scores), _units(asked)
    # Later queries see more keys: each thread takes every so many-th.
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        for unit in range(part, units, parts):
            _part(
                *(asked, turned, laid, start, window, scores[part], sums[part], out),
                *(unit, unit + 1),
            )


@njit(**OPTIONS)
def _units(asked: Any) -> int:
    """One is a head and a block of queries."""
    return asked.shape[1] * -(-len(asked) // QUERIES)


@njit(**OPTIONS)
def _lay(keys: Any, values: Any, slots: Any, h: int, turned: Any, laid: Any) -> None:
    """One KV head's keys in panels of WIDE tokens, its values in panels of WIDE places.

    Both are filled up with zeros.
    """
    count, width = len(slots), keys.shape[2]
    near = np.zeros((WIDE, width), np.float32)
    for first in range(0, laid.shape[1], WIDE):
        held = min(count - first, WIDE)
        for n in range(held):
            key, value = keys[slots[first + n], h], values[slots[first + n], h]
            for d in range(width):
                near[n, d] = key[d]
            for d in range(width):
                laid[d // WIDE, first + n, d % WIDE] = value[d]
        for n in range(held, WIDE):
            near[n, :] = np.float32(0)
        panel = turned[first // WIDE]
        for d in range(width):
            for n in range(WIDE):
                panel[d, n] = near[n, d]


@njit(**OPTIONS)
def _part(
    asked: Any,
    turned: Any,
    laid: Any,
    start: int,
    window: int,
    scores: Any,
    sums: Any,
    out: Any,
    first: int,
    end: int,
) -> None:
    """The units [first, end)."""
    heads = asked.shape[1]
    group = heads // len(laid)
    for unit in range(first, end):
        block, h = unit // heads, unit % heads
        m = block * QUERIES
        last = min(m + QUERIES, len(asked))
        _block(
            asked[m:last, h],
            turned[h // group],
            laid[h // group],
            start + m,
            window,
            scores,
            sums[: last - m],
            out[m:last, h],
        )


@njit(**OPTIONS)
def _block(
    x: Any,
    turned: Any,
    laid: Any,
    start: int,
    window: int,
    scores: Any,
    sums: Any,
    out: Any,
) -> None:
    """Some queries, the first of which is token `start`, of one head."""
    rows, width = x.shape
    most = np.full(rows, _HIDDEN)
    total = np.zeros(rows, np.float32)
    sums[:] = np.float32(0)
    end = start + rows
    begin = max(0, start - window + 1) // WIDE * WIDE if window else 0
    for t in range(begin, end, KEYS):
        wide = -(-(min(t + KEYS, end) - t) // WIDE) * WIDE
        _score(x, turned, start, t, wide, scores)
        for m in range(rows):
            _hide(scores[m], wide, start + m, t, window)
            greater = greatest(scores[m], wide, most[m])
            if greater > most[m]:
                kept = np.float32(math.exp(most[m] - greater))
                most[m] = greater
                total[m] *= kept
                for d in range(width):
                    sums[m, d] *= kept
        for m in range(rows):
            total[m] += exps(scores[m], wide, most[m])
        _weigh(scores[:rows, :wide], laid, start, t, sums)
    for m in range(rows):
        scale = np.float32(1) / total[m]
        for d in range(width):
            out[m, d] = sums[m, d] * scale


@njit(**OPTIONS)
def _score(x: Any, turned: Any, start: int, t: int, wide: int, scores: Any) -> None:
    """The queries by `wide` keys from `t` on; not those of a panel that a query's token is before.

    `scores` is whole: of a slice the compiler does not know that its numbers lie side by side.
    """
    rows = len(x)
    for m in range(rows):
        for column in range(wide):
            scores[m, column] = np.float32(0)
    for column in range(0, wide, WIDE):
        panel = (t + column) // WIDE
        before = max(t + column - start, 0)
        into = scores[before:rows, column : column + WIDE]
        add_tiles(x[before:], turned[panel, :, :WIDE], into)


@njit(**OPTIONS)
def _hide(row: Any, wide: int, token: int, t: int, window: int) -> None:
    """Of a token's scores by the keys from `t` on those that it must not see."""
    seen = min(max(token + 1 - t, 0), wide)
    unseen = min(max(token + 1 - window - t, 0), seen) if window else 0
    for column in range(unseen):
        row[column] = _HIDDEN
    for column in range(seen, wide):
        row[column] = _HIDDEN


@njit(**OPTIONS)
def _weigh(part: Any, laid: Any, start: int, t: int, sums: Any) -> None:
    """The values from `t` on by their weights, added; what none of the rows sees is left out."""
    rows, wide = part.shape
    together = rows if start - t >= wide else _ROWS
    for first in range(0, rows, together):
        last = min(first + together, rows)
        seen = min(-(-(start + last - t) // DEEP) * DEEP, wide)
        if seen <= 0:
            continue
        for panel in range(len(laid)):
            into = sums[first:last, panel * WIDE : (panel + 1) * WIDE]
            add_tiles(part[first:last, :seen], laid[panel, t : t + seen, :WIDE], into)
