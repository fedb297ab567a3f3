"""Weights of 8 bits on a CPU: how they lie, and their product with rows of floats."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from homesplit_engine.compiled.pairs import (
    PAIRED_STEP,
    add_paired_product,
    in_pairs,
    pairs_shape,
)
from homesplit_engine.compiled.panels import (
    add_int8_panel_product,
    can_panel,
    in_panels,
    panels_shape,
)
from homesplit_engine.compiled.products import add_int8_product
from homesplit_engine.compiled.rows import to_int16
from homesplit_engine.compiled.tiles import INT8_STEP
from homesplit_engine.large_pages import LargePages

INT8_ROWS = 64
"""Up to so many rows whole numbers are at least as quick as floats on every processor."""

Array = NDArray[np.float32]
Bytes = NDArray[np.int8]


class Int8InPairs:
    """Where whole numbers are quick: one layout, which every number of rows multiplies."""

    def __init__(self, weight: Bytes, scales: Array, memory: LargePages) -> None:
        self._width = _filled_up(weight.shape[1], PAIRED_STEP)
        shape = pairs_shape(len(weight), self._width)
        self._panels = in_pairs(weight, memory.empty(shape, np.int8))
        self._scales = np.zeros(shape[0] * shape[2] // 2, np.float32)
        self._scales[: len(scales)] = scales

    def add_product(self, rows: Array, levels: np.float32, out: Array) -> None:
        """`out += rows @ weight.T`; the rows become whole numbers up to `levels`."""
        whole, worth = _as_whole(rows, levels, self._width)
        threads = torch.get_num_threads()
        add_paired_product(whole, worth, self._panels, self._scales, out, threads=threads)


class Int8AsItLies:
    """Elsewhere: many rows stay floats, and the weights become some as they are used.

    With `copy` those weights are kept in panels too.
    """

    def __init__(self, weight: Bytes, scales: Array, *, copy: bool, memory: LargePages) -> None:
        outs, inputs = weight.shape
        self._scales = scales
        self._width = _filled_up(inputs, INT8_STEP)
        self._plain = memory.empty((outs, self._width), np.int8)
        self._plain[:, inputs:] = 0
        self._plain[:, :inputs] = weight
        laid_out = copy and can_panel(inputs)
        panels = memory.empty(panels_shape(outs, inputs), np.int8) if laid_out else None
        self._panels = in_panels(weight, panels) if laid_out else None

    def add_product(self, rows: Array, levels: np.float32, out: Array) -> None:
        """As that of `Int8InPairs`."""
        threads = torch.get_num_threads()
        if self._panels is not None and len(rows) > INT8_ROWS:
            add_int8_panel_product(rows, self._panels, self._scales, out, threads=threads)
            return
        whole, worth = _as_whole(rows, levels, self._width)
        add_int8_product(whole, worth, self._plain, self._scales, out, threads=threads)


def _filled_up(inputs: int, step: int) -> int:
    return -(-inputs // step) * step


def _as_whole(rows: Array, levels: np.float32, width: int) -> tuple[NDArray[np.int16], Array]:
    """The rows as whole numbers, filled up with zeros, and what one of them is worth."""
    whole, worth = np.empty((len(rows), width), np.int16), np.empty(len(rows), np.float32)
    whole[:, rows.shape[1] :] = 0
    to_int16(rows, levels, whole, worth)
    return whole, worth
