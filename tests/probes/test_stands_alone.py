"""The probes on their own: one file, bare Python 3.9, figures with their method or a reason."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import homesplit_probes
import pytest
from homesplit_probes import compute, memory, methods, report
from homesplit_probes.budget import OVER, Budget
from homesplit_probes.report import figure

from homesplit.core.cost import PLAIN
from homesplit.io import probe_runner
from homesplit.io.local_box import LocalBox
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
    assert answer["memory"]["read"]["method"].startswith("mem")
    fp32 = answer["flops_per_s"]["fp32"]
    assert fp32["value"] is None or "cblas_sgemm" in fp32["method"]
    assert fp32["value"] is not None or "torch" in fp32["why"]
    assert bundle.__wrapped__() == bundle()


@pytest.mark.parametrize("tmp", ["fit", "not there", "noexec"])
async def test_the_probes_lie_where_a_library_can_be_loaded_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp: str
) -> None:
    for name in ("fit", "tools", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # What can't be marked as a program is as what a system starts none from.
    tool = tmp_path / "tools" / "chmod"
    marks = "exit 0" if tmp == "noexec" else 'exec /bin/chmod "$@"'
    tool.write_text(f"#!/bin/sh\n{marks}\n")
    tool.chmod(0o755)
    python = tmp_path / "tools" / "python"
    python.write_text('#!/bin/sh\necho "$TMPDIR"; [ -s "$TMPDIR/probes.pyz" ]\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("fit" if tmp == "noexec" else tmp)))
    box = LocalBox("here")
    async with probe_runner._probe(box, str(python), "box", print) as running:  # pyright: ignore[reportPrivateUsage]
        folder = await running.line(timeout_s=60) or ""
        assert (await running.finish(timeout_s=60)).code == 0
    assert Path(folder).parent == (tmp_path / "fit" if tmp == "fit" else tmp_path / "home")
    assert not [*(tmp_path / "fit").iterdir(), *(tmp_path / "home").iterdir()]


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


@pytest.mark.parametrize(
    ("largest", "together", "available", "size"),
    [
        (32, 32, 1024, 128),
        (1, 2, 1024, 64),
        (256, 256, 1024, None),
        # Two dies, then eight: what is spread over all their cores must not fit their caches.
        (32, 64, 16384, 256),
        (32, 256, 65536, 1024),
        (96, 1152, 65536, 2304),
        # With little room at least four times one cache.
        (32, 256, 1024, 256),
        (32, 256, 512, 128),
    ],
)
def test_buffers_go_beyond_the_caches_or_say_that_they_cannot(
    largest: int, together: int, available: int, size: int | None
) -> None:
    mib = 1 << 20
    found = memory.buffer_bytes(largest * mib, together * mib, available * mib)
    assert found == (None if size is None else size * mib)


def test_of_all_caches_the_largest_count_each_once(tmp_path: Path) -> None:
    assert memory.last_level_caches(str(tmp_path)) == [32 << 20]
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for index, size, cores in ((0, "32K", str(cpu)), (2, "512K", str(cpu)), (3, "32M", shared)):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{cores}\n")
    assert memory.last_level_caches(str(tmp_path)) == [32 << 20, 32 << 20]


@pytest.mark.parametrize(
    ("library", "loaded", "plain"),
    [
        ("libblas.so.3", "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0", True),
        ("libblas.so.3", "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3", False),
        ("", "/home/atlas/numpy/core/_multiarray.so\n/usr/lib/blas/libblas.so.3", True),
        ("", "/home/atlas/numpy.libs/libscipy_openblas64_-32a4.so", False),
        ("Accelerate", "", False),
        # Where the system doesn't tell, nothing is said against it.
        ("", "", False),
    ],
)
def test_a_plain_blas_is_told_from_a_tuned_one(
    tmp_path: Path, library: str, loaded: str, plain: bool
) -> None:
    lines = [f"7f00-7f01 r-xp 0000 08:01 123 {path}" for path in loaded.splitlines()]
    (tmp_path / "maps").write_text("\n".join(lines))
    assert methods.is_plain(library, maps=str(tmp_path / "maps")) is plain


def test_a_tuned_blas_that_was_lent_makes_numpys_own_no_better(tmp_path: Path) -> None:
    lent = "/tmp/probe/libscipy_openblas.so"
    (tmp_path / "maps").write_text(f"7f00-7f01 r-xp 1 {lent}\n7f02-7f03 r-xp 2 /usr/blas/l.so.3")
    assert methods.is_plain("", lent, str(tmp_path / "maps"))
    assert not methods.is_plain("", maps=str(tmp_path / "maps"))


def test_what_a_plain_blas_gives_is_told_to_be_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*_: object) -> bool:
        return True

    def library(_: object) -> tuple[None, str]:
        return None, "libblas.so.3"

    def sgemm(*_: object) -> dict[str, object]:
        return figure([1e9], "FLOP/s", "sgemm")

    for name in ("torch_module", "numpy_module"):
        monkeypatch.setattr(compute, name, lambda: None)
    monkeypatch.setattr(compute, "blas_sgemm", library)
    monkeypatch.setattr(compute, "_by_blas", sgemm)
    monkeypatch.setattr(compute, "is_plain", plain)
    told = compute.measure_compute(Budget(1.0), None, print)
    assert told["fp16"]["why"].startswith("neither numpy nor a BLAS library multiplies it fast")
    fp32 = told["fp32"]
    assert PLAIN in fp32["method"]
    assert "several times" in fp32["warnings"][0]


def test_a_quota_bounds_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_OWN", str(tmp_path / "own"))
    monkeypatch.setattr(methods, "_GROUPS", str(tmp_path))
    monkeypatch.setattr(methods, "_cores", lambda: 8)
    for name in methods.THREADS:
        monkeypatch.delenv(name, raising=False)
    assert methods.usable_cores() == 8
    methods.bound_threads()
    assert not [name for name in methods.THREADS if name in os.environ]
    (tmp_path / "own").write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    assert methods.usable_cores() == 3
    (tmp_path / "own").write_text("3:cpu,cpuacct:/a/b\n0::/a/b\n")
    (tmp_path / "cpu" / "a").mkdir(parents=True)
    (tmp_path / "cpu" / "a" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    assert methods.usable_cores() == 2
    (tmp_path / "own").write_text("0::/a/b\n")
    for name in methods.THREADS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    methods.bound_threads()
    assert {os.environ[name] for name in methods.THREADS} == {"3"}


def test_cache_sizes_carry_their_unit() -> None:
    assert memory.cache_size("32K\n") == 32768
    assert memory.cache_size("16M") == 16 << 20
