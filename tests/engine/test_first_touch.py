"""Memory of the pool is laid before a step needs it, and nothing in it changes."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading

import numpy as np
import pytest
import torch
from homesplit_engine import first_touch
from homesplit_engine.cache import KvPool, KvShape, Place
from homesplit_engine.first_touch import AHEAD_BYTES, FirstTouch, Stretch
from homesplit_engine.large_pages import LargePages

SLOT_BYTES = 4096
PAGE_SLOTS = AHEAD_BYTES // SLOT_BYTES
SLOTS = 20 * PAGE_SLOTS
WAIT_S = 60.0
needs_populate = pytest.mark.skipif(
    sys.platform != "linux" or not first_touch.lays_ahead(),
    reason="needs Linux 5.14 or newer, which lays memory when asked",
)


def memory() -> Stretch:
    """Nobody has touched it."""
    return Stretch(LargePages().empty((SLOTS * SLOT_BYTES,), np.uint8), SLOT_BYTES)


def laid(held: np.ndarray, first: int, count: int = 1) -> bool:
    """Whether all memory of these slots is there, as the kernel tells."""
    start = held.ctypes.data + first * SLOT_BYTES
    start -= start % mmap.PAGESIZE
    pages = max(1, -(-count * SLOT_BYTES // mmap.PAGESIZE))
    there = (ctypes.c_ubyte * pages)()
    length = ctypes.c_size_t(pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), length, there) == 0
    return all(one & 1 for one in there)


def finished(touch: FirstTouch) -> None:
    """The laying thread, if there was one, has ended."""
    if touch.thread is not None:
        touch.thread.join(WAIT_S)
        assert not touch.thread.is_alive()


@needs_populate
def test_what_comes_after_a_slot_in_use_is_laid_and_what_is_far_away_is_not() -> None:
    stretch = memory()
    touch = FirstTouch([stretch], SLOTS)
    assert not laid(stretch.held, PAGE_SLOTS)
    touch.reached(10)
    finished(touch)
    assert laid(stretch.held, 0, PAGE_SLOTS)
    assert not laid(stretch.held, SLOTS // 2)


@needs_populate
def test_the_numbers_that_are_there_stay() -> None:
    stretch = memory()
    stretch.held[: 10 * SLOT_BYTES] = 7
    touch = FirstTouch([stretch], SLOTS)
    touch.reached(10)
    finished(touch)
    assert (stretch.held[: 10 * SLOT_BYTES] == 7).all()
    assert (stretch.held[10 * SLOT_BYTES : PAGE_SLOTS * SLOT_BYTES] == 0).all()


@needs_populate
def test_as_slots_come_into_use_one_by_one_each_is_laid_before() -> None:
    stretch = memory()
    touch = FirstTouch([stretch], SLOTS)
    for slot in range(0, SLOTS, PAGE_SLOTS // 4):
        assert slot == 0 or laid(stretch.held, slot)
        touch.reached(slot)
        finished(touch)


@needs_populate
def test_what_lies_between_two_requests_is_left_alone() -> None:
    stretch = memory()
    touch = FirstTouch([stretch], SLOTS)
    for slot in (0, SLOTS - 1):
        touch.reached(slot)
        finished(touch)
    assert laid(stretch.held, 0) and laid(stretch.held, SLOTS - 1)
    assert not any(laid(stretch.held, at * PAGE_SLOTS) for at in range(2, 18))


def refused(*_args: object) -> None:
    raise PermissionError(1, "not here")


def none_left(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@needs_populate
def test_a_thread_that_may_not_be_made_less_urgent_lays_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "nice", refused)
    stretch = memory()
    touch = FirstTouch([stretch], SLOTS)
    touch.reached(0)
    finished(touch)
    assert laid(stretch.held, PAGE_SLOTS - 1)


def test_where_no_thread_can_be_had_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", none_left)
    touch = FirstTouch([memory()], SLOTS)
    touch.reached(0)
    touch.reached(SLOTS - 1)
    assert touch.thread is None


def test_a_system_that_lays_nothing_ahead_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(_stretch: Stretch, first: int, _end: int) -> bool:
        asked.append(first)
        return False

    monkeypatch.setattr(first_touch, "_populate", refuse)
    monkeypatch.setattr(sys, "platform", "linux")
    touch = FirstTouch([memory()], SLOTS)
    for slot in (0, PAGE_SLOTS, 5 * PAGE_SLOTS):
        touch.reached(slot)
        finished(touch)
    assert asked == [0]


def test_other_systems_and_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    there, nowhere = FirstTouch([memory()], SLOTS), FirstTouch([], SLOTS)
    for touch in (there, nowhere):
        touch.reached(SLOTS - 1)
        assert touch.thread is None


@needs_populate
def test_a_request_that_grows_has_the_pool_laid_ahead() -> None:
    heads, width = 8, SLOT_BYTES // 8 // 4
    shape = KvShape(kv_heads=(heads,), head_dim=(width,), dtype=torch.float32)
    pool = KvPool(shape, blocks_total=SLOTS // 16, block_tokens=16, device=torch.device("cpu"))
    place = Place(16, pool.device)
    assert place.follow([3, 4]) and not place.follow([3, 4])
    pool.in_use([3, 4])
    finished(pool.first_touch)
    for half in pool.layers[0].unbind(0):
        held = half.flatten().view(torch.uint8).numpy()
        assert laid(held, 4 * 16, PAGE_SLOTS // 2) and not laid(held, SLOTS // 2)
