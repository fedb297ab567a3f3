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
from homesplit_engine.compiled.outer import DEEP, WIDE, outer_1, outer_2, outer_6
from homesplit_engine.compiled.pool import pool

Floats = NDArray[np.float32]

NEAR_ROWS = 96
NEAR_INPUTS = 288
"""Of a panel at a time at most; each a multiple of what a tile takes."""


def can_panel(inputs: int) -> bool:
    """Whether a weight of so many inputs can be laid out so."""
    return inputs % DEEP == 0


def in_panels(weight: Floats) -> Floats:
    """out x in -> panels x in x WIDE; the last is filled up with zeros."""
    outs, inputs = weight.shape
    panels = np.zeros((-(-outs // WIDE), inputs, WIDE), np.float32)
    for number, panel in enumerate(panels):
        part = weight[number * WIDE : (number + 1) * WIDE]
        panel[:, : len(part)] = part.T
    return panels


def add_panel_product(x: Floats, panels: Floats, out: Floats, *, threads: int = 1) -> None:
    """out += x w^T: rows x in, panels of out x in, rows x out; all contiguous."""
    if threads == 1:
        _part(x, panels, out, 0, len(panels))
        return
    with pool(threads) as parts:
        _shared(x, panels, out, parts)


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
    """out += x w for WIDE columns: rows x k, k x WIDE, rows x WIDE; k is a multiple of DEEP."""
    rows = len(x)
    m = 0
    while m + 6 <= rows:
        outer_6(x, w, out, m)
        m += 6
    while m + 2 <= rows:
        outer_2(x, w, out, m)
        m += 2
    if m < rows:
        outer_1(x, w, out, m)


@njit(parallel=True, **OPTIONS)
def _shared(x: Any, panels: Any, out: Any, parts: int) -> None:
    count = len(panels)
    for part in prange(parts):  # pyright: ignore[reportGeneralTypeIssues]
        _part(x, panels, out, count * part // parts, count * (part + 1) // parts)
