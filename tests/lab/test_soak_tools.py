"""The soak's own judgement: what each kind of memory is, and what counts as growth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.resident import Resident, resident
from tests.lab.soak import LONG_ROUNDS, WARM_ROUNDS, Held, grown

SMAPS = """\
55f4ac1ae000-55f4ac1b0000 r-xp 00000000 fe:00 260386                     /usr/bin/python3
Rss:                   8 kB
55f4ae000000-55f4ae100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 100 kB
7f0000000000-7f0000001000 r-xp 00000000 00:00 0
Rss:                   4 kB
7f0000001000-7f0000009000 rw-p 00000000 00:00 0
Rss:                  20 kB
Swap:                  0 kB
7f000000a000-7f000000b000 r-xp 00000000 00:00 0                          [vdso]
Rss:                   4 kB
"""


def test_resident_bytes_are_told_by_what_stands_behind_them(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps").write_text(SMAPS)
    found = resident(7, tmp_path)
    assert found == Resident(made_code=4 * 1024, data=124 * 1024, files=8 * 1024)
    assert found.whole == 136 * 1024


def lives(mib: list[float], pid: int = 1, files: int = 10) -> list[Held]:
    return [
        Held(
            pid=pid,
            made_code_bytes=0,
            data_bytes=int(size * 2**20),
            files_bytes=0,
            open_files=files + number,
        )
        for number, size in enumerate(mib)
    ]


@pytest.mark.parametrize(
    ("mib", "right"),
    [
        ([500.0] * 10, True),
        ([200.0] * WARM_ROUNDS + [500.0] * 10, True),
        ([500.0] * 2 * WARM_ROUNDS + [640.0] * 5, False),
        ([500.0 + 5 * number for number in range(WARM_ROUNDS + LONG_ROUNDS)], False),
        ([500.0 + min(80, 10 * number) for number in range(WARM_ROUNDS + LONG_ROUNDS)], True),
    ],
    ids=["flat", "warm-up", "much more", "more and more", "more, then flat"],
)
def test_growth_after_warm_up_is_told_and_growth_that_ends_is_not(
    mib: list[float], right: bool
) -> None:
    told = grown("atlas", lives(mib))
    assert (not [why for why in told if "bytes" in why]) == right


def test_a_process_that_was_started_again_is_judged_anew() -> None:
    assert grown("borea", [*lives([300.0] * 12), *lives([900.0] * 12, pid=2)]) == []


def test_open_files_that_become_more_and_more_are_told() -> None:
    assert "open files" in grown("atlas", lives([500.0] * 40))[0]
