"""The compiled kernels against the same sums in numpy, at every border of their tiles."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from homesplit_engine.compiled import rows, warm
from homesplit_engine.compiled.answers import attend
from homesplit_engine.compiled.outer import DEEP, TALL, WIDE
from homesplit_engine.compiled.pairs import (
    NEAR_BYTES,
    PAIRED_STEP,
    add_paired_product,
    in_pairs,
)
from homesplit_engine.compiled.panels import (
    NEAR_INPUTS,
    add_int8_panel_product,
    add_panel_product,
    in_panels,
)
from homesplit_engine.compiled.panels import NEAR_ROWS as PANEL_ROWS
from homesplit_engine.compiled.products import BLOCK, NEAR_ROWS, add_int8_product, add_product
from homesplit_engine.compiled.prompt import KEYS, QUERIES, attend_prompt
from homesplit_engine.compiled.tiles import FLOAT_STEP, INT8_STEP
from homesplit_engine.kernels import FEW_ROWS, TORCH_ROWS, FastLinear, GatedUp, hasten_linears
from homesplit_engine.large_pages import LargePages
from numpy.typing import NDArray
from torch import nn

COMPILE = """
from homesplit_engine.compiled.warm import compile_all
from homesplit_engine.compiled import answers, panels, prompt, rows
compile_all(int8=False, threads=1)
kernels = (rows.norm, rows.turn, answers._attend, rows.gate, panels._part, prompt._all)
print([len(one.signatures) for one in kernels])
"""
Array = NDArray[np.float32]
ROWS = (0, 1, 2, 3, 4, 5, 7, 8, NEAR_ROWS, NEAR_ROWS + 1, NEAR_ROWS + 7)
THREADS = (1, 2, 64)


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def close(found: Array, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("outs", [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK])
@pytest.mark.parametrize("ins", [1, FLOAT_STEP, FLOAT_STEP + 4, 3 * FLOAT_STEP])
def test_a_product_is_added_whatever_the_number_of_rows(ins: int, outs: int, threads: int) -> None:
    weight = drawn(outs, ins)
    for count in ROWS:
        x, out = drawn(count, ins, seed=count), np.ones((count, outs), np.float32)
        add_product(x, weight, out, threads=threads)
        close(out, 1 + x @ weight.T)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("outs", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_an_int8_product_loses_nothing_of_its_whole_numbers(outs: int, threads: int) -> None:
    draw = np.random.default_rng(0)
    weight = draw.integers(-127, 128, (outs, 2 * INT8_STEP)).astype(np.int8)
    for count in ROWS:
        x = draw.integers(-(2**15) + 1, 2**15, (count, 2 * INT8_STEP)).astype(np.int16)
        x_scales, w_scales = drawn(count) ** 2, drawn(outs) ** 2
        out = np.zeros((count, outs), np.float32)
        add_int8_product(x, x_scales, weight, w_scales, out, threads=threads)
        whole = x.astype(np.int64) @ weight.T.astype(np.int64)
        close(out, whole * np.outer(x_scales, w_scales).astype(np.float64))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outs", [1, WIDE, 2 * WIDE + 5])
@pytest.mark.parametrize("ins", [1, PAIRED_STEP, 3 * PAIRED_STEP - 1, NEAR_BYTES // (2 * TALL)])
def test_a_product_by_pairs_loses_nothing_of_its_whole_numbers(
    ins: int, outs: int, threads: int
) -> None:
    draw = np.random.default_rng(0)
    most = min(2**15 - 1, (2**31 - 1) // (127 * ins))
    weight = draw.integers(-127, 128, (outs, ins)).astype(np.int8)
    panels = in_pairs(weight)
    for count in (0, 3, 7, 8, TALL, 2 * TALL + 11):
        x = np.zeros((count, 2 * panels.shape[1]), np.int16)
        x[:, :ins] = draw.choice([-most, most, 0, 1], (count, ins))
        x_scales, w_scales = np.full(count, 0.5, np.float32), np.full(3 * WIDE, 2, np.float32)
        w_scales[:outs] = 4
        out = np.ones((count, outs), np.float32)
        add_paired_product(x, x_scales, panels, w_scales, out, threads=threads)
        whole = x[:, :ins].astype(np.int64) @ weight.T.astype(np.int64)
        np.testing.assert_array_equal(out, 1 + 2 * whole.astype(np.float32))


@pytest.mark.parametrize("ins", [2 * FLOAT_STEP, 2 * FLOAT_STEP + 4])
def test_a_row_gets_the_same_bits_whatever_rows_are_beside_it(ins: int) -> None:
    most, outs = NEAR_ROWS + 7, 2 * BLOCK + 5
    x, weight = drawn(most, ins), drawn(outs, ins, seed=1)
    draw = np.random.default_rng(2)
    whole = draw.integers(-29000, 29000, (most, 2 * INT8_STEP)).astype(np.int16)
    bytes_ = draw.integers(-127, 128, (outs, 2 * INT8_STEP)).astype(np.int8)
    x_scales, w_scales = drawn(most, seed=3) ** 2, drawn(outs, seed=4) ** 2

    def both(first: int, end: int) -> Array:
        out, out_int8, out_pairs = np.zeros((3, end - first, outs), np.float32)
        given = whole[first:end], x_scales[first:end]
        add_product(x[first:end], weight, out)
        add_int8_product(*given, bytes_, w_scales, out_int8)
        add_paired_product(*given, in_pairs(bytes_), np.resize(w_scales, 3 * WIDE), out_pairs)
        close(out_pairs, out_int8)
        return np.stack((out, out_int8, out_pairs))

    alone = np.concatenate([both(m, m + 1) for m in range(most)], axis=1)
    for count in range(1, most + 1):
        np.testing.assert_array_equal(both(0, count), alone[:, :count])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(odd: float) -> None:
    x = drawn(2, 32)
    x[1, 5] = odd
    out = np.zeros((2, 12), np.float32)
    add_product(x, drawn(12, 32, seed=1), out)
    assert np.isfinite(out[0]).all() and not np.isfinite(out[1]).any()
    whole, worth = np.zeros((2, 32), np.int16), np.empty(2, np.float32)
    rows.to_int16(x, np.float32(1000), whole, worth)
    assert np.isfinite(worth[0]) and np.isnan(worth[1])


def test_rows_as_whole_numbers_keep_their_largest_and_their_sign() -> None:
    x = np.array([[0.5, -1.0, 0.25], [0.0, 0.0, 0.0]], np.float32)
    whole, worth = np.ones((2, 3), np.int16), np.empty(2, np.float32)
    rows.to_int16(x, np.float32(100), whole, worth)
    assert whole.tolist() == [[50, -100, 25], [0, 0, 0]]
    assert worth[0] == np.float32(0.01)


def test_the_norm_is_the_root_mean_square() -> None:
    x, weight, out = drawn(3, 24), drawn(24, seed=1), np.empty((3, 24), np.float32)
    rows.norm(x, weight, np.float32(1e-5), out)
    close(out, x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight)


def test_the_gate_holds_from_far_below_to_far_above() -> None:
    both = np.ones((1, 8), np.float32)
    both[0, :4] = [-100.0, -1.0, 0.0, 100.0]
    out = np.empty((1, 4), np.float32)
    rows.gate(both, np.empty(WIDE, np.float32), out)
    close(out, [[0.0, -0.26894142, 0.0, 100.0]])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("counts", [[1], [4], [5, 9], [2, 3, 4]])
def test_attention_sees_its_own_slots_wherever_they_lie(
    counts: list[int], window: int, threads: int
) -> None:
    keys, values = drawn(64, 2, 8, seed=1), drawn(64, 2, 8, seed=2)
    slots = np.random.default_rng(3).permutation(64)[: sum(counts)]
    asked = drawn(len(counts), 6, 8) * np.float32(3)
    ends = np.cumsum(counts)
    out = attend(asked, keys, values, slots, ends, np.array(counts), window, threads=threads)
    for m, (end, count) in enumerate(zip(ends, counts, strict=True)):
        mine = slots[end - min(count, window or count) : end]
        for head in range(6):
            scores = keys[mine, head // 3] @ asked[m, head]
            weights = np.exp(scores - scores.max())
            close(out[m, head], weights / weights.sum() @ values[mine, head // 3])


@pytest.mark.parametrize("threads", [1, 2, 64])
@pytest.mark.parametrize("width", [4, 8, 12, 20, 64, 80])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5])
def test_heads_that_share_keys_are_attended_whatever_their_number_and_width(
    group: int, width: int, threads: int
) -> None:
    keys, values = drawn(70, 2, width, seed=1), drawn(70, 2, width, seed=2)
    slots, counts = np.random.default_rng(3).permutation(70), np.array([33, 37])
    asked = drawn(2, 2 * group, width) / np.float32(width**0.5)
    out = attend(asked, keys, values, slots, np.cumsum(counts), counts, 0, threads=threads)
    for m, mine in enumerate((slots[:33], slots[33:])):
        close(out[m], slowly(asked[m : m + 1], keys[mine], values[mine], 0)[0])


def test_a_row_that_sees_what_is_no_number_is_alone_with_it() -> None:
    keys, values = drawn(8, 1, 8), drawn(8, 1, 8)
    keys[7] = np.nan
    slots, ends, counts = np.array([0, 1, 6, 7]), np.array([2, 4]), np.array([2, 2])
    out = attend(drawn(2, 1, 8), keys, values, slots, ends, counts, 0)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).any()


def test_rope_turns_queries_and_keys_and_puts_both_kinds_in_their_slots() -> None:
    # Two heads and one KV head of width 4: a quarter turn takes (a, b, c, d) to (-c, -d, a, b).
    every = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    turns = np.stack([np.zeros((1, 4)), np.ones((1, 4))], axis=1).astype(np.float32)
    keys, values = np.zeros((3, 1, 4), np.float32), np.zeros((3, 1, 4), np.float32)
    asked, none = np.empty((1, 2, 4), np.float32), np.empty((0, 4), np.float32)
    rows.turn(every, none, np.float32(0), turns, np.float32(2), np.array([2]), keys, values, asked)
    assert asked[0].tolist() == [[-4, -6, 0, 2], [-12, -14, 8, 10]]
    assert keys[2, 0].tolist() == [-10, -11, 8, 9] and not keys[:2].any()
    assert values[2, 0].tolist() == [12, 13, 14, 15] and not values[:2].any()


def test_kernels_that_cannot_be_kept_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []

    def full(*_: Any, **__: Any) -> None:
        kept.append(1)
        raise OSError(28, "No space left on device")

    kernel: Any = numba.njit(_plus_one)
    kernel.enable_caching()
    monkeypatch.setattr(kernel._cache, "save_overload", full)

    def used(*, int8: bool, threads: int) -> None:
        kernel(1)

    monkeypatch.setattr(warm, "_use_all", used)
    warm.compile_all(int8=False, threads=1)
    assert kept == [1] and len(kernel.signatures) == 1


def _plus_one(value: int) -> int:
    return value + 1


def test_every_kernel_of_a_model_is_compiled_beforehand() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True)
    assert done.stdout.strip() == "[1, 1, 1, 1, 1, 1]", done.stderr


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("count", [3, FEW_ROWS + 1, TORCH_ROWS + 1])
def test_gate_and_up_are_alike_for_few_rows_and_for_many(count: int, copy: bool) -> None:
    torch.manual_seed(0)
    plain = GatedUp(nn.Linear(32, 24), nn.Linear(32, 24))
    x = torch.randn(count, 32)
    with torch.inference_mode():
        expected = torch.nn.functional.silu(plain.joined(x)[:, :24]) * plain.joined(x)[:, 24:]
        assert hasten_linears(plain, copy=copy) == 1
        close(plain(x).numpy(), expected.numpy())


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ins", [32, 30])
def test_a_layer_gives_and_adds_the_same_for_few_rows_and_for_many(
    ins: int, bias: bool, copy: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(ins, 24, bias=bias)
    fast = FastLinear(plain, copy=copy, memory=LargePages())
    for count in (1, FEW_ROWS, FEW_ROWS + 1, TORCH_ROWS + 1):
        x = torch.randn(count, ins)
        with torch.inference_mode():
            expected = plain(x).numpy()
            close(fast(x[None])[0].numpy(), expected)
            out = np.ones((count, 24), np.float32)
            fast.add_to(out, x.numpy())
            close(out, 1 + expected)


# ----------------------------------------------------------------------------- many rows


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outs", [1, WIDE - 1, WIDE, 2 * WIDE + 5])
@pytest.mark.parametrize("ins", [DEEP, 3 * DEEP, NEAR_INPUTS, NEAR_INPUTS + DEEP])
def test_a_product_by_panels_is_added_whatever_the_number_of_rows(
    ins: int, outs: int, threads: int
) -> None:
    weight = drawn(outs, ins)
    panels = in_panels(weight)
    for count in (*range(2 * TALL + 2), PANEL_ROWS, PANEL_ROWS + 1, 2 * PANEL_ROWS + 9):
        x, out = drawn(count, ins, seed=count), np.ones((count, outs), np.float32)
        add_panel_product(x, panels, out, threads=threads)
        close(out, 1 + x @ weight.T)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("outs", [1, WIDE, 2 * WIDE + 5])
@pytest.mark.parametrize("ins", [DEEP, NEAR_INPUTS + DEEP])
def test_int8_weights_in_panels_count_with_their_scales(ins: int, outs: int, threads: int) -> None:
    weight = np.random.default_rng(0).integers(-127, 128, (outs, ins)).astype(np.int8)
    panels, scales = in_panels(weight), drawn(outs, seed=1) ** 2 / np.float32(127)
    for count in (0, 1, 7, PANEL_ROWS + 1):
        x, out = drawn(count, ins, seed=count), np.ones((count, outs), np.float32)
        add_int8_panel_product(x, panels, scales, out, threads=threads)
        close(out, 1 + x @ (weight * scales[:, None]).T)


def test_a_row_gets_the_same_bits_from_panels_whatever_rows_are_beside_it() -> None:
    x, panels = (
        drawn(PANEL_ROWS + 9, NEAR_INPUTS + 8),
        in_panels(drawn(37, NEAR_INPUTS + 8, seed=1)),
    )
    whole = np.zeros((len(x), 37), np.float32)
    add_panel_product(x, panels, whole)
    for count in range(1, 2 * TALL + 2):
        part = np.zeros((count, 37), np.float32)
        add_panel_product(x[-count:].copy(), panels, part)
        np.testing.assert_array_equal(part, whole[-count:])


def slowly(asked: Array, keys: Array, values: Array, window: int) -> NDArray[np.float64]:
    """Attention in float64; keys and values of the sequence in order."""
    new, total = len(asked), len(keys)
    group = asked.shape[1] // keys.shape[1]
    k, v = (np.repeat(one.astype(np.float64), group, axis=1) for one in (keys, values))
    scores = np.einsum("mhd,thd->hmt", asked.astype(np.float64), k)
    distance = np.arange(total - new, total)[:, None] - np.arange(total)[None]
    scores[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hmt,thd->mhd", weights / weights.sum(axis=-1, keepdims=True), v)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("new", "total"),
    [
        *((2, 2), (7, 7), (2, 19), (QUERIES, QUERIES), (QUERIES + 1, QUERIES + 1)),
        *((5, KEYS), (5, KEYS + 1), (QUERIES + 7, KEYS + WIDE), (2 * QUERIES + 3, 2 * KEYS + 31)),
    ],
)
@pytest.mark.parametrize("window", [0, 1, 5, KEYS + 3])
def test_a_prompt_sees_its_own_tokens_and_none_later(
    new: int, total: int, window: int, threads: int
) -> None:
    keys, values = drawn(total + 9, 2, 12, seed=1), drawn(total + 9, 2, 12, seed=2)
    seen = np.random.default_rng(3).permutation(total + 9)[:total]
    asked = drawn(new, 6, 12) * np.float32(2)
    out = attend_prompt(asked, keys, values, seen, window, threads=threads)
    close(out, slowly(asked, keys[seen], values[seen], window))


@pytest.mark.parametrize("width", [4, 16, 64, 80])
def test_a_prompt_is_attended_with_heads_of_any_width(width: int) -> None:
    keys, values = drawn(40, 1, width, seed=1), drawn(40, 1, width, seed=2)
    asked = drawn(9, 3, width) / np.float32(width**0.5)
    out = attend_prompt(asked, keys, values, np.arange(40), 0)
    close(out, slowly(asked, keys, values, 0))


def test_scores_far_apart_leave_nothing_but_the_greatest() -> None:
    keys, values = np.zeros((KEYS + 40, 1, 4), np.float32), drawn(KEYS + 40, 1, 4)
    keys[3], keys[KEYS + 20] = 300, 900
    out = attend_prompt(np.ones((30, 1, 4), np.float32), keys, values, np.arange(KEYS + 40), 0)
    close(out[0, 0], values[3, 0])
    close(out[-1, 0], values[KEYS + 20, 0])


def test_what_is_no_number_reaches_no_token_before_it() -> None:
    keys, values = drawn(60, 1, 8), drawn(60, 1, 8, seed=1)
    keys[50] = np.nan
    out = attend_prompt(drawn(55, 1, 8, seed=2), keys, values, np.arange(60), 0)
    assert np.isnan(out[45:]).all() and np.isfinite(out[:45]).all()


def test_what_other_code_compiled_goes_once_no_start_uses_it(tmp_path: Path) -> None:
    names = ("own", "idle", "never-locked", "used", "filling")
    folders = {name: tmp_path / f"compiled-{name}" for name in names}
    for name, folder in folders.items():
        (folder / "kernels").mkdir(parents=True)
        if name != "never-locked":
            (folder / "lock").touch()
            os.utime(folder / "lock", (2000, 2000) if name == "used" else (10, 10))
        os.utime(folder, (10, 10))
    (tmp_path / "warm.cpython-311.pyc").touch()
    with open(folders["filling"] / "lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert warm.clear_superseded(folders["own"], before_s=1000.0) == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"compiled-own", "compiled-used", "compiled-filling", "warm.cpython-311.pyc"}
