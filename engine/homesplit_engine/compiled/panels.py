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
    WIDE,
    ask_rows,
    outer_1,
    outer_2,
    outer_4,
    outer_6,
)
from homesplit_engine.compiled.pool import pool

Floats = NDArray[np.float32]

NEAR_ROWS = 192
NEAR_INPUTS = 576
"""Of a panel at a time at most; each a multiple of what a tile takes."""
_FEW_ROWS = 16


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
                _add_panel(near, part, part, into)


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
                following = panels[min(panel + 1, end - 1), k:last, :WIDE]
                _add_panel(near, panels[panel, k:last, :WIDE], following, into)


@njit(**OPTIONS)
def _add_panel(x: Any, w: Any, following: Any, out: Any) -> None:
    """A panel's outputs, of which the last panel may have fewer."""
    if out.shape[1] == WIDE:
        add_tiles(x, w, following, out)
        return
    whole = np.zeros((len(x), WIDE), np.float32)
    add_tiles(x, w, following, whole[:, :WIDE])
    for m in range(len(x)):
        for n in range(out.shape[1]):
            out[m, n] += whole[m, n]


@njit(**OPTIONS)
def add_tiles(x: Any, w: Any, following: Any, out: Any) -> None:
    """out += x w for WIDE columns: rows x k, k x WIDE, rows x WIDE; k is a multiple of DEEP.

    `following` are the weights that come next: they are asked for tile by tile, so that they are
    near by then. Of few rows the processor itself sees that weight follows weight, and asking
    costs more than it brings. All come as slices, also where that cuts nothing off (`[:, :WIDE]`):
    of whole arrays, which numba takes for another kind, it would compile this once more.
    """
    rows = len(x)
    share = -(-len(following) * 6 // rows) if rows > _FEW_ROWS else 0
    m = asked = 0
    while m + 6 <= rows:
        ask_rows(following, asked, min(share, len(following) - asked))
        asked += share
        outer_6(x, w, out, m)
        m += 6
    if m + 4 <= rows:
        outer_4(x, w, out, m)
        m += 4
    if m + 2 <= rows:
        outer_2(x, w, out, m)
        m += 2
    if m < rows:
        outer_1(x, w, out, m)


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
