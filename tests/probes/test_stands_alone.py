"""The probes on their own: one file, bare Python 3.9, figures with their method or a reason."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import homesplit_probes
import pytest
from homesplit_probes import compute, memory, report
from homesplit_probes.budget import OVER

from homesplit.io.probe_runner import bundle

SOURCES = sorted(Path(homesplit_probes.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.name)
def test_every_file_is_python_3_9(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 9))


def test_the_bundle_is_the_same_twice_and_runs_without_any_package(tmp_path: Path) -> None:
    packed = tmp_path / "probes.pyz"
    packed.write_bytes(bundle())
    command = [sys.executable, "-I", "-S", str(packed), "box", "--seconds", "10"]
    done = subprocess.run(command, capture_output=True, timeout=180, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["memory"]["read"]["value"] > 1e8
    assert answer["memory"]["read"]["method"].startswith("memchr")
    fp32 = answer["flops_per_s"]["fp32"]
    assert fp32["value"] is None or "cblas_sgemm" in fp32["method"]
    assert fp32["value"] is not None or "torch" in fp32["why"]
    assert bundle.__wrapped__() == bundle()


def test_what_is_known_is_told_before_the_end_and_the_rest_gives_its_reason() -> None:
    command = [sys.executable, "-I", "-m", "homesplit_probes", "box", "--seconds", "0.2"]
    done = subprocess.run(command, capture_output=True, timeout=180, check=True)
    first = json.loads(done.stdout.splitlines()[0])
    assert first["memory"]["copy"]["value"] > 1e8
    assert first["flops_per_s"]["fp32"] == {"value": None, "why": OVER}


def test_a_matrix_does_not_grow_beyond_what_the_time_allows() -> None:
    sizes: list[int] = []

    def make(n: int) -> Callable[[], None]:
        sizes.append(n)
        return lambda: None

    n, _ = compute._sized(make, 8192, 0.0)  # pyright: ignore[reportPrivateUsage]
    assert (n, sizes) == (256, [256])


def test_no_samples_give_no_figure() -> None:
    assert report.figure([], "s", "nothing")["value"] is None


def test_a_wide_middle_half_is_warned_of_and_one_outlier_is_not() -> None:
    assert report.figure([1, 1, 1, 1, 1, 1, 1, 9], "s", "m")["warnings"] == []
    assert report.figure([1, 1, 2, 2, 3, 3, 4, 4], "s", "m")["warnings"]


def test_buffers_go_beyond_the_caches_or_say_that_they_cannot() -> None:
    mib = 1 << 20
    assert memory.buffer_bytes(32 * mib, 1024 * mib) == 128 * mib
    assert memory.buffer_bytes(1 * mib, 1024 * mib) == 64 * mib
    assert memory.buffer_bytes(256 * mib, 1024 * mib) is None


def test_cache_sizes_carry_their_unit() -> None:
    assert memory.cache_size("32K\n") == 32768
    assert memory.cache_size("16M") == 16 << 20
