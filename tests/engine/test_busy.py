"""Cores that other programs take, read from a /proc of our own making."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from homesplit_engine import busy
from homesplit_engine.busy import OthersMeter

REAL = os.sched_getaffinity(0)
TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(busy.time, "monotonic", lambda: self.now_s)


def write_proc(proc: Path, *, busy_s: float, own_s: float) -> None:
    """One core of ours, one that isn't, and one process of homesplit."""
    proc.mkdir(exist_ok=True)
    ours = min(os.sched_getaffinity(0))
    ticks = round(busy_s * TICKS)
    idle = "0 0 0 9999 0 0 0 0 0 0"
    core = f"cpu{ours} {ticks} 0 0 9999 0 0 0 0 0 0"
    (proc / "stat").write_text(f"cpu  {idle}\n{core}\ncpu9999 777777 0 0 1 0 0 0 0 0 0\n")
    own = proc / str(os.getpid())
    own.mkdir(exist_ok=True)
    (own / "cmdline").write_bytes(b"python\0-m\0homesplit_engine\0worker")
    fields = ["0"] * 11 + [str(round(own_s * TICKS)), "0", "0"]
    (own / "stat").write_text(f"{os.getpid()} (a name) with) {' '.join(fields)}\n")


@pytest.mark.parametrize(
    ("busy_s", "own_s", "cores"), [(10.0, 4.0, 0.6), (10.0, 10.0, 0.0), (4.0, 5.0, 0.0)]
)
def test_what_homesplit_itself_uses_is_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_s: float, own_s: float, cores: float
) -> None:
    clock, proc = Clock(monkeypatch), tmp_path / "proc"

    def one_core(_pid: int) -> set[int]:
        return {min(REAL)}

    monkeypatch.setattr(os, "sched_getaffinity", one_core)
    write_proc(proc, busy_s=1000.0, own_s=50.0)
    meter = OthersMeter(proc)
    assert meter.read() == (None, "no reading yet")
    clock.now_s += 10.0
    write_proc(proc, busy_s=1000.0 + busy_s, own_s=50.0 + own_s)
    found, why = meter.read()
    assert why is None
    assert found == pytest.approx(cores)


def test_a_machine_that_does_not_tell_is_unknown_with_the_reason(tmp_path: Path) -> None:
    assert OthersMeter(tmp_path / "nothing").read() == (
        None,
        "this machine does not tell how busy its cores are (/proc/stat)",
    )
