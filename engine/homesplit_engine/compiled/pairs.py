"""Whole numbers: rows of 16 bits by weights of 8, which lie in panels of WIDE outputs.

    panel:   inputs / 2 x 2 * WIDE bytes, of two inputs an output's two weights side by side

Processors multiply two such pairs and add both to a sum of 32 bits at once. No sum loses anything,
so it does not matter which rows are computed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS, vectors
from homesplit_engine.compiled.outer import TALL, WIDE
from homesplit_engine.compiled.pool import pool
from homesplit_engine.compiled.vectors import (
    BYTE,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LANES,
    SHORT,
    WORD,
)

Floats = NDArray[np.float32]
Shorts = NDArray[np.int16]
Bytes = NDArray[np.int8]

QUICK = bool(binding.get_host_cpu_features().get("avx512vnni"))
"""Whether this processor takes whole numbers in twice the pace of floats."""
PAIRED_STEP = 4
"""Inputs that a tile takes at a time; their number must be a multiple of it."""
NEAR_BYTES = 2**18
"""Of the rows that all panels meet before the next rows come."""
_AHEAD, _ASKING = 8192, 4
"""Bytes between the weights in use and those asked for meanwhile, and from how many rows on.

Fewer use the weights as quickly as memory brings them by itself.
"""
_EXACT: Any = OPTIONS | {"fastmath": False}
"""Every tile gives the same bits: nothing is to be put in another order."""
_WEIGHTS, _PAIRS, _PRODUCTS = (ir.VectorType(kind, 2 * LANES) for kind in (BYTE, SHORT, INT))


def pairs_shape(outs: int, inputs: int) -> tuple[int, int, int]:
    """Of such a weight in panels; `inputs` is a multiple of PAIRED_STEP."""
    return -(-outs // WIDE), inputs // 2, 2 * WIDE


def in_pairs(weight: Bytes, panels: Bytes | None = None) -> Bytes:
    """out x in -> panels, in `panels` if given; they are filled up with zeros."""
    outs, inputs = weight.shape
    if panels is None:
        panels = np.empty(pairs_shape(outs, -(-inputs // PAIRED_STEP) * PAIRED_STEP), np.int8)
    whole = np.zeros((WIDE, 2 * panels.shape[1]), np.int8)
    for number, panel in enumerate(panels):
        part = weight[number * WIDE : (number + 1) * WIDE]
        whole[: len(part), :inputs] = part
        whole[len(part) :] = 0
        panel.reshape(-1, WIDE, 2)[:] = whole.reshape(WIDE, -1, 2).transpose(1, 0, 2)
    return panels


def add_paired_product(
    x: Shorts,
    x_scales: Floats,
    panels: Bytes,
    w_scales: Floats,  # of whole panels
    out: Floats,
    *,
    threads: int = 1,
) -> None:
    """out += x w^T, with a scale for each row and each output; rows x in, rows x out."""
    if threads == 1:
        _paired_part(x, x_scales, panels, w_scales, out, 0, len(panels))
        return
    with pool(threads) as parts:
        _paired_shared(x, x_scales, panels, w_scales, out, parts)


class _Tile:
    """Writes one tile's code."""

    def __init__(self, b: Any, rows: int) -> None:
        self._b = b
        self._rows = rows
        self._places = [(r, c) for r in range(rows) for c in range(2)]

    def write(self, x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any, m: Any) -> None:
        """`out[m + r, c] += (x[m + r] . w[c]) * x_scales[m + r] * w_scales[c]`."""
        b = self._b
        xs, outs = (vectors.rows(b, array, m, self._rows) for array in (x, out))
        places = [b.add(outs[r], WORD(4 * LANES * c)) for r, c in self._places]
        for place in places:
            vectors.ask(b, place, nearest=True, to_write=True)
        totals = self._totals(xs, w)
        first = b.ptrtoint(w_scales.data, WORD)
        outputs = [vectors.load(b, first, 4 * LANES * c, FLOATS, 4) for c in range(2)]
        for (r, c), place, total in zip(self._places, places, totals, strict=True):
            scale = vectors.load(b, vectors.row(b, x_scales, b.add(m, WORD(r))), 0, FLOAT, 4)
            worth = b.fmul(vectors.spread(b, scale), outputs[c])
            product = b.fmul(b.sitofp(total, FLOATS), worth)
            vectors.store(b, b.fadd(vectors.load(b, place, 0, FLOATS, 4), product), place)

    def _totals(self, xs: list[Any], w: Any) -> list[Any]:
        b = self._b
        first = b.ptrtoint(w.data, WORD)

        def body(totals: list[Any], k: Any) -> list[Any]:
            for deeper in range(PAIRED_STEP // 2):
                here = b.add(k, WORD(deeper))
                weights = b.add(first, b.mul(here, WORD(2 * WIDE)))
                totals = self._step(totals, xs, weights, b.mul(here, WORD(4)))
            return totals

        nothing = [vectors.all_of(INTS, 0)] * len(self._places)
        pairs = b.extract_value(w.shape, 0)
        return vectors.loop(b, WORD(0), pairs, PAIRED_STEP // 2, nothing, body, once=True)

    def _step(self, totals: list[Any], xs: list[Any], weights: Any, offset: Any) -> list[Any]:
        b = self._b
        if self._rows >= _ASKING:
            vectors.ask(b, b.add(weights, WORD(_AHEAD)))
        columns = [
            b.sext(vectors.load(b, weights, 2 * LANES * c, _WEIGHTS, 1), _PRODUCTS)
            for c in range(2)
        ]
        inputs = [
            vectors.spread(b, vectors.load(b, b.add(address, offset), 0, INT, 2), INTS)
            for address in xs
        ]
        pairs = [b.sext(b.bitcast(one, _PAIRS), _PRODUCTS) for one in inputs]
        return [
            vectors.pairs_added(b, total, pairs[r], columns[c])
            for (r, c), total in zip(self._places, totals, strict=True)
        ]


def _tile(rows: int) -> Any:
    """A function for compiled code: `tile(x, x_scales, w, w_scales, out, m)`, see `_Tile.write`."""

    def tile(_context: Any, x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any, m: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            _Tile(b, rows).write(*vectors.given(context, b, signature, args))
            return context.get_dummy_value()

        return types.void(x, x_scales, w, w_scales, out, m), generate

    made: Any = intrinsic(tile)
    return made


_tile_tall, _tile_8, _tile_4, _tile_3, _tile_2, _tile_1 = (
    _tile(rows) for rows in (TALL, 8, 4, 3, 2, 1)
)


@njit(**_EXACT)
def _paired_part(
    x: Any, x_scales: Any, panels: Any, w_scales: Any, out: Any, first: int, end: int
) -> None:
    rows = len(x)
    near = max(NEAR_BYTES // (2 * x.shape[1]) // TALL, 1) * TALL
    for m in range(0, rows, near):
        last = min(m + near, rows)
        for number in range(first, end):
            columns = slice(number * WIDE, (number + 1) * WIDE)
            given = x[m:last], x_scales[m:last], panels[number], w_scales[columns]
            into = out[m:last, columns]
            if into.shape[1] == WIDE:
                _add_paired(given[0], given[1], given[2], given[3], into)
                continue
            whole = np.zeros((last - m, WIDE), np.float32)
            _add_paired(given[0], given[1], given[2], given[3], whole[:, :WIDE])
            for row in range(last - m):
                for n in range(into.shape[1]):
                    into[row, n] += whole[row, n]


@njit(**_EXACT)
def _add_paired(x: Any, x_scales: Any, w: Any, w_scales: Any, out: Any) -> None:
    """WIDE outputs of some rows."""
    rows = len(x)
    m = 0
    while m + TALL <= rows:
        _tile_tall(x, x_scales, w, w_scales, out, m)
        m += TALL
    while m + 8 <= rows:
        _tile_8(x, x_scales, w, w_scales, out, m)
        m += 8
    while m + 4 <= rows:
        _tile_4(x, x_scales, w, w_scales, out, m)
        m += 4
    # Up to four rows a tile waits for its own sums: two small ones take twice as long as one.
    if m + 3 == rows:
        _tile_3(x, x_scales, w, w_scales, out, m)
    elif m + 2 == rows:
        _tile_2(x, x_scales, w, w_scales, out, m)
    elif m + 1 == rows:
        _tile_1(x, x_scales, w, w_scales, out, m)


@njit(parallel=True, **_EXACT)
def _paired_shared(x: Any, x_scales: Any, panels: Any, w_scales: Any, out: Any, parts: int) -> None:
    count = len(panels)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = count * part // parts, count * (part + 1) // parts
        _paired_part(x, x_scales, panels, w_scales, out, first, end)
