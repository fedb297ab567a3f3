"""Compiles beforehand, so that no request waits for it and none meets a disk that is full."""

from __future__ import annotations

import fcntl
import shutil
import time
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from homesplit_engine.compiled import KEPT_IN, rows
from homesplit_engine.compiled.answers import attend
from homesplit_engine.compiled.outer import WIDE
from homesplit_engine.compiled.pairs import QUICK, add_paired_product, in_pairs
from homesplit_engine.compiled.panels import (
    add_int8_panel_product,
    add_panel_product,
    in_panels,
)
from homesplit_engine.compiled.products import add_int8_product, add_product
from homesplit_engine.compiled.prompt import attend_prompt
from homesplit_engine.compiled.tiles import INT8_STEP

_LONGEST_S, _LOOK_S = 240.0, 0.05
_UNUSED_S = 86_400.0
"""What other code compiled is cleared away when no start has used it for so long."""
_KERNELS = 40
"""At least as many as there are: each may find once that what it became can't be kept."""


def compile_all(*, int8: bool, threads: int) -> None:
    """Compiles what a model with such weights uses, or takes what was kept of it."""
    turn = _turn()
    if KEPT_IN is not None:
        clear_superseded(KEPT_IN, before_s=time.time() - _UNUSED_S)
    try:
        for _ in range(_KERNELS):
            try:
                _use_all(int8=int8, threads=threads)
            except OSError:
                continue  # compiled and used all the same, but not kept for the next start
            return
    finally:
        if turn is not None:
            turn.close()


def _turn() -> IO[str] | None:
    """Of the processes that keep what they compile one at a time: numba can't tell two apart.

    The others then find it made. None waits longer than compiling takes anywhere.
    """
    try:
        lock = None if KEPT_IN is None else open(KEPT_IN / "lock", "w")  # noqa: SIM115
    except OSError:
        return None
    end_s = time.monotonic() + _LONGEST_S
    while lock is not None and time.monotonic() < end_s:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(_LOOK_S)
    return lock


def clear_superseded(kept: Path, *, before_s: float) -> int:
    """Clear away what other code compiled beside `kept`; returns how many such folders went.

    Those stay that a start has used since `before_s` (seconds since 1970) or is filling now.
    """
    gone = 0
    for folder in kept.parent.glob("compiled-*"):
        if folder == kept or _last_used_s(folder) >= before_s:
            continue
        try:
            with open(folder / "lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:
            continue  # in use, or not ours to delete: the next start looks again
        gone += 1
    return gone


def _last_used_s(folder: Path) -> float:
    """When a start last took its turn there; the folder's own time where none ever did."""
    try:
        lock = folder / "lock"
        return (lock if lock.exists() else folder).stat().st_mtime
    except OSError:
        return time.time()


def _use_all(*, int8: bool, threads: int) -> None:
    one = np.float32(1)
    row, none = np.ones((1, INT8_STEP), np.float32), np.empty((0, INT8_STEP), np.float32)
    out = np.empty_like(row)
    if int8:
        _use_int8(row, out[:, :1].copy(), threads=threads)
    else:
        add_product(row, row, out[:, :1].copy(), threads=threads)
        add_panel_product(row, in_panels(row), out[:, :1].copy(), threads=threads)
    rows.norm(row, row[0], one, out)
    rows.gate(row, row[0].copy(), row[:, : INT8_STEP // 2].copy())
    head = np.ones((1, 1, INT8_STEP), np.float32)
    slots, counts = np.zeros(1, np.int64), np.ones(1, np.int64)
    keys, asked = head.copy(), head.copy()
    every, turns = np.ones((1, 3, INT8_STEP), np.float32), np.ones((1, 2, INT8_STEP), np.float32)
    rows.turn(every, none, one, turns, one, slots, keys, keys, asked)
    attend(asked, keys, keys, slots, counts, counts, 0, threads=threads)
    wide = np.ones((1, 1, WIDE), np.float32)
    attend_prompt(wide, wide, wide, slots, 0, threads=threads)


def _use_int8(row: NDArray[np.float32], out: NDArray[np.float32], *, threads: int) -> None:
    whole, worth = np.zeros((1, INT8_STEP), np.int16), np.ones(1, np.float32)
    rows.to_int16(row, np.float32(1), whole, worth)
    weight = np.zeros((1, INT8_STEP), np.int8)
    if QUICK:
        scales = np.ones(WIDE, np.float32)
        add_paired_product(whole, worth, in_pairs(weight), scales, out, threads=threads)
        return
    add_int8_product(whole, worth, weight, worth, out, threads=threads)
    add_int8_panel_product(row, in_panels(weight), worth, out, threads=threads)
