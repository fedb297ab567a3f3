"""Many rows by a weight laid out for it: panels of WIDE outputs, one input behind the other.

A block of rows stays in the nearer caches while all panels come by, a part of a panel in the
nearest while all rows of the block meet it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from homesplit_engine.compiled import OPTIONS
from homesplit_engine.compiled.outer import (
    DEEP,
    TALL,
    WIDE,
    outer_1,
    outer_2,
    outer_3,
    outer_4,
    outer_5,
    outer_6,
    outer_7,
    outer_8,
    outer_tall,
)
from homesplit_engine.compiled.pool import pool
from homesplit_engine.compiled.vectors import LANES

Floats = NDArray[np.float32]

NEAR_ROWS = 192
NEAR_INPUTS = 576
"""Of a panel at a time at most; each a multiple of what a tile takes."""
_ALONE, _SECOND = (8, 8) if LANES == 16 else (6, 4)
"""Up to how many rows one tile takes all, and the tile beside which the rest is not too small.

A tile of one or two rows takes as long as one of four: it waits for its own sums.
"""


def can_panel(inputs: int) -> bool:
    """Whether a weight of so many inputs can be laid out so."""
    return inputs % DEEP == 0


def panels_shape(outs: int, inputs: int) -> tuple[int, int, int]:
    """Of such a weight in panels."""
    return -(-outs // WIDE), inputs, WIDE


def in_panels(weight: NDArray[Any], panels: NDArray[Any] | None = None) -> NDArray[Any]:
    """out x in -> panels x in x WIDE, in `panels` if given; the last is filled up with zeros."""
    if panels is None:
        panels = np.empty(panels_shape(*weight.shape), weight.dtype)
    for number, panel in enumerate(panels):
        part = weight[number * WIDE : (number + 1) * WIDE]
        panel[:, : len(part)] = part.T
        panel[:, len(part) :] = 0
    return panels


def add_panel_product(x: Floats, panels: Floats, out: Floats, *, threads: int = 1) -> None:
    """out += x w^T: rows x in, panels of out x in, rows x out; all contiguous."""
    if threads == 1:
        _part(x, panels, out, 0, len(panels))
        return
    with pool(threads) as parts:
        _shared(x, panels, out, parts)


def add_int8_panel_product(
    x: Floats, panels: NDArray[np.int8], scales: Floats, out: Floats, *, threads: int = 1
) -> None:
    """The same with weights of 8 bits, each output's with its scale; inputs stay as they are."""
    if threads == 1:
        _int8_part(x, panels, scales, out, 0, len(panels))
        return
    with pool(threads) as parts:
        _int8_shared(x, panels, scales, out, parts)


@njit(**OPTIONS)
def _int8_part(x: Any, panels: Any, scales: Any, out: Any, first: int, end: int) -> None:
    rows, inputs = x.shape
    floats = np.empty((NEAR_INPUTS, WIDE), np.float32)
    for k in range(0, inputs, NEAR_INPUTS):
        last = min(k + NEAR_INPUTS, inputs)
        for m in range(0, rows, NEAR_ROWS):
            near = x[m : min(m + NEAR_ROWS, rows), k:last]
            for panel in range(first, end):
                into = out[m : m + len(near), panel * WIDE : (panel + 1) * WIDE]
                _as_floats(panels[panel, k:last], scales[panel * WIDE :], into.shape[1], floats)
                part = floats[: last - k, :WIDE]
                _add_panel(near, part, into)


@njit(**OPTIONS)
def _as_floats(whole: Any, scales: Any, count: int, floats: Any) -> None:
    worth = np.zeros(WIDE, np.float32)
    for n in range(count):
        worth[n] = scales[n]
    for k in range(len(whole)):
        for n in range(WIDE):
            floats[k, n] = np.float32(whole[k, n]) * worth[n]


@njit(**OPTIONS)
def _part(x: Any, panels: Any, out: Any, first: int, end: int) -> None:
    rows, inputs = x.shape
    for k in range(0, inputs, NEAR_INPUTS):
        last = min(k + NEAR_INPUTS, inputs)
        for m in range(0, rows, NEAR_ROWS):
            near = x[m : min(m + NEAR_ROWS, rows), k:last]
            for panel in range(first, end):
                into = out[m : m + len(near), panel * WIDE : (panel + 1) * WIDE]
                _add_panel(near, panels[panel, k:last, :WIDE], into)


@njit(**OPTIONS)
def _add_panel(x: Any, w: Any, out: Any) -> None:
    """A panel's outputs, of which the last panel may have fewer."""
    if out.shape[1] == WIDE:
        add_tiles(x, w, out)
        return
    whole = np.zeros((len(x), WIDE), np.float32)
    add_tiles(x, w, whole[:, :WIDE])
    for m in range(len(x)):
        for n in range(out.shape[1]):
            out[m, n] += whole[m, n]


@njit(**OPTIONS)
def add_tiles(x: Any, w: Any, out: Any) -> None:
    """out += x w for WIDE columns: rows x k, k x WIDE, rows x WIDE; k is a multiple of DEEP.

    All come as slices, also where that cuts nothing off (`[:, :WIDE]`): of whole arrays, which
    numba takes for another kind, it would compile this once more.
    """
    rows = len(x)
    m = 0
    while m < rows:
        taken = _tile_rows(rows - m)
        if taken == TALL:
            outer_tall(x, w, out, m)
        elif taken == 8:
            outer_8(x, w, out, m)
        elif taken == 7:
            outer_7(x, w, out, m)
        elif taken == 6:
            outer_6(x, w, out, m)
        elif taken == 5:
            outer_5(x, w, out, m)
        elif taken == 4:
            outer_4(x, w, out, m)
        elif taken == 3:
            outer_3(x, w, out, m)
        elif taken == 2:
            outer_2(x, w, out, m)
        else:
            outer_1(x, w, out, m)
        m += taken


@njit(**OPTIONS)
def _tile_rows(left: int) -> int:
    """How many of the rows that are left the next tile takes."""
    if left <= _ALONE:
        return left
    if left == TALL or left > TALL + 4:
        return TALL
    return _SECOND


@njit(parallel=True, **OPTIONS)
def _shared(x: Any, panels: Any, out: Any, parts: int) -> None:
    count = len(panels)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        _part(x, panels, out, count * part // parts, count * (part + 1) // parts)


@njit(parallel=True, **OPTIONS)
def _int8_shared(x: Any, panels: Any, scales: Any, out: Any, parts: int) -> None:
    count = len(panels)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        first, end = count * part // parts, count * (part + 1) // parts
        _int8_part(x, panels, scales, out, first, end)
