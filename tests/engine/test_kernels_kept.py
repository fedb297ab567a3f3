"""A worker keeps a bounded number of the kernels that oneDNN makes for each number of rows."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from homesplit_engine.worker.process import KERNELS_KEPT, bound_kernels

NAME = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
NAMES = (NAME, "LRU_CACHE_CAPACITY")
ROW_COUNTS = 6
ROUNDS = 3
PROGRAM = f"""
import torch
from homesplit_engine.worker.process import bound_kernels
bound_kernels()
torch.set_num_threads(1)
linear = torch.ops.mkldnn._linear_pointwise.default
weight = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(8, 8), 64)
for _ in range({ROUNDS}):
    for rows in range(20, 20 + {ROW_COUNTS}):
        linear(torch.zeros(rows, 8), weight, None, "none", [], "")
"""


def made(kept: str | None) -> int:
    """How often a kernel of a small layer is made anew when so many are kept."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("oneDNN tells of its kernels on x86 only")
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"ONEDNN_VERBOSE": "profile_create"} | ({} if kept is None else {NAME: kept})
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    return sum("cache_miss" in line and "inner_product" in line for line in told)


def test_each_row_count_has_a_kernel_that_is_made_once_while_there_is_room() -> None:
    assert made(None) == ROW_COUNTS


def test_kernels_beyond_the_bound_are_dropped_and_made_anew() -> None:
    assert made("3") > ROW_COUNTS


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_set_and_the_users_own_word_stands(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for one in NAMES:
        monkeypatch.setenv(one, "any")
        monkeypatch.delenv(one)
    bound_kernels()
    assert os.environ[name] == str(KERNELS_KEPT)
    monkeypatch.setenv(name, "7")
    bound_kernels()
    assert os.environ[name] == "7"
