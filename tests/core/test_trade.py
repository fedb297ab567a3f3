"""What the split cost and took away, in one sentence over the same requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from homesplit.core.compare_result import ModeRuns
from homesplit.core.trade import trade
from tests.core.test_verdict import runs

GBIT = 1e9 / 8


def mode(name: str, ttft_s: float, gap_s: float = 0.1, *, count: int = 30) -> ModeRuns:
    """Requests of two tokens; a gap beyond 0.2 s is a stall."""
    made = runs(name, [ttft_s + 0.001 * number for number in range(count)])  # pyright: ignore[reportArgumentType]
    (run,) = made.runs
    logs = tuple(
        replace(log, arrival_s=(log.arrival_s[0], log.arrival_s[0] + gap_s)) for log in run.logs
    )
    targets = replace(run.workload.targets, tpot_s=0.2)
    run = replace(run, logs=logs, workload=replace(run.workload, targets=targets), loopback=False)
    setting = replace(made.setting, decode_box="atlas") if made.setting else None
    return replace(made, runs=(run,), setting=setting)


def told(modes: Sequence[ModeRuns], link_bytes_per_s: float | None = 2.5 * GBIT) -> str:
    found = trade(modes, link_bytes_per_s)
    return found.sentence if found else ""


def test_time_lost_and_stalls_gained_stand_in_one_sentence_with_link_and_box() -> None:
    assert told([mode("colocated", 0.2, 0.5), mode("split", 0.61)]) == (
        "On this 2.5 Gbit/s link the split cost 0.41 s of TTFT at p50 against atlas alone "
        "(0.41 s at both ends, 95 % interval), and took 30 stalls away."
    )


@pytest.mark.parametrize(
    ("ttft_s", "gap_s", "said"),
    [
        (0.1, 0.1, "the split saved 0.1 s of TTFT"),
        (0.2, 0.1, "the split cost no TTFT that shows against atlas alone"),
        (0.3, 0.5, "brought 30 stalls."),
        (0.3, 0.1, "there were as many stalls."),
    ],
)
def test_every_way_it_may_come_out_has_its_words(ttft_s: float, gap_s: float, said: str) -> None:
    assert said in told([mode("colocated", 0.2), mode("split", ttft_s, gap_s)])


def test_a_link_that_is_not_known_gets_no_rate() -> None:
    modes = [mode("colocated", 0.2), mode("split", 0.3)]
    assert told(modes, None).startswith("Over this link the split")
    assert "Gbit" not in told(modes, None)


def test_without_one_of_the_two_or_with_few_requests_nothing_is_said() -> None:
    assert trade([mode("colocated", 0.2), mode("replica", 0.3)], GBIT) is None
    assert trade([mode("colocated", 0.2, count=5), mode("split", 0.3, count=5)], GBIT) is None


def test_an_answer_without_a_word_has_no_time_to_hold_against() -> None:
    alone = mode("colocated", 0.2, count=60)
    (run,) = alone.runs
    silent = [replace(log, arrival_s=(), arrival_tokens=()) for log in run.logs[:35]]
    alone = replace(alone, runs=(replace(run, logs=(*silent, *run.logs[35:])),))
    assert "cost 0.41 s of TTFT at p50" in told([alone, mode("split", 0.61, count=60)])
