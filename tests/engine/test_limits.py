"""A container's limits bound what a worker takes for its blocks, and how many threads it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from homesplit_engine.limits import allowed_cores, available_bytes

MIB = 1 << 20


def group(folder: Path, most: str, used: int, cached: int) -> None:
    """A control group with that limit, use and files in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\nactive_file 0\n")


def test_the_tightest_of_all_control_groups_bounds_what_is_free(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/user.slice/one\n")
    group(groups / "user.slice" / "one", "max", 5 * MIB, 0)
    group(groups / "user.slice", str(8 * MIB), 7 * MIB, 2 * MIB)
    assert available_bytes(groups, own) == 3 * MIB
    group(groups, str(2 * MIB), 3 * MIB, 0)
    assert available_bytes(groups, own) == 0


def test_a_container_of_the_older_kind_is_bounded_too(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("4:memory:/docker/1\n0::/\n")
    folder = groups / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{9 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{8 * MIB}\n")
    (folder / "memory.stat").write_text(f"total_inactive_file {MIB}\ninactive_file 1\nx\n")
    assert available_bytes(groups, own) == 2 * MIB


def test_on_a_machine_of_the_older_kind_our_own_slice_counts(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/user.slice\n4:memory:/user.slice/u\n0::/user.slice\n")
    folder = groups / "memory" / "user.slice" / "u"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{3 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{MIB}\n")
    assert available_bytes(groups, own) == 2 * MIB
    slice_ = groups / "cpu" / "user.slice"
    slice_.mkdir(parents=True)
    (slice_ / "cpu.cfs_quota_us").write_text("200000\n")
    (slice_ / "cpu.cfs_period_us").write_text("100000\n")
    assert allowed_cores(groups, own) == 2


def test_where_a_group_is_slowed_down_is_a_limit_too(tmp_path: Path) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/one\n")
    group(groups / "one", str(8 * MIB), MIB, 0)
    (groups / "one" / "memory.high").write_text(f"{4 * MIB}\n")
    assert available_bytes(groups, own) == 3 * MIB


def test_without_limits_or_without_a_word_of_them_the_machines_own_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert available_bytes(tmp_path, own) > MIB
    own.write_text("0::/../elsewhere\n")
    group(tmp_path, "max", 0, 0)
    (tmp_path / "memory.stat").unlink()
    assert available_bytes(tmp_path, own) > MIB


@pytest.mark.parametrize(
    ("outer", "inner", "cores"),
    [
        ("max 100000", "max 100000", None),
        ("max 100000", "50000 100000", 1),
        ("150000 100000", "400000 100000", 2),
        ("", "nonsense", None),
        ("100000 0", "max", None),
    ],
)
def test_the_tightest_quota_says_how_many_threads_make_sense(
    tmp_path: Path, outer: str, inner: str, cores: int | None
) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    (groups / "one").mkdir(parents=True)
    own.write_text("0::/one\n")
    (groups / "cpu.max").write_text(outer)
    (groups / "one" / "cpu.max").write_text(inner)
    assert allowed_cores(groups, own) == cores


def test_a_quota_of_the_older_kind_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in (("cpu.cfs_quota_us", "250000"), ("cpu.cfs_period_us", "100000")):
        (tmp_path / "cpu" / name).write_text(text)
    assert allowed_cores(tmp_path, tmp_path / "none") == 3
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert allowed_cores(tmp_path, tmp_path / "none") is None
