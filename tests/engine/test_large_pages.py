"""Arrays in large pages: apart from each other, and as long as they are used."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
from homesplit_engine.large_pages import CHUNK_BYTES, LargePages


@pytest.mark.parametrize("first", [1, 15, 16, 1000])
def test_arrays_lie_apart_and_begin_on_a_line(first: int) -> None:
    memory = LargePages()
    one, other = memory.empty((first,), np.float32), memory.empty((2, 3), np.int8)
    one[:], other[:] = 1, 2
    assert (one == 1).all() and (other == 2).all()
    assert one.ctypes.data % 64 == other.ctypes.data % 64 == 0


def test_an_array_greater_than_a_chunk_has_its_own() -> None:
    memory = LargePages()
    small = memory.empty((4,), np.int8)
    great = memory.empty((CHUNK_BYTES + 1,), np.int8)
    small[:], great[-1] = 7, 3
    assert (small == 7).all() and great[-1] == 3


def test_a_copy_has_the_same_numbers_in_one_piece() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    copy = LargePages().copy_of(turned)
    assert copy.flags.c_contiguous and (copy == turned).all()


def test_an_array_outlives_what_handed_it_out() -> None:
    array = LargePages().copy_of(np.full(10, 5))
    gc.collect()
    assert (array == 5).all()


def test_an_array_of_nothing_is_no_error() -> None:
    assert LargePages().empty((0, 3), np.float32).shape == (0, 3)


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert LargePages().copy_of(np.ones(3)).sum() == 3
